/* The sampling parameters of a request, from JSON. Types are checked here, ranges by the engine; both name
 * the parameter and the value as vLLM does: "top_p must be in (0, 1], got 1.5. (parameter=top_p, value=1.5)".
 */
#ifndef NYB_SERVER_PARAMS_JSON_H
#define NYB_SERVER_PARAMS_JSON_H

#include "base/arena.h"
#include "base/json.h"

#define PARAMS_LIST_MAX 65536 /* entries of one list in a request */

/* body is an object. Lists live in the arena, strings in the body. `logprobs`, whose meaning differs between
 * the two APIs, is not read. */
enum nyb_code params_read(struct nyb_sampling *s, const json_t *body, struct arena *a,
                          struct nyb_err *err) NYB_MUST_CHECK;

/* "name must be <what>, got a string. (parameter=name, value=...)" */
enum nyb_code params_wrong_type(struct nyb_err *err, const char *name, const char *what, const json_t *value);
/* A string, and not one that stands for an integer beyond 64 bits (chat_json.h). */
bool params_is_string(const json_t *v);
/* Absent and null leave *out alone. */
enum nyb_code params_bool(const json_t *body, const char *name, bool *out,
                          struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code params_int(const json_t *body, const char *name, int *out, struct nyb_err *err) NYB_MUST_CHECK;
/* An array of token ids; *n = 0 and *ids = NULL where absent. */
enum nyb_code params_ids(const json_t *value, const char *name, struct arena *a, int32_t **ids, size_t *n,
                         struct nyb_err *err) NYB_MUST_CHECK;
/* FastDeploy's `metadata`: parameters within it count where the request itself does not give them. */
void params_merge_metadata(json_t *body);

#endif
