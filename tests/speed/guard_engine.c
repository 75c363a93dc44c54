/* The sampler over 150k logits, and a step of the engine around a model that costs nothing. */
#include <math.h>
#include <string.h>

#include "engine/step.h"
#include "guard.h"
#include "kernels/checkkern.h"

#define VOCAB 151936 /* Qwen3's */

static struct params resolve(struct arena *arena, const struct nyb_sampling *s, int vocab)
{
    struct params p;
    struct params_context context;
    params_context_init(&context);
    context.vocab = vocab;
    context.max_len = 1 << 20;
    guard_must(params_resolve(&p, arena, s, &context, 1, NULL) == NYB_OK, "the parameters are refused");
    return p;
}

/* ---- the sampler --------------------------------------------------------------------------------- */

struct sampling {
    struct sampler *sampler;
    struct params p;
    struct sampler_input in;
    const float *logits; /* (VOCAB) as the model gave them */
    float *row[2];       /* (VOCAB) two copies: the sampler overwrites what it is given */
    int n_call;
};

/* a: 0 greedy, 1 top_p, 2 top_k and top_p, 3 min_p. */
static void *open_draw(const struct guard_env *env, const struct guard_case *c)
{
    struct sampling *d = arena_calloc(env->arena, 1, sizeof(*d));
    float *logits = arena_alloc(env->arena, VOCAB, sizeof(*logits));
    uint64_t seed = 1;
    struct nyb_sampling s;
    for (int i = 0; i < VOCAB; i++) {
        float a = checkkern_float(&seed), b = checkkern_float(&seed);
        logits[i] = 6 * (a + b * a * b); /* a peak and long tails */
    }
    nyb_sampling_init(&s);
    s.temperature = c->a ? 0.8 : 0;
    s.seed = 7;
    if (c->a == 1 || c->a == 2)
        s.top_p = 0.9;
    if (c->a == 2)
        s.top_k = 50;
    if (c->a == 3)
        s.min_p = 0.05;
    d->p = resolve(env->arena, &s, VOCAB);
    d->logits = logits;
    d->in = (struct sampler_input){.p = &d->p};
    for (int i = 0; i < 2; i++) {
        d->row[i] = arena_alloc(env->arena, VOCAB, sizeof(float));
        memcpy(d->row[i], logits, VOCAB * sizeof(float));
    }
    guard_must(sampler_open(&d->sampler, VOCAB, 1, NULL) == NYB_OK, "no sampler");
    return d;
}

static void call_draw(void *state)
{
    struct sampling *d = state;
    /* A copy within the call that is counted, the second, would be most of it. */
    d->in.logits = d->row[d->n_call & 1];
    if (d->n_call++ > 1)
        memcpy(d->in.logits, d->logits, VOCAB * sizeof(float));
    guard_must(sampler_row(d->sampler, 0, &d->in, NULL) >= 0, "nothing was sampled");
}

static void close_draw(void *state)
{
    struct sampling *d = state;
    sampler_close(d->sampler);
}

/* ---- a step -------------------------------------------------------------------------------------- */

#define SMALL_VOCAB 32
#define SEQS_MAX    64
#define PROMPT      70

struct engine_case {
    struct step step;
    struct bell bell;
    struct request *r[SEQS_MAX];
    int n;
};

static enum nyb_code reserve(void *self, int n_block, struct nyb_err *err)
{
    (void)self;
    (void)n_block;
    (void)err;
    return NYB_OK;
}

static enum nyb_code forward(void *self, const struct batch *b, float *logits, struct nyb_err *err)
{
    (void)self;
    (void)err;
    for (int i = 0; i < b->n_out * SMALL_VOCAB; i++)
        logits[i] = (float)(i % 7);
    return NYB_OK;
}

static void drain(struct engine_case *e)
{
    struct reply reply;
    const struct nyb_logprob *logprob;
    for (int i = 0; i < e->n; i++)
        while (request_peek(e->r[i], &reply, &logprob))
            request_pop(e->r[i]);
}

/* a: sequences, all past their prompts. */
static void *open_step(const struct guard_env *env, const struct guard_case *c)
{
    struct engine_case *e = arena_calloc(env->arena, 1, sizeof(*e));
    const struct runner runner = {.vocab = SMALL_VOCAB, .reserve = reserve, .forward = forward};
    const struct step_options o = {.max_num_seqs = c->a,
                                   .max_num_batched_tokens = c->a * PROMPT,
                                   .max_len = 1000,
                                   .max_live = c->a,
                                   .n_block = c->a * 16 + 1000 / KV_BLOCK + 1};
    struct nyb_sampling s;
    int32_t prompt[PROMPT];
    nyb_sampling_init(&s);
    s.temperature = 0;
    s.max_tokens = 500;
    s.ignore_eos = true;
    e->n = c->a;
    guard_must(c->a <= SEQS_MAX && step_open(&e->step, &runner, &o, NULL) == NYB_OK, "no engine");
    for (int i = 0; i < e->n; i++) {
        for (int k = 0; k < PROMPT; k++)
            prompt[k] = (i * 5 + k) % SMALL_VOCAB;
        e->r[i] = request_new();
        e->r[i]->p = resolve(&e->r[i]->arena, &s, SMALL_VOCAB);
        request_prepare(e->r[i], prompt, PROMPT, SMALL_VOCAB);
        e->r[i]->key = i;
        e->r[i]->attention = &e->step.attention;
        e->r[i]->engine_bell = &e->bell;
        step_add(&e->step, e->r[i]);
    }
    for (int i = 0; i < 4; i++)
        guard_must(step_run(&e->step), "the engine has nothing to do");
    drain(e);
    return e;
}

static void call_step(void *state)
{
    struct engine_case *e = state;
    guard_must(step_run(&e->step), "the engine has nothing to do");
}

static void close_step(void *state)
{
    struct engine_case *e = state;
    step_abort_all(&e->step);
    drain(e);
    for (int i = 0; i < e->n; i++)
        request_release(e->r[i]);
    step_close(&e->step);
}

struct guard_list guard_engine(void)
{
    static const struct guard_case list[] = {
        {"sampler, greedy, 151936 logits", open_draw, call_draw, close_draw, 0, 0, 0, 0},
        {"sampler, top_p 0.9, 151936 logits", open_draw, call_draw, close_draw, 1, 0, 0, 0},
        {"sampler, top_k 50 and top_p 0.9, 151936 logits", open_draw, call_draw, close_draw, 2, 0, 0, 0},
        {"sampler, min_p 0.05, 151936 logits", open_draw, call_draw, close_draw, 3, 0, 0, 0},
        {"engine, a step of 1 sequence", open_step, call_step, close_step, 1, 0, 0, 0},
        {"engine, a step of 32 sequences", open_step, call_step, close_step, 32, 0, 0, 0},
    };
    return (struct guard_list){list, sizeof(list) / sizeof(list[0])};
}
