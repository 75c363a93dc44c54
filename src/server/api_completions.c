/* POST /v1/completions */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/error.h"
#include "server/params_json.h"
#include "server/request.h"
#include "server/route.h"

#define MAX_TOKENS_DEFAULT 16

struct completion {
    struct server *s;
    struct gen *g;
    const json_t *body;
    struct arena arena;
    struct nyb_sampling sampling;
    struct request_prompt *prompt; /* (n_prompt) */
    int n_prompt;
    bool echo, hides;
};

/* ---- prompts ------------------------------------------------------------------------------------- */

static enum nyb_code take_text(struct completion *c, const json_t *v, struct request_prompt *out,
                               struct nyb_err *err)
{
    int32_t *ids;
    bool special = true;
    TRY(params_bool(c->body, "add_special_tokens", &special, err));
    TRY(nyb_tokenize(c->s->engine, json_string_value(v), json_string_length(v), special, &ids, &out->n, err));
    out->ids = arena_calloc(&c->arena, out->n ? out->n : 1, sizeof(*ids));
    if (out->n)
        memcpy(out->ids, ids, out->n * sizeof(*ids));
    nyb_free(ids);
    return NYB_OK;
}

static enum nyb_code take_prompt(struct completion *c, const json_t *v, struct nyb_err *err)
{
    struct request_prompt *p = &c->prompt[c->n_prompt];
    if (json_is_string(v))
        TRY(take_text(c, v, p, err));
    else if (json_is_array(v))
        TRY(params_ids(v, "prompt", &c->arena, &p->ids, &p->n, err));
    else
        return params_wrong_type(err, "prompt", "a string, a list of strings, or token ids", v);
    c->n_prompt++;
    return request_truncate(c->s, c->body, &p->ids, &p->n, err);
}

/* A string, strings, token ids or lists of them; FastDeploy's prompt_token_ids are the same under a name of
 * their own. */
static enum nyb_code read_prompts(struct completion *c, struct nyb_err *err)
{
    const json_t *v = json_object_get(c->body, "prompt_token_ids");
    if (!v || json_is_null(v))
        v = json_object_get(c->body, "prompt");
    if (!v || json_is_null(v))
        return err_at(err, NYB_E_ARG, "prompt", -1, "prompt is missing. (parameter=prompt)");
    const json_t *first = json_array_get(v, 0);
    bool several = json_is_array(v) && !json_is_integer(first);
    size_t n = several ? json_array_size(v) : 1;
    if (n == 0 || n > REQUEST_CHOICES_MAX)
        return err_at(err, NYB_E_RANGE, "prompt", -1,
                      "prompt must be 1 to %d texts or lists of ids, got %zu. "
                      "(parameter=prompt)",
                      REQUEST_CHOICES_MAX, n);
    c->prompt = arena_calloc(&c->arena, n, sizeof(*c->prompt));
    for (size_t i = 0; i < n; i++)
        TRY(take_prompt(c, several ? json_array_get(v, i) : v, err));
    return NYB_OK;
}

/* ---- parameters ---------------------------------------------------------------------------------- */

/* With echo, max_tokens 0 asks for the prompt's own log-probabilities. The engine makes at least one token,
 * which is not shown. */
static enum nyb_code read_echo(struct completion *c, struct nyb_err *err)
{
    TRY(params_bool(c->body, "echo", &c->echo, err));
    if (c->sampling.max_tokens == NYB_UNSET)
        c->sampling.max_tokens = MAX_TOKENS_DEFAULT;
    if (!c->echo)
        return NYB_OK;
    if (c->g->stream && c->g->n_logprob != NYB_UNSET)
        return err_at(err, NYB_E_ARG, "echo", -1,
                      "echo with logprobs is not available when stream is true. "
                      "(parameter=echo)");
    c->hides = c->sampling.max_tokens == 0;
    if (c->hides)
        c->sampling.max_tokens = 1;
    if (c->g->n_logprob != NYB_UNSET && c->sampling.prompt_logprobs == NYB_UNSET)
        c->sampling.prompt_logprobs = c->g->n_logprob;
    return NYB_OK;
}

static enum nyb_code check_logprobs(const struct completion *c, struct nyb_err *err)
{
    int n = c->g->n_logprob, max = c->s->info->max_logprobs;
    return n == NYB_UNSET || (n >= 0 && n <= max)
               ? NYB_OK
               : err_at(err, NYB_E_RANGE, "logprobs", -1,
                        "logprobs must be in [0, %d], got %d. (parameter=logprobs, value=%d)", max, n, n);
}

static enum nyb_code read_suffix(const struct completion *c, struct nyb_err *err)
{
    const json_t *v = json_object_get(c->body, "suffix");
    bool empty = !v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0);
    return empty
               ? NYB_OK
               : err_at(err, NYB_E_UNSUPPORTED, "suffix", -1, "suffix is not supported. (parameter=suffix)");
}

static enum nyb_code add_echo(struct completion *c, struct nyb_err *err)
{
    for (int i = 0; i < c->g->n_choice; i++) {
        struct choice *choice = &c->g->choice[i];
        const struct request_prompt *p = &c->prompt[choice->prompt];
        TRY(nyb_detokenize(c->s->engine, p->ids, p->n, false, &choice->echo, NULL, err));
        choice->hides = c->hides;
    }
    return NYB_OK;
}

static enum nyb_code start(struct completion *c, struct nyb_err *err)
{
    int n;
    TRY(request_check_model(c->s, c->body, err));
    TRY(request_check_unsupported(c->body, err));
    TRY(read_suffix(c, err));
    TRY(params_read(&c->sampling, c->body, &c->arena, err));
    TRY(params_int(c->body, "logprobs", &c->g->n_logprob, err));
    TRY(check_logprobs(c, err));
    TRY(request_read_common(c->g, c->body, &c->sampling, &n, err));
    TRY(read_echo(c, err));
    TRY(read_prompts(c, err));
    if ((int64_t)n * c->n_prompt > REQUEST_CHOICES_MAX)
        return err_at(err, NYB_E_RANGE, "n", -1,
                      "n times the number of prompts must be at most %d, got %lld. "
                      "(parameter=n, value=%d)",
                      REQUEST_CHOICES_MAX, (long long)n * c->n_prompt, n);
    TRY(request_submit(c->g, c->prompt, c->n_prompt, n, &c->sampling, err));
    return c->echo ? add_echo(c, err) : NYB_OK;
}

void api_completions(struct exchange *x)
{
    struct nyb_err err = {0};
    json_t *body = request_parse(x);
    if (!body)
        return;
    params_merge_metadata(body);
    struct completion c = {.s = x->s, .g = gen_open(x, GEN_COMPLETION, body), .body = body};
    arena_init(&c.arena, 4096);
    if (start(&c, &err) == NYB_OK) {
        x->gen = c.g;
    } else {
        gen_close(c.g);
        error_reply_err(x, &err);
    }
    arena_free(&c.arena);
    json_decref(body);
}
