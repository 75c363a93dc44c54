#include "engine/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"

#define TEXT_MAX 4096

/* "top_p must be in (0, 1], got 1.5. (parameter=top_p, value=1.5)" */
static enum nyb_code refuse(struct nyb_err *err, const char *name, const char *rule, const char *value)
{
    return err_at(err, NYB_E_RANGE, name, -1, "%s must be %s, got %s. (parameter=%s, value=%s)", name, rule,
                  value, name, value);
}

static enum nyb_code refuse_double(struct nyb_err *err, const char *name, const char *rule, double x)
{
    struct buf b = {0};
    if (isfinite(x))
        json_add_double(&b, x);
    else
        buf_add_str(&b, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
    enum nyb_code code = refuse(err, name, rule, b.data);
    buf_free(&b);
    return code;
}

static enum nyb_code refuse_int(struct nyb_err *err, const char *name, const char *rule, int64_t x)
{
    char value[32];
    snprintf(value, sizeof(value), "%lld", (long long)x);
    return refuse(err, name, rule, value);
}

void params_context_init(struct params_context *c)
{
    *c = (struct params_context){
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .max_tokens = NYB_UNSET, .max_logprobs = 20};
}

static double or_default(double x, double dflt)
{
    return isnan(x) ? dflt : x;
}

static enum nyb_code resolve_doubles(struct params *p, const struct nyb_sampling *in,
                                     const struct params_context *c, struct nyb_err *err)
{
    double temperature = or_default(in->temperature, c->temperature);
    double top_p = or_default(in->top_p, c->top_p), min_p = or_default(in->min_p, c->min_p);
    double repetition = or_default(in->repetition_penalty, c->repetition_penalty);
    double presence = or_default(in->presence_penalty, c->presence_penalty);
    double frequency = or_default(in->frequency_penalty, c->frequency_penalty);
    if (!(temperature >= 0 && temperature <= 2))
        return refuse_double(err, "temperature", "in [0, 2]", temperature);
    if (!(top_p > 0 && top_p <= 1))
        return refuse_double(err, "top_p", "in (0, 1]", top_p);
    if (!(min_p >= 0 && min_p <= 1))
        return refuse_double(err, "min_p", "in [0, 1]", min_p);
    if (!(repetition > 0 && isfinite(repetition)))
        return refuse_double(err, "repetition_penalty", "finite and greater than 0", repetition);
    if (!(presence >= -2 && presence <= 2))
        return refuse_double(err, "presence_penalty", "in [-2, 2]", presence);
    if (!(frequency >= -2 && frequency <= 2))
        return refuse_double(err, "frequency_penalty", "in [-2, 2]", frequency);
    if (temperature < PARAMS_GREEDY_BELOW)
        temperature = 0;
    else if (temperature < PARAMS_TEMPERATURE_MIN)
        temperature = PARAMS_TEMPERATURE_MIN;
    p->temperature = (float)temperature;
    p->top_p = (float)top_p;
    p->min_p = (float)min_p;
    p->repetition = (float)repetition;
    p->presence = (float)presence;
    p->frequency = (float)frequency;
    return NYB_OK;
}

static enum nyb_code resolve_logprobs(int *out, const char *name, int x, int max, struct nyb_err *err)
{
    *out = x == NYB_UNSET ? -1 : x;
    char rule[32];
    snprintf(rule, sizeof(rule), "in [0, %d]", max);
    return x == NYB_UNSET || (x >= 0 && x <= max) ? NYB_OK : refuse_int(err, name, rule, x);
}

static enum nyb_code resolve_ints(struct params *p, const struct nyb_sampling *in,
                                  const struct params_context *c, int room, struct nyb_err *err)
{
    int top_k = in->top_k == NYB_UNSET ? c->top_k : in->top_k;
    if (top_k < -1)
        return refuse_int(err, "top_k", "-1 or 0 (off), or at least 1", top_k);
    p->top_k = top_k < 1 || top_k >= c->vocab ? 0 : top_k;

    int max_tokens = in->max_tokens == NYB_UNSET ? c->max_tokens : in->max_tokens;
    if (max_tokens != NYB_UNSET && max_tokens < 1)
        return refuse_int(err, "max_tokens", "at least 1", max_tokens);
    int min_tokens = in->min_tokens == NYB_UNSET ? 0 : in->min_tokens;
    if (min_tokens < 0)
        return refuse_int(err, "min_tokens", "at least 0", min_tokens);
    if (max_tokens != NYB_UNSET && min_tokens > max_tokens) {
        char rule[64];
        snprintf(rule, sizeof(rule), "at most max_tokens (%d)", max_tokens);
        return refuse_int(err, "min_tokens", rule, min_tokens);
    }
    p->max_tokens = max_tokens == NYB_UNSET || max_tokens > room ? room : max_tokens;
    p->min_tokens = min_tokens > p->max_tokens ? p->max_tokens : min_tokens;

    TRY(resolve_logprobs(&p->n_logprob, "logprobs", in->logprobs, c->max_logprobs, err));
    TRY(resolve_logprobs(&p->n_prompt_logprob, "prompt_logprobs", in->prompt_logprobs, c->max_logprobs, err));
    if (p->n_logprob > c->vocab)
        p->n_logprob = c->vocab;
    if (p->n_prompt_logprob > c->vocab)
        p->n_prompt_logprob = c->vocab;
    if (in->seed < -1)
        return refuse_int(err, "seed", "-1 (random), or at least 0", in->seed);
    p->has_seed = in->seed >= 0;
    p->seed = p->has_seed ? (uint64_t)in->seed : 0;
    return NYB_OK;
}

enum nyb_code params_context_set(struct params_context *c, const struct nyb_sampling *s, struct nyb_err *err)
{
    struct params_context new = *c;
    struct params resolved;
    struct nyb_sampling unset;
    nyb_sampling_init(&unset);
    new.temperature = or_default(s->temperature, c->temperature);
    new.top_p = or_default(s->top_p, c->top_p);
    new.min_p = or_default(s->min_p, c->min_p);
    new.repetition_penalty = or_default(s->repetition_penalty, c->repetition_penalty);
    new.presence_penalty = or_default(s->presence_penalty, c->presence_penalty);
    new.frequency_penalty = or_default(s->frequency_penalty, c->frequency_penalty);
    new.top_k = s->top_k == NYB_UNSET ? c->top_k : s->top_k;
    new.max_tokens = s->max_tokens == NYB_UNSET ? c->max_tokens : s->max_tokens;
    TRY(resolve_doubles(&resolved, &unset, &new, err)); /* as a request that says nothing finds them */
    TRY(resolve_ints(&resolved, &unset, &new, INT32_MAX, err));
    *c = new;
    return NYB_OK;
}

static enum nyb_code check_token(const char *name, int32_t token, int vocab, struct nyb_err *err)
{
    char rule[96];
    snprintf(rule, sizeof(rule), "token ids of the vocabulary, in [0, %d)", vocab);
    return token >= 0 && token < vocab ? NYB_OK : refuse_int(err, name, rule, token);
}

static enum nyb_code resolve_lists(struct params *p, struct arena *a, const struct nyb_sampling *in,
                                   const struct params_context *c, struct nyb_err *err)
{
    if (in->n_stop < 0 || in->n_stop > PARAMS_STOP_MAX)
        return refuse_int(err, "stop", "at most 64 strings", in->n_stop);
    if (in->n_stop_token < 0 || in->n_stop_token > PARAMS_STOP_TOKEN_MAX)
        return refuse_int(err, "stop_token_ids", "at most 128 ids", in->n_stop_token);
    if (in->n_logit_bias < 0 || in->n_logit_bias > PARAMS_LOGIT_BIAS_MAX)
        return refuse_int(err, "logit_bias", "at most 4096 ids", in->n_logit_bias);
    if (in->n_bad_words < 0 || in->n_bad_words > PARAMS_BAD_WORDS_MAX)
        return refuse_int(err, "bad_words", "at most 128 strings", in->n_bad_words);

    p->n_stop = in->n_stop;
    p->stop = arena_alloc(a, (size_t)in->n_stop + 1, sizeof(*p->stop));
    for (int i = 0; i < in->n_stop; i++) {
        size_t len = strlen(in->stop[i]);
        if (len == 0)
            return refuse(err, "stop", "strings that are not empty", "\"\"");
        if (len > TEXT_MAX)
            return refuse_int(err, "stop", "strings of at most 4096 bytes", (int64_t)len);
        p->stop[i] = arena_strdup(a, in->stop[i]);
    }
    for (int i = 0; i < in->n_bad_words; i++)
        if (!*in->bad_words[i])
            return refuse(err, "bad_words", "strings that are not empty", "\"\"");

    p->n_stop_token = in->n_stop_token;
    p->stop_token = arena_alloc(a, (size_t)in->n_stop_token + 1, sizeof(*p->stop_token));
    for (int i = 0; i < in->n_stop_token; i++) {
        TRY(check_token("stop_token_ids", in->stop_token[i], c->vocab, err));
        p->stop_token[i] = in->stop_token[i];
    }
    p->n_bias = in->n_logit_bias;
    p->bias = arena_alloc(a, (size_t)in->n_logit_bias + 1, sizeof(*p->bias));
    for (int i = 0; i < in->n_logit_bias; i++) {
        struct nyb_logit_bias b = in->logit_bias[i];
        TRY(check_token("logit_bias", b.token, c->vocab, err));
        if (isnan(b.bias))
            return refuse(err, "logit_bias", "numbers", "nan");
        b.bias = fmin(fmax(b.bias, -100), 100);
        p->bias[i] = b;
    }
    return NYB_OK;
}

static enum nyb_code copy_run(struct params_run *out, struct arena *a, const struct nyb_run *in,
                              const char *name, int vocab, struct nyb_err *err)
{
    if (in->n < 1 || in->n > PARAMS_RUN_TOKEN_MAX)
        return refuse_int(err, name, "runs of 1 to 1024 ids", in->n);
    int32_t *tok = arena_alloc(a, (size_t)in->n, sizeof(*tok));
    for (int i = 0; i < in->n; i++) {
        TRY(check_token(name, in->token[i], vocab, err));
        tok[i] = in->token[i];
    }
    *out = (struct params_run){tok, in->n};
    return NYB_OK;
}

static enum nyb_code resolve_bad(struct params *p, struct arena *a, const struct nyb_sampling *in, int vocab,
                                 struct nyb_err *err)
{
    if (in->n_bad_run < 0 || in->n_bad_run > PARAMS_BAD_RUN_MAX)
        return refuse_int(err, "bad_words_token_ids", "at most 1024 runs of ids", in->n_bad_run);
    size_t n = (size_t)in->n_bad_run + 2 * (size_t)in->n_bad_words;
    p->bad = n ? arena_alloc(a, n, sizeof(*p->bad)) : NULL;
    for (int i = 0; i < in->n_bad_run; i++)
        TRY(copy_run(&p->bad[p->n_bad++], a, &in->bad_run[i], "bad_words_token_ids", vocab, err));
    return NYB_OK;
}

static int compare_ids(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static enum nyb_code resolve_allowed(struct params *p, struct arena *a, const struct nyb_sampling *in,
                                     int vocab, struct nyb_err *err)
{
    if (!in->allowed_token)
        return NYB_OK;
    if (in->n_allowed_token < 1)
        return refuse_int(err, "allowed_token_ids", "at least one id", in->n_allowed_token);
    p->n_allowed = in->n_allowed_token;
    p->allowed = arena_alloc(a, (size_t)p->n_allowed, sizeof(*p->allowed));
    for (int i = 0; i < p->n_allowed; i++) {
        TRY(check_token("allowed_token_ids", in->allowed_token[i], vocab, err));
        p->allowed[i] = in->allowed_token[i];
    }
    qsort(p->allowed, (size_t)p->n_allowed, sizeof(*p->allowed), compare_ids);
    return NYB_OK;
}

static enum nyb_code resolve_think(struct params *p, struct arena *a, const struct nyb_sampling *in,
                                   int vocab, struct nyb_err *err)
{
    static const char name[] = "reasoning_max_tokens";
    const struct nyb_run open = {in->think_open, in->n_think_open};
    const struct nyb_run close = {in->think_close, in->n_think_close};
    p->think_max = -1;
    if (in->think_max == NYB_UNSET)
        return NYB_OK;
    if (in->think_max < 1)
        return refuse_int(err, name, "at least 1", in->think_max);
    p->think_max = in->think_max;
    if (open.n)
        TRY(copy_run(&p->think_open, a, &open, name, vocab, err));
    return copy_run(&p->think_close, a, &close, name, vocab, err);
}

enum nyb_code params_resolve(struct params *out, struct arena *a, const struct nyb_sampling *in,
                             const struct params_context *c, size_t n_prompt, struct nyb_err *err)
{
    struct nyb_sampling unset;
    nyb_sampling_init(&unset);
    if (!in)
        in = &unset;
    if (n_prompt == 0)
        return err_at(err, NYB_E_ARG, "prompt", -1, "the prompt must hold at least one token");
    if ((uint64_t)n_prompt >= (uint64_t)c->max_len)
        return err_at(err, NYB_E_TOO_LONG, "prompt", -1,
                      "This model's maximum context length is %lld tokens. However, your prompt has %zu "
                      "tokens: the prompt is too long for an answer to fit. Please shorten it.",
                      (long long)c->max_len, n_prompt);
    *out = (struct params){.ignore_eos = in->ignore_eos,
                           .keep_special = in->keep_special_tokens,
                           .include_stop = in->include_stop,
                           .eos = c->eos,
                           .n_eos = c->n_eos};
    TRY(resolve_doubles(out, in, c, err));
    TRY(resolve_ints(out, in, c, (int)(c->max_len - (int64_t)n_prompt), err));
    TRY(resolve_lists(out, a, in, c, err));
    TRY(resolve_bad(out, a, in, c->vocab, err));
    TRY(resolve_allowed(out, a, in, c->vocab, err));
    return resolve_think(out, a, in, c->vocab, err);
}

static bool list_has(const int32_t *list, int n, int32_t token)
{
    for (int i = 0; i < n; i++)
        if (list[i] == token)
            return true;
    return false;
}

bool params_is_eos(const struct params *p, int32_t token)
{
    return !p->ignore_eos && list_has(p->eos, p->n_eos, token);
}

bool params_is_stop_token(const struct params *p, int32_t token)
{
    return list_has(p->stop_token, p->n_stop_token, token);
}

static bool has_run(const int32_t *tok, int n, const struct params_run *run)
{
    for (int i = 0; i + run->n <= n; i++)
        if (!memcmp(tok + i, run->tok, (size_t)run->n * sizeof(*tok)))
            return true;
    return false;
}

int32_t params_forced_token(const struct params *p, const int32_t *out, int n_out)
{
    int at = n_out - p->think_max;
    if (p->think_max < 0 || at < 0 || at >= p->think_close.n)
        return -1;
    bool reasons = p->think_open.n == 0 || has_run(out, p->think_max, &p->think_open);
    return reasons && !has_run(out, p->think_max, &p->think_close) ? p->think_close.tok[at] : -1;
}

void nyb_sampling_init(struct nyb_sampling *s)
{
    *s = (struct nyb_sampling){.temperature = NAN,
                               .top_p = NAN,
                               .min_p = NAN,
                               .repetition_penalty = NAN,
                               .presence_penalty = NAN,
                               .frequency_penalty = NAN,
                               .top_k = NYB_UNSET,
                               .max_tokens = NYB_UNSET,
                               .min_tokens = NYB_UNSET,
                               .logprobs = NYB_UNSET,
                               .prompt_logprobs = NYB_UNSET,
                               .think_max = NYB_UNSET,
                               .seed = -1};
}
