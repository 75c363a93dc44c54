/* What a request asks of the sampler: checked, with the defaults filled in. */
#ifndef NYB_ENGINE_PARAMS_H
#define NYB_ENGINE_PARAMS_H

#include "base/arena.h"
#include "base/err.h"

#define PARAMS_STOP_MAX        64
#define PARAMS_STOP_TOKEN_MAX  128
#define PARAMS_BAD_WORDS_MAX   128
#define PARAMS_BAD_RUN_MAX     1024
#define PARAMS_RUN_TOKEN_MAX   1024 /* ids of one run */
#define PARAMS_LOGIT_BIAS_MAX  4096
#define PARAMS_GREEDY_BELOW    1e-5 /* temperature */
#define PARAMS_TEMPERATURE_MIN 0.01

/* Ids that must not follow one another. */
struct params_run {
    const int32_t *tok; /* (n) */
    int n;
};

struct params {
    float temperature; /* 0: greedy */
    float top_p, min_p;
    float repetition, presence, frequency;
    int top_k; /* 0: off */
    int max_tokens, min_tokens;
    int n_logprob, n_prompt_logprob; /* -1: none */
    uint64_t seed;
    bool has_seed;
    bool ignore_eos, keep_special, include_stop;
    const int32_t *eos; /* (n_eos) */
    int n_eos;
    int32_t *stop_token; /* (n_stop_token) */
    int n_stop_token;
    struct nyb_logit_bias *bias; /* (n_bias) clamped */
    int n_bias;
    struct params_run *bad; /* (n_bad) */
    int n_bad;
    int32_t *allowed; /* (n_allowed) rising; NULL: everything */
    int n_allowed;
    int think_max; /* -1: no limit */
    struct params_run think_open, think_close;
    char **stop; /* (n_stop) */
    int n_stop;
};

/* What the checkpoint and the engine say. */
struct params_context {
    int vocab;
    int64_t max_len; /* prompt + answer */
    int max_logprobs;
    /* What requests leave unset. */
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int top_k, max_tokens; /* max_tokens NYB_UNSET: what the context leaves */
    const int32_t *eos;    /* (n_eos) lives longer than any request */
    int n_eos;
};
/* The defaults when a checkpoint says nothing. */
void params_context_init(struct params_context *c);
/* Others where s says them, out of range NYB_E_RANGE: temperature, top_p, min_p, the three penalties, top_k,
 * max_tokens. */
enum nyb_code params_context_set(struct params_context *c, const struct nyb_sampling *s,
                                 struct nyb_err *err) NYB_MUST_CHECK;

/* Check `in` for a prompt of n_prompt tokens and copy it to *out; lists live in the arena. Of `bad` the runs
 * of ids alone, with room for two more a word: words need a tokenizer, and the caller adds them. */
enum nyb_code params_resolve(struct params *out, struct arena *a, const struct nyb_sampling *in,
                             const struct params_context *c, size_t n_prompt,
                             struct nyb_err *err) NYB_MUST_CHECK;

/* Whether this id ends an answer by itself. */
bool params_is_eos(const struct params *p, int32_t token);
bool params_is_stop_token(const struct params *p, int32_t token);
/* The token that must follow these for the sake of think_max, or -1. out: (n_out) */
int32_t params_forced_token(const struct params *p, const int32_t *out, int n_out);

#endif
