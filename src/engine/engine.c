#include "engine/engine.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/inbox.h"
#include "engine/pulse.h"

#define IDLE_LOOK_MS    100
#define CONTROL_LOOK_MS 10 /* while a call waits for requests to finish, or for its deadline */

struct engine {
    struct step step;
    struct inbox inbox;
    struct pulse pulse;
    struct control control;
    struct bell bell; /* rings for the engine's thread */
    pthread_t thread;
    pthread_mutex_t stop_lock; /* only engine_stop's: one joins, the others wait for it */
    bool joined;
    int max_live;
    atomic_int n_live; /* submitted and not ended */
    atomic_int submitting;
    atomic_bool stopping;
};

/* n_live counts from the submitter's side, so it may only fall once the step has let go. */
static void settle_live(struct engine *e, int *known)
{
    int ended = *known - e->step.n_live;
    *known = e->step.n_live;
    if (ended > 0)
        atomic_fetch_sub(&e->n_live, ended);
}

/* A step was run: whether it failed, for the log and for whoever asks after the engine's health. */
static void note_step(struct engine *e, uint64_t *n_failed)
{
    const struct step *s = &e->step;
    bool failed = s->n_failed != *n_failed;
    *n_failed = s->n_failed;
    pulse_step(&e->pulse, clock_ns(), failed ? &s->error : NULL);
    if (failed) {
        char text[1200];
        log_error("engine: step failed: %s", err_format(&s->error, text, sizeof(text)));
    }
}

/* With nothing to do no step tells that a rank is gone. */
static void look_after_ranks(struct engine *e)
{
    struct nyb_err err;
    const struct runner *r = &e->step.runner;
    if (r->status && r->status(r->self, &err) != NYB_OK)
        pulse_step(&e->pulse, clock_ns(), &err);
}

static void *run(void *arg)
{
    struct engine *e = arg;
    int known = 0; /* live requests at the last count */
    uint64_t n_failed = 0;
    for (;;) {
        unsigned seen = bell_look(&e->bell);
        pulse_turn(&e->pulse, clock_ns());
        for (struct request *r; (r = inbox_pop(&e->inbox));) {
            step_add(&e->step, r);
            request_release(r); /* the inbox's share */
            known++;
        }
        if (atomic_load(&e->stopping))
            break;
        control_serve(&e->control, &e->step);
        bool ran = step_run(&e->step);
        if (ran)
            note_step(e, &n_failed);
        settle_live(e, &known);
        if (ran)
            continue;
        pulse_sleep(&e->pulse);
        int look_ms = e->step.runner.status ? IDLE_LOOK_MS : -1;
        bell_wait(&e->bell, seen, control_waiting(&e->control) ? CONTROL_LOOK_MS : look_ms);
        look_after_ranks(e);
    }
    while (atomic_load(&e->submitting) > 0)
        sched_yield();
    for (struct request *r; (r = inbox_pop(&e->inbox));) {
        step_add(&e->step, r);
        request_release(r);
    }
    step_abort_all(&e->step);
    control_close(&e->control);
    return NULL;
}

enum nyb_code engine_open(struct engine **out, const struct runner *runner, const struct step_options *o,
                          int stuck_ms, struct nyb_err *err)
{
    struct engine *e = mem_try_aligned(sizeof(*e));
    if (!e)
        return err_set(err, NYB_E_MEMORY, "no memory for the engine");
    memset(e, 0, sizeof(*e));
    e->max_live = o->max_live;
    enum nyb_code code = step_open(&e->step, runner, o, err);
    if (code != NYB_OK) {
        free(e);
        return code;
    }
    code = inbox_open(&e->inbox, (size_t)o->max_live, err);
    pulse_open(&e->pulse, stuck_ms);
    control_open(&e->control);
    pthread_mutex_init(&e->stop_lock, NULL);
    int failed = code == NYB_OK ? pthread_create(&e->thread, NULL, run, e) : 0;
    if (failed)
        code = err_set(err, NYB_E_MEMORY, "cannot start the engine's thread: %s", strerror(failed));
    if (code != NYB_OK) {
        step_close(&e->step);
        inbox_close(&e->inbox);
        pulse_close(&e->pulse);
        control_free(&e->control);
        pthread_mutex_destroy(&e->stop_lock);
        free(e);
        return code;
    }
    pthread_setname_np(e->thread, "engine");
    *out = e;
    return NYB_OK;
}

void engine_stop(struct engine *e)
{
    atomic_store(&e->stopping, true);
    bell_ring(&e->bell);
    pthread_mutex_lock(&e->stop_lock);
    if (!e->joined)
        pthread_join(e->thread, NULL);
    e->joined = true;
    atomic_store(&e->pulse.stopped, true);
    pthread_mutex_unlock(&e->stop_lock);
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    engine_stop(e);
    step_close(&e->step);
    inbox_close(&e->inbox);
    pulse_close(&e->pulse);
    control_free(&e->control);
    pthread_mutex_destroy(&e->stop_lock);
    free(e);
}

static enum nyb_code submit(struct engine *e, struct request *r, struct nyb_err *err)
{
    if (atomic_load(&e->stopping))
        return err_set(err, NYB_E_CLOSED, "the engine is shutting down");
    if (atomic_fetch_add(&e->n_live, 1) >= e->max_live) {
        atomic_fetch_sub(&e->n_live, 1);
        return err_set(err, NYB_E_BUSY, "the queue is full: %d requests are running or waiting", e->max_live);
    }
    atomic_fetch_add(&r->owners, 1);
    bool pushed = inbox_push(&e->inbox, r);
    ASSERT(pushed); /* it has max_live places */
    pulse_submit(&e->pulse, r->submitted_ns);
    bell_ring(&e->bell);
    return NYB_OK;
}

enum nyb_code engine_submit(struct engine *e, struct request *r, int priority, struct nyb_err *err)
{
    r->submitted_ns = clock_ns();
    r->key = (int64_t)(r->submitted_ns / 1000) + (int64_t)priority * SCHED_PRIORITY_US;
    r->attention = &e->step.attention;
    r->engine_bell = &e->bell;
    atomic_fetch_add(&e->submitting, 1);
    enum nyb_code code = submit(e, r, err);
    atomic_fetch_sub(&e->submitting, 1);
    return code;
}

static uint64_t load64(const atomic_uint_fast64_t *x)
{
    return atomic_load_explicit(x, memory_order_relaxed);
}

void engine_stats(const struct engine *e, struct nyb_stats *out)
{
    const struct step_stats *t = &e->step.stats;
    *out = (struct nyb_stats){
        .running = atomic_load_explicit(&t->running, memory_order_relaxed),
        .waiting = atomic_load_explicit(&t->waiting, memory_order_relaxed),
        .stalled = atomic_load_explicit(&t->stalled, memory_order_relaxed),
        .kv_blocks = e->step.option.n_block,
        .kv_blocks_used = atomic_load_explicit(&t->blocks_used, memory_order_relaxed),
        .steps = load64(&t->steps),
        .preemptions = load64(&t->preemptions),
        .prompt_tokens = load64(&t->prompt_tokens),
        .generation_tokens = load64(&t->generation_tokens),
        .prefix_queries = load64(&t->prefix_queries),
        .prefix_hits = load64(&t->prefix_hits),
    };
    for (int i = 0; i < (int)COUNT_OF(out->finished); i++)
        out->finished[i] = load64(&t->finished[i]);
    tally_read(&t->tokens, &out->step_tokens);
    tally_read(&t->seconds, &out->step_seconds);
}

void engine_health(struct engine *e, struct nyb_health *out)
{
    int stalled = atomic_load_explicit(&e->step.stats.stalled, memory_order_relaxed);
    bool paused = atomic_load(&e->step.paused) || atomic_load(&e->step.held);
    pulse_read(&e->pulse, clock_ns(), atomic_load(&e->n_live) > stalled, paused, out);
}

enum nyb_code engine_call(struct engine *e, struct control_op *op, struct nyb_err *err)
{
    return control_call(&e->control, op, &e->bell, err);
}

bool engine_is_paused(const struct engine *e)
{
    return atomic_load(&e->step.paused);
}

bool engine_is_stopping(const struct engine *e)
{
    return atomic_load(&e->stopping);
}
