/* POST /v1/completions, and SGLang's /generate, whose requests become completions (sglang_input.h) */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/constraint.h"
#include "server/error.h"
#include "server/params_json.h"
#include "server/request.h"
#include "server/route.h"

#define MAX_TOKENS_DEFAULT        16 /* OpenAI's; of a chat it is what the context leaves */
#define SGLANG_MAX_TOKENS_DEFAULT 128

struct completion {
    struct request_job *j;
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
    TRY(params_bool(c->j->body, "add_special_tokens", &special, err));
    TRY(nyb_tokenize(c->j->s->engine, json_string_value(v), json_string_length(v), special, &ids, &out->n,
                     err));
    out->ids = request_keep_ids(c->j, ids, out->n);
    return NYB_OK;
}

static enum nyb_code take_prompt(struct completion *c, const json_t *v, struct nyb_err *err)
{
    struct request_prompt *p = &c->prompt[c->n_prompt];
    if (params_is_string(v))
        TRY(take_text(c, v, p, err));
    else if (json_is_array(v))
        TRY(params_ids(v, "prompt", &c->j->arena, &p->ids, &p->n, err));
    else
        return params_wrong_type(err, "prompt", "a string, a list of strings, or token ids", v);
    c->n_prompt++;
    return request_truncate(c->j->s, c->j->body, &p->ids, &p->n, err);
}

/* A string, strings, token ids or lists of them; FastDeploy's prompt_token_ids are the same under a name of
 * their own. */
static enum nyb_code read_prompts(struct completion *c, struct nyb_err *err)
{
    const json_t *v = json_object_get(c->j->body, "prompt_token_ids");
    if (!v || json_is_null(v))
        v = json_object_get(c->j->body, "prompt");
    if (!v || json_is_null(v))
        return err_at(err, NYB_E_ARG, "prompt", -1, "prompt is missing. (parameter=prompt)");
    const json_t *first = json_array_get(v, 0);
    bool several = json_is_array(v) && !json_is_number(first);
    size_t n = several ? json_array_size(v) : 1;
    if (n == 0 || n > REQUEST_CHOICES_MAX)
        return err_at(err, NYB_E_RANGE, "prompt", -1,
                      "prompt must be 1 to %d texts or lists of ids, got %zu. "
                      "(parameter=prompt)",
                      REQUEST_CHOICES_MAX, n);
    c->prompt = arena_calloc(&c->j->arena, n, sizeof(*c->prompt));
    for (size_t i = 0; i < n; i++)
        TRY(take_prompt(c, several ? json_array_get(v, i) : v, err));
    return NYB_OK;
}

/* ---- parameters ---------------------------------------------------------------------------------- */

/* With echo, max_tokens 0 asks for the prompt's own log-probabilities. The engine makes at least one token,
 * which is not shown. */
static enum nyb_code read_echo(struct completion *c, struct nyb_err *err)
{
    TRY(params_bool(c->j->body, "echo", &c->echo, err));
    bool is_sglang = c->j->g->api == GEN_SGLANG;
    if (c->j->sampling.max_tokens == NYB_UNSET && c->j->s->config->defaults.max_tokens == NYB_UNSET)
        c->j->sampling.max_tokens = is_sglang ? SGLANG_MAX_TOKENS_DEFAULT : MAX_TOKENS_DEFAULT;
    if (!c->echo && !is_sglang)
        return NYB_OK;
    c->hides = c->j->sampling.max_tokens == 0;
    if (c->hides)
        c->j->sampling.max_tokens = 1;
    if (c->echo && c->j->g->n_logprob != NYB_UNSET && c->j->sampling.prompt_logprobs == NYB_UNSET)
        c->j->sampling.prompt_logprobs = c->j->g->n_logprob;
    return NYB_OK;
}

static enum nyb_code check_logprobs(const struct completion *c, struct nyb_err *err)
{
    int n = c->j->g->n_logprob, max = c->j->s->info->max_logprobs;
    return n == NYB_UNSET || (n >= 0 && n <= max)
               ? NYB_OK
               : err_at(err, NYB_E_RANGE, "logprobs", -1,
                        "logprobs must be in [0, %d], got %d. (parameter=logprobs, value=%d)", max, n, n);
}

static enum nyb_code read_suffix(const json_t *body, struct nyb_err *err)
{
    const json_t *v = json_object_get(body, "suffix");
    bool empty = !v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0);
    return empty
               ? NYB_OK
               : err_at(err, NYB_E_UNSUPPORTED, "suffix", -1, "suffix is not supported. (parameter=suffix)");
}

static enum nyb_code add_echo(struct completion *c, struct nyb_err *err)
{
    for (int i = 0; i < c->j->g->n_choice; i++) {
        struct choice *choice = &c->j->g->choice[i];
        const struct request_prompt *p = &c->prompt[choice->prompt];
        if (c->echo)
            TRY(nyb_detokenize(c->j->s->engine, p->ids, p->n, false, &choice->echo, NULL, err));
        choice->hides = c->hides;
    }
    return NYB_OK;
}

/* What belongs to chats or to models that were trained for it. */
static enum nyb_code check_unsupported(const json_t *body, struct nyb_err *err)
{
    TRY(request_check_unsupported(body, err));
    if (!json_is_null(json_object_get(body, "reasoning_max_tokens")) &&
        json_object_get(body, "reasoning_max_tokens"))
        return err_at(err, NYB_E_UNSUPPORTED, "reasoning_max_tokens", -1,
                      "reasoning_max_tokens is not supported here: reasoning is told apart in chats only. "
                      "(parameter=reasoning_max_tokens)");
    return read_suffix(body, err);
}

static enum nyb_code start(struct request_job *j, struct nyb_err *err)
{
    struct completion c = {.j = j};
    int n;
    TRY(request_check_model(j->s, j->body, err));
    TRY(check_unsupported(j->body, err));
    TRY(params_read(&j->sampling, j->body, &j->arena, err));
    TRY(params_int(j->body, "logprobs", &j->g->n_logprob, err));
    TRY(check_logprobs(&c, err));
    TRY(request_read_common(j->g, j->body, &j->sampling, &n, err));
    TRY(read_echo(&c, err));
    TRY(read_prompts(&c, err));
    if ((int64_t)n * c.n_prompt > REQUEST_CHOICES_MAX)
        return err_at(err, NYB_E_RANGE, "n", -1,
                      "n times the number of prompts must be at most %d, got %lld. "
                      "(parameter=n, value=%d)",
                      REQUEST_CHOICES_MAX, (long long)n * c.n_prompt, n);
    TRY(constraint_read(j, err));
    TRY(constraint_blame(j, request_submit(j->g, c.prompt, c.n_prompt, n, &j->sampling, err), err));
    return c.echo || c.hides ? add_echo(&c, err) : NYB_OK;
}

void api_completions(struct exchange *x)
{
    request_answer(x, GEN_COMPLETION, start);
}

void api_generate(struct exchange *x)
{
    request_answer(x, GEN_SGLANG, start);
}
