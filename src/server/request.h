/* What the bodies of both completion APIs have in common. All of it runs in a worker. */
#ifndef NYB_SERVER_REQUEST_H
#define NYB_SERVER_REQUEST_H

#include "base/arena.h"
#include "server/gen.h"

#define REQUEST_CHOICES_MAX 16384

/* A completion of either kind while a worker reads it. */
struct request_job {
    struct server *s;
    struct gen *g;
    json_t *body;
    struct arena arena; /* lives until the requests are submitted */
    struct nyb_sampling sampling;
    const char *constraint_name; /* the parameter that constrains the answer; NULL: none */
    bool format_joined;          /* response_format is part of the tools' constraint     */
};
/* Reads the body and submits. */
typedef enum nyb_code request_start_fn(struct request_job *j, struct nyb_err *err);
/* Parse the body, start, and leave the answer or the error in the exchange. */
void request_answer(struct exchange *x, enum gen_api api, request_start_fn *start);

/* The body as an object that the caller releases; NULL after the reply says why not. */
json_t *request_parse(struct exchange *x);
/* The names that a request may use: one at least. */
int request_n_model(const struct server *s);
const char *request_model(const struct server *s, int i);
bool request_is_model(const struct server *s, const char *name);
/* NYB_E_NOT_FOUND, and all names that there are. */
enum nyb_code request_no_model(const struct server *s, const char *name, struct nyb_err *err);
/* The same for a body that names another one; "" names none. */
enum nyb_code request_check_model(const struct server *s, const json_t *body,
                                  struct nyb_err *err) NYB_MUST_CHECK;
/* What neither this engine nor this server can do is refused, not ignored. */
enum nyb_code request_check_unsupported(const json_t *body, struct nyb_err *err) NYB_MUST_CHECK;
/* What says how to answer (stream, stream_options, n, request_id and the like) into g; *n choices a prompt */
enum nyb_code request_read_common(struct gen *g, const json_t *body, const struct nyb_sampling *s, int *n,
                                  struct nyb_err *err) NYB_MUST_CHECK;
/* truncate_prompt_tokens: drop ids from the left. */
enum nyb_code request_truncate(const struct server *s, const json_t *body, int32_t **ids, size_t *n,
                               struct nyb_err *err) NYB_MUST_CHECK;

struct request_prompt {
    int32_t *ids; /* (n) */
    size_t n;
};
/* Move ids of the engine's (nyb_free) into the arena; NULL stays NULL. */
int32_t *request_keep_ids(struct request_job *j, int32_t *ids, size_t n);
/* prompt->ids becomes a longer list in the arena. */
void request_append_ids(struct arena *a, struct request_prompt *prompt, const int32_t *ids, size_t n);
/* Submit prompts times n choices, or none of them. */
enum nyb_code request_submit(struct gen *g, const struct request_prompt *prompt, int n_prompt, int n,
                             struct nyb_sampling *s, struct nyb_err *err) NYB_MUST_CHECK;

#endif
