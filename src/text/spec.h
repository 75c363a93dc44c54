/* Reading the components of tokenizer.json: {"type": NAME, ...}. Every error names component and field. */
#ifndef NYB_TEXT_SPEC_H
#define NYB_TEXT_SPEC_H

#include "base/json.h"

/* The "type" of a component; `kind` ("normalizer", "pre-tokenizer", ...) is for messages. */
enum nyb_code spec_type(const json_t *spec, const char *kind, const char **type,
                        struct nyb_err *err) NYB_MUST_CHECK;
/* An optional field; *out keeps its value when the field is absent or null. */
enum nyb_code spec_bool(const json_t *spec, const char *field, bool *out, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code spec_size(const json_t *spec, const char *field, size_t *out,
                        struct nyb_err *err) NYB_MUST_CHECK;
/* A required string, which may be empty; lives as long as the tree. */
enum nyb_code spec_string(const json_t *spec, const char *field, const char **s, size_t *len,
                          struct nyb_err *err) NYB_MUST_CHECK;
/* A required array. */
enum nyb_code spec_array(const json_t *spec, const char *field, const json_t **out,
                         struct nyb_err *err) NYB_MUST_CHECK;
/* pattern: {"String": S} or {"Regex": S}. */
enum nyb_code spec_pattern(const json_t *spec, const char **s, size_t *len, bool *is_regex,
                           struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code spec_unknown(const char *kind, const char *type, struct nyb_err *err);

#define SPEC_DEPTH_MAX 8 /* Sequences within Sequences */
#define SPEC_STEP_MAX  64

#endif
