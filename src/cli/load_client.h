/* Sends the requests of a run, each at its time, and collects the replies. One thread, any number of
 * connections (libcurl's multi interface); connections are kept and used again. */
#ifndef NYB_CLI_LOAD_CLIENT_H
#define NYB_CLI_LOAD_CLIENT_H

#include "cli/load_data.h"
#include "cli/load_reply.h"

struct load_target {
    const char *const *url; /* (n_url) of the endpoint on each server: request i goes to server i mod n_url */
    const char *const *base; /* (n_url) the servers themselves */
    int n_url;
    const char *model;       /* NULL: none is named                           */
    const char *const *lora; /* (n_lora) or NULL: models to draw from instead, one a request */
    int n_lora;
    uint64_t lora_seed;
    const char *api_key;   /* NULL: none                                    */
    bool chat;             /* /v1/chat/completions; else /v1/completions    */
    json_t *params;        /* members of every body, over those of its row  */
    json_t *headers;       /* NULL, or an object of texts: more headers     */
    const char *id_prefix; /* NULL, or X-Request-Id is this and the request's number */
    bool debug;            /* bodies and answers on standard error          */
    bool insecure;         /* take any TLS certificate                      */
    double timeout_s;      /* of one request; 0: none                       */
    int max_concurrency;   /* 0: no limit; else at least n_url, shared out evenly */
};

struct load_run {
    double duration; /* seconds from the first request's time to the end of the last transfer */
    int most_open;   /* requests in flight at once                                            */
    double
        latest; /* seconds: the most that a request went out after its time, the limit on concurrency aside */
};

/* replies (n), initialized. An error only when nothing can be sent at all; what befalls a request is in its
 * reply. done may be NULL: called after each reply. */
enum nyb_code load_client_run(const struct load_target *t, const struct load_data *data,
                              struct load_reply *reply, struct load_run *run,
                              void (*done)(void *arg, int n_done), void *arg,
                              struct nyb_err *err) NYB_MUST_CHECK;

/* The id of the first model that base/v1/models lists; caller frees. */
enum nyb_code load_client_model(char **out, const char *base, const char *api_key, bool insecure,
                                struct nyb_err *err) NYB_MUST_CHECK;

/* POST {} to url; anything but 200 is an error. */
enum nyb_code load_client_post(const char *url, const char *api_key, bool insecure,
                               struct nyb_err *err) NYB_MUST_CHECK;

#endif
