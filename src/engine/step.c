#include "engine/step.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/step_sample.h"

/* Logits of scored prompts. The pages come with the first request that wants some. */
#define SCORE_BYTES ((int64_t)256 << 20)

/* Prompt tokens scored a step: all of it, unless their logits would take too much memory. */
static int score_rows(int vocab, int max_tokens)
{
    int64_t rows = SCORE_BYTES / ((int64_t)vocab * (int64_t)sizeof(float));
    rows = rows < 16 ? 16 : rows;
    return (int)(rows > max_tokens ? max_tokens : rows);
}

static enum nyb_code allocate(struct step *s, int n_out, struct nyb_err *err)
{
    size_t bytes = 0, n_seq = (size_t)s->option.max_num_seqs;
    if (size_mul((size_t)n_out, (size_t)s->runner.vocab * sizeof(float), &bytes))
        s->logits =
            s->runner.logits_alloc ? s->runner.logits_alloc(s->runner.self, bytes) : mem_try_aligned(bytes);
    s->live = mem_try_alloc((size_t)s->option.max_live, sizeof(struct request *));
    s->sampled = mem_try_alloc(n_seq, sizeof(*s->sampled));
    s->unscorable = mem_try_alloc(n_seq, sizeof(*s->unscorable));
    s->out_owner = mem_try_alloc((size_t)n_out, sizeof(*s->out_owner));
    s->draw = mem_try_alloc((size_t)n_out, sizeof(*s->draw));
    s->drawn = mem_try_alloc((size_t)n_out, sizeof(*s->drawn));
    s->todo = mem_try_alloc((size_t)n_out, sizeof(*s->todo));
    s->together = mem_try_alloc((size_t)n_out, sizeof(*s->together));
    s->logprob = mem_try_alloc(n_seq * (size_t)(1 + s->option.max_logprobs), sizeof(*s->logprob));
    if (s->logits && s->live && s->sampled && s->unscorable && s->out_owner && s->draw && s->drawn &&
        s->todo && s->together && s->logprob)
        return NYB_OK;
    return err_set(err, NYB_E_MEMORY, "no memory for the logits of %d sequences: %zu bytes", n_out, bytes);
}

enum nyb_code step_open(struct step *s, const struct runner *runner, const struct step_options *o,
                        struct nyb_err *err)
{
    memset(s, 0, sizeof(*s));
    s->runner = *runner;
    s->option = *o;
    s->version = o->weight_version ? version_new(0, o->weight_version) : NULL;
    tally_init_tokens(&s->stats.tokens);
    tally_init_seconds(&s->stats.seconds);
    int n_score = score_rows(runner->vocab, o->max_num_batched_tokens);
    const struct sched_limits limit = {.max_num_seqs = o->max_num_seqs,
                                       .max_num_batched_tokens = o->max_num_batched_tokens,
                                       .max_len = o->max_len,
                                       .max_live = o->max_live,
                                       .n_rank = o->n_rank,
                                       .max_score_rows = n_score};
    int n_worker = runner->pool ? pool_size(runner->pool) : 1;
    enum nyb_code code = runner->reserve(runner->self, o->n_block, err);
    if (code == NYB_OK)
        code = kv_open(&s->kv, o->n_block, o->prefix_cache, err);
    if (code == NYB_OK)
        code = sched_open(&s->sched, &limit, s->kv, err);
    if (code == NYB_OK)
        code = sampler_open(&s->sampler, runner->vocab, n_worker, err);
    if (code == NYB_OK)
        code = allocate(s, o->max_num_seqs + n_score, err);
    if (code != NYB_OK)
        step_close(s);
    return code;
}

void step_close(struct step *s)
{
    ASSERT(s->n_live == 0);
    sched_close(&s->sched);
    kv_close(s->kv);
    sampler_close(s->sampler);
    version_drop(s->version);
    free(s->live);
    if (s->runner.logits_free)
        s->runner.logits_free(s->runner.self, s->logits);
    else
        free(s->logits);
    free(s->sampled);
    free(s->unscorable);
    free(s->out_owner);
    free(s->draw);
    free(s->drawn);
    free(s->todo);
    free(s->together);
    free(s->logprob);
    memset(s, 0, sizeof(*s));
}

void step_add(struct step *s, struct request *r)
{
    ASSERT(s->n_live < s->option.max_live);
    atomic_fetch_add(&r->owners, 1);
    r->live_at = s->n_live;
    s->live[s->n_live++] = r;
    sched_add(&s->sched, r);
    if (atomic_load(&r->cancelled)) /* its call for attention may have come before it did */
        s->attention_seen = atomic_load(&s->attention) - 1;
    atomic_fetch_add_explicit(&s->stats.prompt_tokens, (uint64_t)r->n_prompt, memory_order_relaxed);
}

/* ---- ends ------------------------------------------------------------------------------------------ */

static int cached_tokens(const struct request *r)
{
    return r->n_cached < 0 ? 0 : r->n_cached < r->n_prompt ? r->n_cached : r->n_prompt;
}

/* The last reply, then let go. */
static void end(struct step *s, struct request *r, const struct reply *reply,
                const struct nyb_logprob *logprob)
{
    sched_remove(&s->sched, r);
    struct request *last = s->live[--s->n_live];
    s->live[r->live_at] = last;
    last->live_at = r->live_at;
    atomic_fetch_add_explicit(&s->stats.finished[reply->finish], 1, memory_order_relaxed);
    request_emit(r, reply, logprob);
    request_release(r);
}

static void end_without_token(struct step *s, struct request *r, enum nyb_finish finish)
{
    const struct reply reply = {.token = -1,
                                .finish = finish,
                                .stop_token = -1,
                                .cached_tokens = cached_tokens(r),
                                .time_ns = clock_ns()};
    end(s, r, &reply, NULL);
}

static void fail(struct step *s, struct request *r, const struct nyb_err *err)
{
    r->error = *err;
    end_without_token(s, r, NYB_FINISH_ERROR);
}

void step_abort_all(struct step *s)
{
    while (s->n_live > 0)
        end_without_token(s, s->live[s->n_live - 1], NYB_FINISH_ABORT);
}

int step_abort_id(struct step *s, const char *id)
{
    int n = 0;
    for (int i = s->n_live - 1; i >= 0; i--) /* the last one takes the place of what ends */
        if (s->live[i]->id && !strcmp(s->live[i]->id, id)) {
            end_without_token(s, s->live[i], NYB_FINISH_ABORT);
            n++;
        }
    return n;
}

/* ---- other weights ----------------------------------------------------------------------------------- */

int step_started(const struct step *s)
{
    int n = 0;
    for (int i = 0; i < s->n_live; i++)
        n += sched_has_started(s->live[i]);
    return n;
}

void step_flush_cache(struct step *s)
{
    kv_set_generation(s->kv, ++s->n_root);
}

void step_set_version(struct step *s, struct version *v)
{
    version_drop(s->version);
    s->version = v;
}

void step_retract_all(struct step *s)
{
    sched_retract_all(&s->sched);
    for (int i = 0; i < s->n_live; i++) {
        struct request *r = s->live[i];
        if (r->n_tok > r->n_prompt)
            continue;
        version_drop(r->first_version);
        r->first_version = NULL;
        if (r->prompt_logprob) /* scores of one prompt are by one set of weights */
            r->n_scored = 1;
    }
}

/* ---- attention --------------------------------------------------------------------------------------- */

/* Readers have called: end what was cancelled, queue what has room again. */
static void attend(struct step *s)
{
    unsigned now = atomic_load(&s->attention);
    if (now == s->attention_seen)
        return;
    s->attention_seen = now;
    for (int i = s->n_live - 1; i >= 0; i--) {
        struct request *r = s->live[i];
        if (atomic_load(&r->cancelled))
            end_without_token(s, r, NYB_FINISH_ABORT);
        else if (r->state == REQUEST_PARKED && !atomic_load(&r->stalled))
            sched_add(&s->sched, r);
    }
}

/* ---- delivery -------------------------------------------------------------------------------------- */

static void deliver_token(struct step *s, struct request *r, int32_t token, const struct nyb_logprob *logprob,
                          uint64_t now)
{
    r->tok[r->n_tok++] = token;
    if (r->history)
        history_add_output(r->history, token);
    struct reply reply = {.token = token,
                          .stop_token = -1,
                          .cached_tokens = cached_tokens(r),
                          .time_ns = now,
                          .version = s->version};
    bool may_end =
        r->n_tok - r->n_prompt >= r->p.min_tokens || (r->constraint && constraint_is_over(r->constraint));
    if (r->constraint)
        constraint_take(r->constraint, &r->p, token);
    if (may_end && params_is_eos(&r->p, token)) {
        reply.finish = NYB_FINISH_STOP;
    } else if (may_end && params_is_stop_token(&r->p, token)) {
        reply.finish = NYB_FINISH_STOP;
        reply.stop_token = token;
    } else if (r->n_tok == r->n_max) {
        reply.finish = NYB_FINISH_LENGTH;
    }
    atomic_fetch_add_explicit(&s->stats.generation_tokens, 1, memory_order_relaxed);
    if (r->p.n_logprob < 0)
        logprob = NULL;
    if (reply.finish == NYB_FINISH_NONE)
        request_emit(r, &reply, logprob);
    else
        end(s, r, &reply, logprob);
}

/* No logit is finite: the model's fault, unless the request itself forbids tokens. */
static void err_nothing_left(struct nyb_err *err, const struct request *r)
{
    const struct params *p = &r->p;
    const char *name = p->allowed      ? "allowed_token_ids"
                       : p->n_bad      ? "bad_words"
                       : r->constraint ? "constraint"
                                       : "min_tokens";
    if (p->allowed || p->n_bad || p->min_tokens || r->constraint)
        err_at(err, NYB_E_ARG, name, -1,
               "%s leaves no token to choose from after %d tokens of the answer. (parameter=%s)", name,
               r->n_tok - r->n_prompt, name);
    else
        err_set(err, NYB_E_INTERNAL, "the model's logits for token %d leave nothing to choose from",
                r->n_tok);
}

static void deliver(struct step *s)
{
    uint64_t now = clock_ns();
    /* Backwards: what ends leaves the plan, and only later rows move up. */
    for (int i = s->sched.n_row - 1; i >= 0; i--) {
        const struct sched_row row = s->sched.row[i];
        row.r->n_scored += row.n_score;
        if (s->sampled[i] >= 0) {
            deliver_token(s, row.r, s->sampled[i], step_sample_logprob(s, i), now);
        } else if (s->sampled[i] == -2) {
            struct nyb_err err;
            err_nothing_left(&err, row.r);
            fail(s, row.r, &err);
        }
    }
}

static void publish(struct step *s)
{
    struct step_stats *t = &s->stats;
    atomic_store_explicit(&t->running, s->sched.n_running, memory_order_relaxed);
    atomic_store_explicit(&t->waiting, s->sched.n_waiting, memory_order_relaxed);
    atomic_store_explicit(&t->stalled, s->sched.n_parked, memory_order_relaxed);
    atomic_store_explicit(&t->blocks_used, kv_block_count(s->kv) - kv_free_count(s->kv),
                          memory_order_relaxed);
    atomic_store_explicit(&t->preemptions, s->sched.n_preemption, memory_order_relaxed);
    atomic_store_explicit(&t->prefix_queries, s->sched.prefix_queries, memory_order_relaxed);
    atomic_store_explicit(&t->prefix_hits, s->sched.prefix_hits, memory_order_relaxed);
}

/* The weights that compute a request's first token are the first of its answer. */
static void note_versions(struct step *s)
{
    for (int i = 0; s->version && i < s->sched.n_row; i++)
        if (!s->sched.row[i].r->first_version)
            s->sched.row[i].r->first_version = version_share(s->version);
}

/* The forward pass failed: none of its rows can go on. */
static void fail_batch(struct step *s, const struct nyb_err *err)
{
    s->n_failed++;
    s->error = *err;
    for (int i = s->sched.n_row - 1; i >= 0; i--)
        fail(s, s->sched.row[i].r, err);
}

static enum nyb_code forward(struct step *s, const struct batch *b, struct nyb_err *err)
{
    float *logits = b->n_out ? s->logits : NULL;
    step_sample_plan(s);
    return s->n_draw > 0 ? s->runner.draw(s->runner.self, b, s->draw, s->drawn, logits, err)
                         : s->runner.forward(s->runner.self, b, logits, err);
}

bool step_run(struct step *s)
{
    struct batch b;
    uint64_t begin = clock_ns();
    attend(s);
    if (atomic_load_explicit(&s->paused, memory_order_relaxed) || !sched_plan(&s->sched, &b)) {
        publish(s);
        return false;
    }
    struct nyb_err err = {.code = NYB_OK};
    if (forward(s, &b, &err) == NYB_OK) {
        sched_commit(&s->sched);
        note_versions(s);
        step_sample_run(s, b.n_out);
        deliver(s);
    } else {
        fail_batch(s, &err);
    }
    atomic_fetch_add_explicit(&s->stats.steps, 1, memory_order_relaxed);
    tally_add(&s->stats.tokens, b.n_tok);
    tally_add(&s->stats.seconds, (double)(clock_ns() - begin) * 1e-9);
    publish(s);
    if (s->runner.between)
        s->runner.between(s->runner.between_arg);
    return true;
}
