#include "server/request.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/anthropic_input.h"
#include "server/error.h"
#include "server/params_json.h"
#include "server/refuse.h"
#include "server/responses_input.h"
#include "server/responses_settings.h"
#include "server/sglang_input.h"
#include "text/chat_json.h"

/* chat_json_parse counts bytes with its marks for big integers in between, so the place of the fault is
 * looked for again, with integers read as reals that no number of digits stops. */
static void refuse_json(struct exchange *x, const struct nyb_err *first)
{
    json_error_t e;
    json_t *body = json_loadb(x->body.data, x->body.len,
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    if (body)
        error_reply(x, 400, NULL, "The body is %s.", first->message);
    else
        error_reply(x, 400, NULL, "The body is not valid JSON: %s (byte %d, line %d, column %d).", e.text,
                    e.position, e.line, e.column);
    json_decref(body);
}

json_t *request_parse(struct exchange *x)
{
    json_t *body = NULL;
    struct nyb_err err;
    if (x->body.len == 0) {
        error_reply(x, 400, NULL, "The body is empty, a JSON object was expected.");
        return NULL;
    }
    if (chat_json_parse(&body, x->body.data, x->body.len, "body", &err) != NYB_OK) {
        refuse_json(x, &err);
        return NULL;
    }
    if (!json_is_object(body)) {
        error_reply(x, 400, NULL, "The body must be a JSON object.");
        json_decref(body);
        return NULL;
    }
    buf_free(&x->body);
    return body;
}

int request_n_model(const struct server *s)
{
    return s->config->served_name.n ? s->config->served_name.n : 1;
}

const char *request_model(const struct server *s, int i)
{
    return s->config->served_name.n ? s->config->served_name.item[i] : s->model;
}

bool request_is_model(const struct server *s, const char *name)
{
    for (int i = 0; i < request_n_model(s); i++)
        if (!strcmp(name, request_model(s, i)))
            return true;
    return false;
}

enum nyb_code request_no_model(const struct server *s, const char *name, struct nyb_err *err)
{
    char all[480] = "", more[32] = "";
    int shown = 0, n_model = request_n_model(s);
    for (size_t n = 0; shown < n_model; shown++) { /* whole names, as many as there is room for */
        int len =
            snprintf(all + n, sizeof(all) - n, "%s`%.200s`", shown ? ", " : "", request_model(s, shown));
        if (n + (size_t)len >= sizeof(all)) {
            all[n] = 0;
            break;
        }
        n += (size_t)len;
    }
    if (shown < n_model)
        snprintf(more, sizeof(more), " and %d more", n_model - shown);
    return err_at(err, NYB_E_NOT_FOUND, "model", -1,
                  "The model `%.200s` does not exist. This server has %s%s.", name, all, more);
}

enum nyb_code request_check_model(const struct server *s, const json_t *body, struct nyb_err *err)
{
    const json_t *v = json_object_get(body, "model");
    if (!v || json_is_null(v))
        return NYB_OK;
    if (!params_is_string(v))
        return params_wrong_type(err, "model", "a string", v);
    const char *name = json_string_value(v);
    return !*name || request_is_model(s, name) ? NYB_OK : request_no_model(s, name, err);
}

enum nyb_code request_check_unsupported(const json_t *body, struct nyb_err *err)
{
    return refuse_check(body, err);
}

static enum nyb_code read_stream_options(struct gen *g, const json_t *body, struct nyb_err *err)
{
    const json_t *v = json_object_get(body, "stream_options");
    if (!v || json_is_null(v))
        return NYB_OK;
    if (!g->stream)
        return err_at(err, NYB_E_ARG, "stream_options", -1,
                      "stream_options can only be given when stream is true. (parameter=stream_options)");
    if (!json_is_object(v))
        return params_wrong_type(err, "stream_options", "an object", v);
    TRY(params_bool(v, "include_usage", &g->usage_chunk, err));
    TRY(params_bool(v, "continuous_usage_stats", &g->usage_always, err));
    g->usage_always = g->usage_always && g->usage_chunk;
    return NYB_OK;
}

/* The client's own id for the answer, under FastDeploy's or SGLang's name. */
static enum nyb_code read_request_id(struct gen *g, const json_t *body, struct nyb_err *err)
{
    const json_t *v = json_object_get(body, "request_id");
    if (!v || json_is_null(v))
        v = json_object_get(body, "rid");
    if (!v || json_is_null(v))
        return NYB_OK;
    const char *id = params_is_string(v) ? json_string_value(v) : NULL;
    size_t n = id ? json_string_length(v) : 0;
    bool fine = n > 0 && n <= EXCHANGE_ID_MAX;
    for (size_t i = 0; fine && i < n; i++)
        fine = isalnum((unsigned char)id[i]) || strchr("-_.:", id[i]);
    if (!fine)
        return err_at(err, NYB_E_ARG, "request_id", -1,
                      "request_id must be 1 to %d letters, digits or any of -_.: (parameter=request_id)",
                      EXCHANGE_ID_MAX);
    gen_set_id(g, id);
    return NYB_OK;
}

/* FastDeploy's number of tokens that a chunk may hold. */
static enum nyb_code read_chunk_tokens(struct gen *g, const json_t *body, struct nyb_err *err)
{
    static const char name[] = "max_streaming_response_tokens";
    TRY(params_int(body, name, &g->chunk_tokens, err));
    return g->chunk_tokens >= 1
               ? NYB_OK
               : err_at(err, NYB_E_RANGE, name, -1, "%s must be at least 1, got %d. (parameter=%s, value=%d)",
                        name, g->chunk_tokens, name, g->chunk_tokens);
}

/* Older than n, and more than it only where the best answers are chosen among several. */
static enum nyb_code check_best_of(const json_t *body, int n, struct nyb_err *err)
{
    int best_of = n;
    TRY(params_int(body, "best_of", &best_of, err));
    return best_of == n ? NYB_OK
                        : err_at(err, NYB_E_UNSUPPORTED, "best_of", -1,
                                 "best_of must be equal to n (%d), for no answers are thrown away, got %d. "
                                 "(parameter=best_of, value=%d)",
                                 n, best_of, best_of);
}

enum nyb_code request_read_common(struct gen *g, const json_t *body, const struct nyb_sampling *s, int *n,
                                  struct nyb_err *err)
{
    const json_t *user = json_object_get(body, "user");
    *n = 1;
    if (user && !json_is_null(user) && !params_is_string(user))
        return params_wrong_type(err, "user", "a string", user);
    TRY(params_bool(body, "stream", &g->stream, err));
    TRY(read_stream_options(g, body, err));
    TRY(params_bool(body, "return_token_ids", &g->return_ids, err));
    TRY(params_bool(body, "collect_metrics", &g->collect_metrics, err));
    TRY(params_bool(body, "return_tokens_as_token_ids", &g->ids_as_text, err));
    TRY(read_chunk_tokens(g, body, err));
    TRY(read_request_id(g, body, err));
    TRY(params_int(body, "n", n, err));
    if (*n < 1 || *n > REQUEST_CHOICES_MAX)
        return err_at(err, NYB_E_RANGE, "n", -1, "n must be in [1, %d], got %d. (parameter=n, value=%d)",
                      REQUEST_CHOICES_MAX, *n, *n);
    if (*n > 1 && s->temperature < 1e-5)
        return err_at(err, NYB_E_RANGE, "n", -1,
                      "n must be 1 when using greedy sampling, got %d. (parameter=n, value=%d)", *n, *n);
    TRY(check_best_of(body, *n, err));
    if (s->prompt_logprobs != NYB_UNSET && g->stream)
        return err_at(err, NYB_E_ARG, "prompt_logprobs", -1,
                      "prompt_logprobs are not available when stream is true. (parameter=prompt_logprobs)");
    g->n_prompt_logprob = s->prompt_logprobs;
    g->max_tokens = s->max_tokens;
    return NYB_OK;
}

enum nyb_code request_truncate(const struct server *s, const json_t *body, int32_t **ids, size_t *n,
                               struct nyb_err *err)
{
    int keep = NYB_UNSET;
    TRY(params_int(body, "truncate_prompt_tokens", &keep, err));
    if (keep == NYB_UNSET)
        return NYB_OK;
    if (keep == -1)
        keep = (int)(s->info->max_model_len - 1);
    if (keep < 1)
        return err_at(err, NYB_E_RANGE, "truncate_prompt_tokens", -1,
                      "truncate_prompt_tokens must be -1 or at least 1, got %d. "
                      "(parameter=truncate_prompt_tokens, value=%d)",
                      keep, keep);
    if (*n > (size_t)keep) {
        *ids += *n - (size_t)keep;
        *n = (size_t)keep;
    }
    return NYB_OK;
}

int32_t *request_keep_ids(struct request_job *j, int32_t *ids, size_t n)
{
    if (!ids)
        return NULL;
    int32_t *kept = arena_alloc(&j->arena, n ? n : 1, sizeof(*kept));
    memcpy(kept, ids, n * sizeof(*kept));
    nyb_free(ids);
    return kept;
}

void request_append_ids(struct arena *a, struct request_prompt *prompt, const int32_t *ids, size_t n)
{
    int32_t *all = arena_alloc(a, prompt->n + n + 1, sizeof(*all));
    if (prompt->n)
        memcpy(all, prompt->ids, prompt->n * sizeof(*all));
    if (n)
        memcpy(all + prompt->n, ids, n * sizeof(*all));
    prompt->ids = all;
    prompt->n += n;
}

/* The engine knows a prompt alone; a client knows it by the name of the field that it came in. */
static enum nyb_code name_prompt(const struct gen *g, enum nyb_code code, struct nyb_err *err)
{
    const json_t *ids = json_object_get(g->request, "prompt_token_ids");
    const char *name = ids && !json_is_null(ids) ? "prompt_token_ids"
                       : gen_is_chat(g)          ? "messages"
                                                 : "prompt";
    if (code != NYB_OK && !strcmp(err->where, "prompt"))
        snprintf(err->where, sizeof(err->where), "%s", name);
    return code;
}

/* Those of a prompt are written into the answer at once, with a stream too. Of a chat's choices the first has
 * them. A prompt that is too long is the engine's to refuse. */
static enum nyb_code check_prompt_logprobs(const struct gen *g, const struct request_prompt *prompt,
                                           int n_prompt, int n, const struct nyb_sampling *s,
                                           struct nyb_err *err)
{
    const char *name = g->n_prompt_logprob != NYB_UNSET ? "prompt_logprobs" : "logprobs";
    int64_t most = g->x->s->info->max_model_len, each = (int64_t)s->prompt_logprobs + 1, all = 0;
    if (s->prompt_logprobs < 0)
        return NYB_OK;
    for (int i = 0; i < n_prompt; i++)
        all += (int64_t)prompt[i].n <= most ? (int64_t)prompt[i].n * each : 0;
    all *= gen_is_chat(g) ? 1 : n;
    return all <= GEN_LOGPROBS_MAX
               ? NYB_OK
               : err_at(
                     err, NYB_E_RANGE, name, -1,
                     "%s would give %lld log-probabilities of tokens of prompts, an answer may have %d: ask "
                     "for fewer, or send fewer or shorter prompts at once. (parameter=%s, value=%d)",
                     name, (long long)all, GEN_LOGPROBS_MAX, name, s->prompt_logprobs);
}

enum nyb_code request_submit(struct gen *g, const struct request_prompt *prompt, int n_prompt, int n,
                             struct nyb_sampling *s, struct nyb_err *err)
{
    int64_t seed = s->seed;
    int priority = 0;
    TRY(params_int(g->request, "priority", &priority, err));
    g->every_token = g->return_ids || g->n_logprob != NYB_UNSET || !g->x->s->has_tokenizer;
    s->logprobs = g->n_logprob;
    int64_t most = g->x->s->config->max_waiting + g->x->s->info->max_num_seqs;
    if ((int64_t)n_prompt * n > most)
        return err_at(
            err, NYB_E_RANGE, n > 1 ? "n" : "prompt", -1,
            "n times the number of prompts is %lld (%d times %d), more than this server can ever hold "
            "(%lld). (parameter=%s)",
            (long long)n_prompt * n, n, n_prompt, (long long)most, n > 1 ? "n" : "prompt");
    TRY(check_prompt_logprobs(g, prompt, n_prompt, n, s, err));
    gen_set_choices(g, n_prompt, n);
    for (int i = 0; i < g->n_choice; i++) {
        const struct request_prompt *p = &prompt[i / n];
        const struct nyb_request r = {
            .prompt = p->ids, .n_prompt = p->n, .sampling = s, .priority = priority, .id = gen_request_id(g)};
        if (i > 0 && gen_is_chat(g))
            s->prompt_logprobs = NYB_UNSET;
        if (seed >= 0) /* the choices differ, and each is what it is alone */
            s->seed = (int64_t)(((uint64_t)seed + (uint64_t)(i % n)) & INT64_MAX);
        enum nyb_code code = gen_submit(g, i, &r, err);
        if (code != NYB_OK)
            return name_prompt(g, code, err);
    }
    return NYB_OK;
}

/* A request of another API becomes a chat or a completion before anything else looks at it. */
static enum nyb_code translate(enum gen_api api, const json_t *asked, json_t **body, struct buf *settings,
                               struct sglang *sglang, struct nyb_err *err)
{
    switch (api) {
    case GEN_RESPONSES:
        TRY(responses_input(asked, body, err));
        return responses_settings(asked, settings, err);
    case GEN_ANTHROPIC:
        return anthropic_input(asked, body, err);
    case GEN_SGLANG:
        return sglang_input(asked, body, sglang, err);
    case GEN_COMPLETION:
    case GEN_CHAT:
        break;
    }
    *body = json_incref((json_t *)(uintptr_t)asked);
    return NYB_OK;
}

static void rename_back(enum gen_api api, struct nyb_err *err)
{
    if (api == GEN_RESPONSES)
        responses_rename_fault(err);
    if (api == GEN_ANTHROPIC)
        anthropic_rename_fault(err);
    if (api == GEN_SGLANG)
        sglang_rename_fault(err);
}

static enum nyb_code open_job(struct request_job *j, struct exchange *x, enum gen_api api,
                              struct nyb_err *err)
{
    struct buf settings = {0};
    struct sglang sglang = {0};
    json_t *asked = j->body;
    j->body = NULL;
    enum nyb_code code = translate(api, asked, &j->body, &settings, &sglang, err);
    json_decref(asked);
    if (code != NYB_OK) {
        buf_free(&settings);
        return code;
    }
    params_merge_metadata(j->body);
    j->g = gen_open(x, api, j->body);
    j->g->settings = settings;
    j->g->sglang = sglang;
    return NYB_OK;
}

void request_answer(struct exchange *x, enum gen_api api, request_start_fn *start)
{
    struct nyb_err err = {0};
    struct request_job j = {.s = x->s, .body = request_parse(x)};
    if (!j.body)
        return;
    arena_init(&j.arena, 4096);
    enum nyb_code code = open_job(&j, x, api, &err);
    if (code == NYB_OK) {
        code = start(&j, &err);
        if (code != NYB_OK)
            rename_back(api, &err);
    }
    if (code == NYB_OK) {
        x->gen = j.g;
    } else {
        gen_close(j.g);
        error_reply_err(x, &err);
    }
    arena_free(&j.arena);
    json_decref(j.body);
}
