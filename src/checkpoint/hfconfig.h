/* Typed reading of config.json and generation_config.json: a field is there with the right type, or the
 * default holds, or the error names file, field, found and expected. null counts as absent. */
#ifndef NYB_CHECKPOINT_HFCONFIG_H
#define NYB_CHECKPOINT_HFCONFIG_H

#include "base/json.h"

struct hfconfig {
    char *path;      /* for messages */
    char *overrides; /* as they were given; NULL: none */
    json_t *root;
    const char *model_type; /* owned by root */
};

enum nyb_code hfconfig_open(struct hfconfig *c, const char *folder, struct nyb_err *err) NYB_MUST_CHECK;
/* With other values in place of the file's: a JSON object whose members replace those of config.json as
 * vLLM's
 * --hf-overrides does, null for none at all. A new rope_scaling or rope_parameters keeps what the old one
 * says of rope_theta and partial_rotary_factor, and goes by the name that the file uses. NULL: as it is. */
enum nyb_code hfconfig_open_with(struct hfconfig *c, const char *folder, const char *overrides,
                                 struct nyb_err *err) NYB_MUST_CHECK;
void hfconfig_close(struct hfconfig *c);

/* obj: usually c->root. `required` readers fail when the field is absent; `_or` readers return the default.
 * Integers must be within [lo, hi]. Wrong types are errors, never defaults. */
enum nyb_code hfconfig_int(const struct hfconfig *c, const json_t *obj, const char *key, int64_t lo,
                           int64_t hi, int64_t *out, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code hfconfig_int_or(const struct hfconfig *c, const json_t *obj, const char *key, int64_t lo,
                              int64_t hi, int64_t dflt, int64_t *out, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code hfconfig_float_or(const struct hfconfig *c, const json_t *obj, const char *key, double dflt,
                                double *out, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code hfconfig_bool_or(const struct hfconfig *c, const json_t *obj, const char *key, bool dflt,
                               bool *out, struct nyb_err *err) NYB_MUST_CHECK;
/* NULL when absent. */
enum nyb_code hfconfig_string_or(const struct hfconfig *c, const json_t *obj, const char *key,
                                 const char *dflt, const char **out, struct nyb_err *err) NYB_MUST_CHECK;
/* An integer or a list of integers (eos_token_id, mlp_only_layers) into *list, caller frees; absent: 0 of
 * them. */
enum nyb_code hfconfig_int_list(const struct hfconfig *c, const json_t *obj, const char *key, int64_t **list,
                                int *n, struct nyb_err *err) NYB_MUST_CHECK;

/* generation_config.json (absent: everything unset) merged with config.json's eos_token_id. */
struct hfconfig_generation {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty, do_sample;
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    int64_t *eos; /* ids that end an answer */
    int n_eos;
    int64_t bos; /* -1: none */
};
enum nyb_code hfconfig_generation_read(struct hfconfig_generation *g, const struct hfconfig *c,
                                       const char *folder, struct nyb_err *err) NYB_MUST_CHECK;
void hfconfig_generation_free(struct hfconfig_generation *g);

#endif
