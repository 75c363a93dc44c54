#include "cli/bench_engine.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/step.h"

#define STEPS_MAX 100000 /* to fill the cache with the prompts */

struct run {
    const struct bench_engine *o;
    struct step step;
    struct bell bell;
    int64_t len;          /* of a sequence, at most */
    struct request **r;   /* (batch) */
    struct detok **detok; /* (batch) or NULL */
    struct buf text;
    struct bench_profile profile;
    uint64_t begin_ns;            /* of the step */
    uint64_t before_ns, after_ns; /* its forward pass */
    bool measuring;
};

/* ---- the runner: the model's, with its stages watched --------------------------------------------- */

static enum nyb_code reserve(void *self, int n_block, struct nyb_err *err)
{
    struct run *run = self;
    return model_kv_reserve(run->o->model, n_block, err);
}

static void begin_forward(struct run *run)
{
    run->before_ns = clock_ns();
    if (run->measuring)
        bench_profile_stage(&run->profile, -1, "schedule", run->before_ns - run->begin_ns);
}

/* A GPU's step is one stage: to be watched inside it would be run another way. */
static void end_forward(struct run *run)
{
    run->after_ns = clock_ns();
    if (run->measuring && model_device_name(run->o->model))
        bench_profile_stage(&run->profile, -1, "the GPU's step", run->after_ns - run->before_ns);
}

static enum nyb_code forward(void *self, const struct batch *b, float *logits, struct nyb_err *err)
{
    struct run *run = self;
    const struct model_probe probe = {.arg = &run->profile, .stage = bench_profile_stage};
    bool watched = run->measuring && !model_device_name(run->o->model);
    begin_forward(run);
    enum nyb_code code = model_forward(run->o->model, b, logits, watched ? &probe : NULL, err);
    end_forward(run);
    return code;
}

static enum nyb_code draw(void *self, const struct batch *b, const struct draw *draw, int32_t *token,
                          float *logits, struct nyb_err *err)
{
    struct run *run = self;
    begin_forward(run);
    enum nyb_code code = model_forward_draw(run->o->model, b, draw, token, logits, err);
    end_forward(run);
    return code;
}

static float *logits_alloc(void *self, size_t bytes)
{
    struct run *run = self;
    return model_logits_alloc(run->o->model, bytes);
}

static void logits_free(void *self, float *logits)
{
    struct run *run = self;
    model_logits_free(run->o->model, logits);
}

/* ---- requests ------------------------------------------------------------------------------------- */

static enum nyb_code ask(struct run *run, int i, struct nyb_err *err)
{
    const struct bench_engine *o = run->o;
    int vocab = model_config(o->model)->vocab, n_prompt = o->depth > 0 ? o->depth : 1;
    int32_t *prompt = mem_alloc((size_t)n_prompt, sizeof(*prompt));
    uint64_t state = o->seed + (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
    for (int k = 0; k < n_prompt; k++) {
        state = state * UINT64_C(6364136223846793005) +
                UINT64_C(1442695040888963407); /* Knuth's MMIX generator */
        prompt[k] = (int32_t)((state >> 33) % (uint64_t)vocab);
    }
    struct params_context context;
    struct nyb_sampling s;
    params_context_init(&context);
    context.vocab = vocab;
    context.max_len = run->len;
    nyb_sampling_init(&s);
    s.temperature = BENCH_ENGINE_TEMPERATURE;
    s.top_p = BENCH_ENGINE_TOP_P;
    s.seed = i;
    s.ignore_eos = true;
    struct request *r = run->r[i] = request_new();
    enum nyb_code code = params_resolve(&r->p, &r->arena, &s, &context, (size_t)n_prompt, err);
    if (code == NYB_OK) {
        request_prepare(r, prompt, n_prompt, vocab);
        r->key = i;
        r->attention = &run->step.attention;
        r->engine_bell = &run->bell;
        step_add(&run->step, r);
    }
    free(prompt);
    return code;
}

/* Read every reply; returns the tokens. *error: of a request that failed. */
static int drain(struct run *run, const struct nyb_err **error)
{
    struct reply reply;
    const struct nyb_logprob *logprob;
    int n = 0;
    for (int i = 0; i < run->o->batch; i++)
        for (; run->r[i] && request_peek(run->r[i], &reply, &logprob); request_pop(run->r[i])) {
            if (reply.finish == NYB_FINISH_ERROR)
                *error = &run->r[i]->error;
            if (reply.token < 0)
                continue;
            n++;
            buf_clear(&run->text);
            if (run->detok)
                detok_push(run->detok[i], reply.token, &run->text);
        }
    return n;
}

static enum nyb_code one_step(struct run *run, int *n_token, struct nyb_err *err)
{
    const struct nyb_err *error = NULL;
    run->begin_ns = clock_ns();
    ASSERT(step_run(&run->step)); /* there is work until all have their tokens */
    uint64_t stepped = clock_ns();
    *n_token = drain(run, &error);
    uint64_t read = clock_ns();
    if (run->measuring) {
        bench_profile_stage(&run->profile, -1, "sample, deliver", stepped - run->after_ns);
        if (run->detok)
            bench_profile_stage(&run->profile, -1, "detokenize", read - stepped);
        bench_profile_step(&run->profile, run->begin_ns, (run->detok ? read : stepped) - run->begin_ns);
    }
    if (error && err)
        *err = *error;
    return error ? error->code : NYB_OK;
}

/* ---- a run ---------------------------------------------------------------------------------------- */

static void end_run(struct run *run)
{
    const struct nyb_err *error = NULL;
    step_abort_all(&run->step);
    drain(run, &error);
    for (int i = 0; i < run->o->batch; i++) {
        if (run->r[i])
            request_release(run->r[i]);
        run->r[i] = NULL;
        if (run->detok)
            detok_close(run->detok[i]);
    }
}

/* Until every sequence has had its first token, then gen steps of all of them. */
static enum nyb_code run_once(struct run *run, struct nyb_err *err)
{
    const struct bench_engine *o = run->o;
    enum nyb_code code = NYB_OK;
    int n = 0;
    run->profile = (struct bench_profile){0};
    run->measuring = false;
    for (int i = 0; i < o->batch; i++) {
        if (run->detok)
            run->detok[i] = detok_open(o->tokenizer, false);
        run->r[i] = NULL;
    }
    for (int i = 0; code == NYB_OK && i < o->batch; i++)
        code = ask(run, i, err);
    for (int i = 0, first = 0; code == NYB_OK && first < o->batch && i < STEPS_MAX; i++) {
        code = one_step(run, &n, err);
        first = 0;
        for (int k = 0; k < o->batch; k++)
            first += run->r[k]->n_tok > run->r[k]->n_prompt;
    }
    run->measuring = true;
    for (int i = 0; code == NYB_OK && i < o->gen; i++) {
        code = one_step(run, &n, err);
        if (code == NYB_OK && n != o->batch)
            code = err_set(err, NYB_E_INTERNAL, "a step of %d sequences made %d tokens", o->batch, n);
    }
    end_run(run);
    return code;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum nyb_code run_all(struct run *run, double *seconds, struct bench_profile *best,
                             struct nyb_err *err)
{
    enum nyb_code code = NYB_OK;
    for (int i = 0; code == NYB_OK && i < run->o->repeat; i++) {
        code = run_once(run, err);
        seconds[i] = (double)run->profile.step_ns * 1e-9;
        if (i == 0 || run->profile.step_ns < best->step_ns)
            *best = run->profile;
    }
    qsort(seconds, (size_t)run->o->repeat, sizeof(*seconds), by_value);
    return code;
}

enum nyb_code bench_engine_run(const struct bench_engine *o, double *seconds, struct bench_profile *best,
                               struct nyb_err *err)
{
    /* A sequence that is ahead waits for the others' prompts while it decodes: at most as many more tokens as
     * there are steps with prompts in them. */
    int64_t prompt = o->depth > 0 ? o->depth : 1, rows = o->chunk > o->batch ? o->chunk : o->batch;
    int64_t ahead = prompt * o->batch / (rows - o->batch + 1) + o->batch + 2, len = prompt + o->gen + ahead;
    int64_t blocks =
        ((len + KV_BLOCK - 1) / KV_BLOCK + 1) * o->batch; /* one spare each: nothing waits for room */
    if (len > model_config(o->model)->max_position || blocks > INT32_MAX / KV_BLOCK)
        return err_set(err, NYB_E_TOO_LONG,
                       "%d sequences of %lld tokens do not fit the model's context, or a cache", o->batch,
                       (long long)len);
    struct run run = {.o = o, .len = len};
    const struct runner runner = {.self = &run,
                                  .vocab = model_config(o->model)->vocab,
                                  .pool = model_pool(o->model),
                                  .reserve = reserve,
                                  .forward = forward,
                                  .draw = model_can_draw(o->model) > 0 ? draw : NULL,
                                  .most_top_k = model_can_draw(o->model),
                                  .logits_alloc = logits_alloc,
                                  .logits_free = logits_free};
    const struct step_options options = {.max_num_seqs = o->batch,
                                         .max_num_batched_tokens = (int)rows,
                                         .max_len = (int)len,
                                         .max_live = o->batch,
                                         .n_block = (int)blocks,
                                         .prefix_cache = true};
    TRY(step_open(&run.step, &runner, &options, err));
    run.r = mem_alloc((size_t)o->batch, sizeof(struct request *));
    run.detok = o->tokenizer ? mem_alloc((size_t)o->batch, sizeof(struct detok *)) : NULL;
    enum nyb_code code = run_all(&run, seconds, best, err);
    step_close(&run.step);
    free(run.r);
    free(run.detok);
    buf_free(&run.text);
    return code;
}
