/* The engine under a simulated load: random arrivals, cancels, stalled readers, stops, failing steps and far
 * too few blocks, over a model that gives a wrong token when any block is wrong (fake_runner.h). Every token
 * of every request is compared with what the request gets alone; at the end of each episode no block is held,
 * no request is lost and none has starved. NYBBLE_SIM_EVENTS sets the length. */
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#include "engine/engine.h"
#include "fake_runner.h"

#define LEN_MAX       160
#define LIVE_MAX      48
#define EVENTS        100000
#define EPISODE       4000
#define STEP_US       100000 /* of virtual time: a level of priority is 100 steps */
#define STARVED_STEPS 4000

static const int32_t eos[] = {0};

/* What a client sent and has seen. */
struct client {
    struct request *r;
    uint64_t generation;
    bool checkable; /* the weights did not change under it */
    bool cancelled, ended;
    enum nyb_finish finish;
    int32_t seen[LEN_MAX];
    int n_seen;
    long arrived, stalled_until; /* steps */
};

struct sim {
    struct step step;
    struct fake fake;
    struct sampler *reference;
    struct client client[LIVE_MAX];
    int n_client;
    uint64_t rng;
    long now;                /* steps */
    int32_t shared[LEN_MAX]; /* a beginning that many prompts have */
    /* counted over all episodes */
    long n_event, n_arrival, n_cancel, n_stall, n_preempt, n_failed, n_finish[5], n_token, n_cached;
    long n_drawn, n_left;
};

static int roll(struct sim *s, int n)
{
    return (int)(test_random(&s->rng) % (uint64_t)n);
}

static bool chance(struct sim *s, int percent)
{
    return roll(s, 100) < percent;
}

/* ---- what a request gets alone ------------------------------------------------------------------------ */

static void check_scores(struct sim *s, const struct client *c)
{
    const struct request *r = c->r;
    int n = r->p.n_prompt_logprob;
    float logits[FAKE_VOCAB];
    struct nyb_logprob want[4];
    uint64_t h = 1;
    for (int i = 0; i + 1 < r->n_prompt; i++) {
        h = fake_mix(h, r->tok[i], c->generation);
        fake_logits(h, logits);
        assert_true(sampler_logprobs(s->reference, 0, logits, r->tok[i + 1], n, want));
        assert_memory_equal(r->prompt_logprob + (i + 1) * (1 + n), want, sizeof(*want) * (size_t)(1 + n));
    }
}

static void check_alone(struct sim *s, const struct client *c)
{
    const struct request *r = c->r;
    struct arena arena;
    arena_init(&arena, 4096);
    struct history *history = NULL;
    if (sampler_wants_history(&r->p))
        history = history_new(&arena, r->tok, r->n_prompt, r->p.max_tokens, FAKE_VOCAB);
    uint64_t h = 1;
    for (int i = 0; i < r->n_prompt; i++)
        h = fake_mix(h, r->tok[i], c->generation);
    for (int i = 0; i < c->n_seen; i++) {
        float logits[FAKE_VOCAB];
        struct nyb_logprob logprob[4];
        fake_logits(h, logits);
        const struct sampler_input in = {
            .p = &r->p, .history = history, .out = c->seen, .n_out = i, .logits = logits};
        assert_int_equal(sampler_row(s->reference, 0, &in, logprob), c->seen[i]);
        if (history)
            history_add_output(history, c->seen[i]);
        h = fake_mix(h, c->seen[i], c->generation);
        bool last = params_is_eos(&r->p, c->seen[i]) || params_is_stop_token(&r->p, c->seen[i]);
        assert_true(!last || i + 1 < r->p.min_tokens || i == c->n_seen - 1);
    }
    if (c->n_seen > 0 && r->p.n_prompt_logprob >= 0)
        check_scores(s, c);
    arena_free(&arena);
}

/* ---- clients ------------------------------------------------------------------------------------------ */

static struct params random_params(struct sim *s, int room)
{
    struct params p = {.top_p = 1, .repetition = 1, .n_logprob = -1, .n_prompt_logprob = -1};
    p.temperature = chance(s, 30) ? 0 : 0.5f + 0.1f * (float)roll(s, 10);
    p.seed = test_random(&s->rng);
    p.max_tokens = 1 + roll(s, room < 110 ? room : 110);
    p.eos = eos;
    p.n_eos = 1;
    p.ignore_eos = chance(s, 50);
    if (chance(s, 20))
        p.top_p = 0.7f;
    if (chance(s, 20))
        p.top_k = p.ignore_eos ? 5 : FAKE_VOCAB / 2 + 4; /* few enough for a runner that draws, or not */
    if (chance(s, 20))
        p.repetition = 1.2f;
    if (chance(s, 10))
        p.frequency = 0.3f;
    if (chance(s, 20))
        p.min_tokens = roll(s, p.max_tokens + 1);
    if (chance(s, 10))
        p.n_logprob = 2;
    if (chance(s, 8))
        p.n_prompt_logprob = 1;
    return p;
}

static void arrive(struct sim *s)
{
    int room = s->step.option.max_len;
    if (s->n_client == s->step.option.max_live)
        return;
    struct client *c = &s->client[s->n_client++];
    *c = (struct client){
        .r = request_new(), .generation = s->fake.generation, .checkable = true, .arrived = s->now};
    int32_t prompt[LEN_MAX];
    int n = 1 + roll(s, chance(s, 20) ? room - 1 : room / 3);
    int n_shared = chance(s, 60) ? roll(s, n + 1) : 0;
    for (int i = 0; i < n; i++)
        prompt[i] = i < n_shared ? s->shared[i] : roll(s, FAKE_VOCAB);
    c->r->p = random_params(s, room - n);
    if (chance(s, 20)) {
        c->r->p.stop_token = arena_alloc(&c->r->arena, 1, sizeof(int32_t));
        c->r->p.stop_token[0] = roll(s, FAKE_VOCAB);
        c->r->p.n_stop_token = 1;
    }
    request_prepare(c->r, prompt, n, FAKE_VOCAB);
    c->r->key = s->now * STEP_US + (int64_t)(roll(s, 3) - 1) * SCHED_PRIORITY_US;
    c->r->attention = &s->step.attention;
    static struct bell bell;
    c->r->engine_bell = &bell;
    step_add(&s->step, c->r);
    s->n_arrival++;
    s->n_event++;
}

static void take(struct sim *s, struct client *c)
{
    struct reply reply;
    const struct nyb_logprob *logprob;
    while (!c->ended && request_peek(c->r, &reply, &logprob)) {
        assert_true((reply.token >= 0) ==
                    (reply.finish != NYB_FINISH_ABORT && reply.finish != NYB_FINISH_ERROR));
        assert_true((logprob != NULL) == (reply.token >= 0 && c->r->p.n_logprob >= 0));
        if (reply.token >= 0) {
            assert_true(c->n_seen < c->r->p.max_tokens);
            c->seen[c->n_seen++] = reply.token;
            assert_true(!logprob || logprob[0].token == reply.token);
            s->n_token++;
        }
        c->ended = reply.finish != NYB_FINISH_NONE;
        c->finish = reply.finish;
        if (c->ended)
            s->n_cached += reply.cached_tokens;
        request_pop(c->r);
    }
}

static void check_end(struct sim *s, struct client *c)
{
    const struct params *p = &c->r->p;
    int32_t last = c->n_seen ? c->seen[c->n_seen - 1] : -1;
    if (c->finish == NYB_FINISH_LENGTH)
        assert_int_equal(c->n_seen, p->max_tokens);
    if (c->finish == NYB_FINISH_STOP)
        assert_true(params_is_eos(p, last) || params_is_stop_token(p, last));
    if (c->finish == NYB_FINISH_ABORT)
        assert_true(c->cancelled);
    if (c->finish == NYB_FINISH_ERROR)
        assert_string_equal(c->r->error.message, "the fake model fails on purpose");
    if (c->checkable)
        check_alone(s, c);
    s->n_finish[c->finish]++;
    s->n_event++;
}

static void leave(struct sim *s, int at)
{
    request_detach(s->client[at].r);
    request_release(s->client[at].r);
    s->client[at] = s->client[--s->n_client];
}

static void run_readers(struct sim *s, bool draining)
{
    for (int i = s->n_client - 1; i >= 0; i--) {
        struct client *c = &s->client[i];
        if (!draining && s->now >= c->stalled_until && roll(s, 200) == 0) {
            c->stalled_until = s->now + 1 + roll(s, 400);
            s->n_stall++;
            s->n_event++;
        }
        if (draining || s->now >= c->stalled_until)
            take(s, c);
        if (!c->cancelled && !c->ended && roll(s, 400) == 0) {
            request_cancel(c->r);
            c->cancelled = true;
            s->n_cancel++;
            s->n_event++;
        }
        if (c->ended) {
            check_end(s, c);
            leave(s, i);
        } else if (s->now - c->arrived > STARVED_STEPS) {
            fail_msg("a request of %d tokens has starved: state %d after %ld steps", c->r->n_prompt,
                     (int)c->r->state, s->now - c->arrived);
        }
    }
}

/* New weights between two steps: what is under way keeps its KV and cannot be predicted any more. */
static void update_weights(struct sim *s)
{
    s->fake.generation++;
    step_flush_cache(&s->step);
    for (int i = 0; i < s->n_client; i++) {
        if (s->client[i].r->n_cached >= 0)
            s->client[i].checkable = false;
        s->client[i].generation = s->fake.generation;
    }
}

/* One step; whoever was making tokens and could go on has made one. */
static void run_step(struct sim *s)
{
    struct {
        struct request *r;
        int n_tok;
    } decoding[LIVE_MAX];
    int n = 0;
    struct sched *d = &s->step.sched;
    for (int i = 0; i < d->n_running; i++)
        if (d->running[i]->n_tok - d->running[i]->n_computed == 1 &&
            d->running[i]->n_tok > d->running[i]->n_prompt)
            decoding[n++].r = d->running[i], decoding[n - 1].n_tok = d->running[i]->n_tok;
    uint64_t before = d->n_preemption;
    long failed = s->n_failed;
    step_run(&s->step);
    s->n_failed = (long)atomic_load(&s->step.stats.finished[NYB_FINISH_ERROR]);
    for (int i = 0; i < n && s->n_failed == failed && !atomic_load(&s->step.paused); i++)
        if (decoding[i].r->state == REQUEST_RUNNING)
            assert_int_equal(decoding[i].r->n_tok, decoding[i].n_tok + 1);
    s->n_preempt += (long)(d->n_preemption - before);
    s->n_event += (long)(d->n_preemption - before);
    s->now++;
}

static void begin_episode(struct sim *s)
{
    int max_len = 40 + roll(s, LEN_MAX - 40);
    int fit = (max_len + KV_BLOCK - 1) / KV_BLOCK;
    struct step_options o = {.max_num_seqs = 1 + roll(s, 10),
                             .max_len = max_len,
                             .max_live = 1 + roll(s, LIVE_MAX),
                             .max_logprobs = 2,
                             .n_block = fit + roll(s, chance(s, 60) ? fit + 1 : 4 * fit),
                             .prefix_cache = chance(s, 75)};
    o.max_num_batched_tokens = o.max_num_seqs + roll(s, 60);
    s->fake = (struct fake){.fail_one_in = chance(s, 25) ? 100 : 0,
                            .fail_rng = test_random(&s->rng),
                            .max_tok = o.max_num_batched_tokens,
                            .max_seq = o.max_num_seqs};
    if (s->rng % 2) { /* a runner that draws tokens itself */
        s->fake.sampler = s->reference;
        s->fake.logits =
            calloc((size_t)(o.max_num_batched_tokens + o.max_num_seqs), FAKE_VOCAB * sizeof(float));
        assert_non_null(s->fake.logits);
    }
    s->now = 0;
    s->n_failed = 0;
    for (int i = 0; i < LEN_MAX; i++)
        s->shared[i] = roll(s, FAKE_VOCAB);
    struct runner r = fake_runner(&s->fake);
    assert_int_equal(step_open(&s->step, &r, &o, NULL), NYB_OK);
}

/* What comes from outside between two steps, and must change nobody's tokens. */
static void disturb(struct sim *s)
{
    if (roll(s, 400) == 0)
        step_retract_all(&s->step);
    if (roll(s, 400) == 0)
        step_flush_cache(&s->step);
    if (s->step.sched.only_started ? roll(s, 30) == 0 : roll(s, 500) == 0)
        s->step.sched.only_started = !s->step.sched.only_started;
    bool paused = atomic_load(&s->step.paused);
    if (paused ? roll(s, 10) == 0 : roll(s, 500) == 0)
        atomic_store(&s->step.paused, !paused);
}

static void run_episode(struct sim *s)
{
    begin_episode(s);
    long end = s->n_event + EPISODE;
    int load = 5 + roll(s, 60);
    while (s->n_event < end) {
        while (chance(s, load))
            arrive(s);
        if (roll(s, 2000) == 0)
            update_weights(s);
        disturb(s);
        run_step(s);
        run_readers(s, false);
        if (s->now % 16 == 0)
            sched_check(&s->step.sched);
    }
    s->step.sched.only_started = false;
    atomic_store(&s->step.paused, false);
    for (long limit = s->now + STARVED_STEPS; s->n_client > 0;) {
        assert_true(s->now < limit);
        run_step(s);
        run_readers(s, true);
    }
    sched_check(&s->step.sched);
    assert_int_equal(s->step.n_live, 0);
    assert_int_equal(s->step.sched.n_waiting + s->step.sched.n_running + s->step.sched.n_parked, 0);
    assert_int_equal(kv_free_count(s->step.kv), kv_block_count(s->step.kv));
    step_close(&s->step);
    s->n_drawn += s->fake.n_drawn;
    s->n_left += s->fake.n_left;
    free(s->fake.kv);
    free(s->fake.logits);
}

static void test_sched_survives_random_events(void **state)
{
    (void)state;
    const char *text = getenv("NYBBLE_SIM_EVENTS");
    long events = text ? strtol(text, NULL, 10) : EVENTS;
    struct sim *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    s->rng = 2024;
    assert_int_equal(sampler_open(&s->reference, FAKE_VOCAB, 1, NULL), NYB_OK);
    while (s->n_event < events)
        run_episode(s);
    print_message("%ld events: %ld arrivals, %ld cancels, %ld stalls, %ld preemptions; ended: %ld stop, %ld "
                  "length, %ld abort, %ld error; %ld tokens, %ld prompt tokens from the cache\n",
                  s->n_event, s->n_arrival, s->n_cancel, s->n_stall, s->n_preempt,
                  s->n_finish[NYB_FINISH_STOP], s->n_finish[NYB_FINISH_LENGTH], s->n_finish[NYB_FINISH_ABORT],
                  s->n_finish[NYB_FINISH_ERROR], s->n_token, s->n_cached);
    assert_int_equal(s->n_finish[1] + s->n_finish[2] + s->n_finish[3] + s->n_finish[4], s->n_arrival);
    /* The load is what it is meant to be. */
    assert_true(s->n_preempt > events / 50 && s->n_cancel > events / 100 && s->n_stall > events / 100);
    assert_true(s->n_drawn > events / 20 && s->n_left > events / 20);
    assert_true(s->n_finish[NYB_FINISH_STOP] > events / 50 && s->n_cached > events / 5);
    sampler_close(s->reference);
    free(s);
}

/* ---- the scheduler's promises, one by one ----------------------------------------------------------------
 */

struct small {
    struct step step;
    struct fake fake;
    atomic_uint attention;
    struct bell bell;
};

static void open_small(struct small *s, int seqs, int tokens, int n_block, int max_len)
{
    memset(s, 0, sizeof(*s));
    s->fake = (struct fake){.max_seq = seqs, .max_tok = tokens};
    const struct step_options o = {.max_num_seqs = seqs,
                                   .max_num_batched_tokens = tokens,
                                   .max_len = max_len,
                                   .max_live = 16,
                                   .n_block = n_block,
                                   .prefix_cache = false};
    struct runner r = fake_runner(&s->fake);
    assert_int_equal(step_open(&s->step, &r, &o, NULL), NYB_OK);
}

static void close_small(struct small *s)
{
    step_abort_all(&s->step);
    assert_int_equal(kv_free_count(s->step.kv), kv_block_count(s->step.kv));
    step_close(&s->step);
    free(s->fake.kv);
}

static struct request *add_small(struct small *s, int n_prompt, int max_tokens, int64_t key)
{
    struct request *r = request_new();
    int32_t prompt[LEN_MAX];
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)((key + i) % FAKE_VOCAB + FAKE_VOCAB) % FAKE_VOCAB;
    r->p = (struct params){
        .top_p = 1, .repetition = 1, .max_tokens = max_tokens, .n_logprob = -1, .n_prompt_logprob = -1};
    request_prepare(r, prompt, n_prompt, FAKE_VOCAB);
    r->key = key;
    r->attention = &s->step.attention;
    r->engine_bell = &s->bell;
    step_add(&s->step, r);
    return r;
}

static void test_sched_short_prompt_does_not_wait_for_a_long_one(void **state)
{
    (void)state;
    struct small s;
    open_small(&s, 4, 16, 64, 150);
    struct request *long_one = add_small(&s, 140, 5, 1), *short_one = add_small(&s, 6, 5, 2);
    step_run(&s.step);
    assert_int_equal(short_one->n_tok, 7);
    assert_int_equal(long_one->n_computed, 10); /* half, and what the other left */
    close_small(&s);
    request_release(long_one);
    request_release(short_one);
}

static void test_sched_decodes_go_on_beside_a_prefill(void **state)
{
    (void)state;
    struct small s;
    open_small(&s, 4, 8, 64, 150);
    struct request *a = add_small(&s, 4, 40, 1);
    step_run(&s.step);
    struct request *b = add_small(&s, 100, 5, 0); /* even one that comes first in order */
    for (int i = 1; i < 14; i++) {
        step_run(&s.step);
        assert_int_equal(a->n_tok, 5 + i);
        assert_int_equal(b->n_computed, 7 * i);
    }
    close_small(&s);
    request_release(a);
    request_release(b);
}

static void test_sched_priority_goes_first(void **state)
{
    (void)state;
    struct small s;
    open_small(&s, 1, 16, 64, 64);
    struct request *a = add_small(&s, 4, 1, 5), *b = add_small(&s, 4, 1, 3), *c = add_small(&s, 4, 1, 3);
    step_run(&s.step);
    assert_true(b->state == REQUEST_DONE && a->state == REQUEST_WAITING && c->state == REQUEST_WAITING);
    step_run(&s.step);
    assert_true(c->state == REQUEST_DONE && a->state == REQUEST_WAITING);
    close_small(&s);
    request_release(a);
    request_release(b);
    request_release(c);
}

static void test_sched_the_last_in_order_is_preempted(void **state)
{
    (void)state;
    struct small s;
    open_small(&s, 2, 64, 5, 80);
    struct request *a = add_small(&s, 30, 50, 1), *b = add_small(&s, 14, 30, 2);
    step_run(&s.step);
    assert_true(a->n_block == 2 && b->n_block == 1);
    while (a->state == REQUEST_RUNNING && b->state == REQUEST_RUNNING)
        step_run(&s.step);
    assert_true(b->state == REQUEST_WAITING && b->n_block == 0 && a->state == REQUEST_RUNNING);
    int32_t before[LEN_MAX];
    int n = b->n_tok;
    memcpy(before, b->tok, (size_t)n * sizeof(*before));
    while (step_run(&s.step)) {
        struct reply reply;
        const struct nyb_logprob *none;
        while (request_peek(a, &reply, &none))
            request_pop(a);
        while (request_peek(b, &reply, &none))
            request_pop(b);
    }
    assert_true(a->state == REQUEST_DONE && b->state == REQUEST_DONE && b->n_tok == 44);
    assert_memory_equal(before, b->tok, (size_t)n * sizeof(*before));
    close_small(&s);
    request_release(a);
    request_release(b);
}

static void test_sched_a_stalled_reader_stops_only_itself(void **state)
{
    (void)state;
    struct small s;
    open_small(&s, 1, 16, 10, 150); /* one running, and blocks for little more than one */
    struct request *a = add_small(&s, 4, 140, 1), *b = add_small(&s, 4, 140, 2);
    struct reply reply;
    const struct nyb_logprob *none;
    int seen = 0;
    for (int i = 0; i < 400; i++) {
        step_run(&s.step);
        while (request_peek(b, &reply, &none)) {
            seen++;
            request_pop(b);
        }
    }
    assert_int_equal(seen, 140);
    assert_true(b->state == REQUEST_DONE && a->state == REQUEST_PARKED);
    int32_t alone[140];
    for (seen = 0; a->state != REQUEST_DONE || request_peek(a, &reply, &none);) {
        while (request_peek(a, &reply, &none)) {
            alone[seen++] = reply.token;
            request_pop(a);
        }
        step_run(&s.step);
    }
    assert_int_equal(seen, 140); /* nothing is lost */
    assert_memory_equal(alone, a->tok + 4, sizeof(alone));
    close_small(&s);
    request_release(a);
    request_release(b);
}

/* ---- the thread
 * -------------------------------------------------------------------------------------------- */

enum { READERS = 4, ROUNDS = 150 };

struct reader {
    struct engine *engine;
    struct sampler *reference;
    pthread_t thread;
    uint64_t rng;
    long n_done, n_abort, n_busy;
    long n_reply, n_wake;
    atomic_long *wakes; /* of the request in hand; freed with it, so that a late wake is seen */
};

static void count_wake(void *arg)
{
    atomic_fetch_add((atomic_long *)arg, 1);
}

static void leave_request(struct reader *a, struct request *r)
{
    request_detach(r);
    a->n_wake += atomic_load(a->wakes);
    free(a->wakes);
    request_release(r);
}

static struct request *submit_random(struct reader *a, int *n_prompt)
{
    int32_t prompt[60];
    *n_prompt = 1 + (int)(test_random(&a->rng) % 60);
    struct request *r = request_new();
    r->p = (struct params){.temperature = 1,
                           .top_p = 1,
                           .repetition = 1,
                           .seed = test_random(&a->rng),
                           .max_tokens = 1 + (int)(test_random(&a->rng) % 90),
                           .n_logprob = -1,
                           .n_prompt_logprob = -1};
    for (int i = 0; i < *n_prompt; i++)
        prompt[i] = i < 32 ? i % 7 : (int32_t)(test_random(&a->rng) % FAKE_VOCAB);
    request_prepare(r, prompt, *n_prompt, FAKE_VOCAB);
    r->wake = count_wake;
    r->wake_arg = a->wakes = calloc(1, sizeof(*a->wakes));
    assert_non_null(a->wakes);
    struct nyb_err err;
    enum nyb_code code = engine_submit(a->engine, r, 0, &err);
    if (code == NYB_OK)
        return r;
    assert_int_equal(code, NYB_E_BUSY);
    a->n_busy++;
    leave_request(a, r);
    return NULL;
}

static void read_all(struct reader *a, struct request *r, int n_prompt)
{
    uint64_t h = 1;
    int n_out = 0, cancel_at = (int)(test_random(&a->rng) % 200);
    for (int i = 0; i < n_prompt; i++)
        h = fake_mix(h, r->tok[i], 0);
    for (;;) {
        struct reply reply;
        const struct nyb_logprob *none;
        unsigned seen = bell_look(&r->bell);
        if (!request_peek(r, &reply, &none)) {
            bell_wait(&r->bell, seen, 10000);
            continue;
        }
        request_pop(r);
        a->n_reply++;
        if (reply.token >= 0) {
            float logits[FAKE_VOCAB];
            int32_t out[1] = {0};
            fake_logits(h, logits);
            const struct sampler_input in = {.p = &r->p, .out = out, .n_out = n_out++, .logits = logits};
            assert_int_equal(sampler_row(a->reference, 0, &in, NULL), reply.token);
            h = fake_mix(h, reply.token, 0);
        }
        if (n_out == cancel_at)
            request_cancel(r);
        if (reply.finish != NYB_FINISH_NONE) {
            a->n_abort += reply.finish == NYB_FINISH_ABORT;
            a->n_done++;
            return;
        }
    }
}

static void *run_reader(void *arg)
{
    struct reader *a = arg;
    for (int i = 0; i < ROUNDS; i++) {
        int n_prompt;
        struct request *r = submit_random(a, &n_prompt);
        if (!r)
            continue;
        if (i % 10 == 9) { /* gone without a word */
            request_cancel(r);
            a->n_done++;
        } else {
            read_all(a, r, n_prompt);
        }
        leave_request(a, r);
    }
    return NULL;
}

static void meddle_step(struct step *s, void *arg)
{
    int turn = *(const int *)arg;
    atomic_store(&s->paused, turn % 3 == 0);
    if (turn % 3 == 1)
        step_retract_all(s);
    step_flush_cache(s);
    step_set_version(s, version_new((uint64_t)turn, "meddled"));
}

static bool is_third_time(struct step *s, void *arg)
{
    (void)s, (void)arg;
    static int n; /* the engine's thread alone asks */
    return ++n % 3 == 0;
}

/* Pauses, retracts, flushes and renames while the readers read. */
static void *run_meddler(void *arg)
{
    struct engine *e = arg;
    struct nyb_health h;
    for (int i = 0; i <= 300; i++) {
        struct control_op op = {.run = meddle_step, .ready = i % 2 ? is_third_time : NULL, .arg = &i};
        if (i == 300) /* do not leave it paused */
            i = 301;
        assert_int_equal(engine_call(e, &op, NULL), NYB_OK);
        engine_health(e, &h);
        assert_true(h.alive);
    }
    return NULL;
}

static void test_engine_thread_serves_many_readers(void **state)
{
    (void)state;
    struct fake fake = {.max_seq = 3, .max_tok = 32};
    struct runner runner = fake_runner(&fake);
    const struct step_options o = {.max_num_seqs = 3,
                                   .max_num_batched_tokens = 32,
                                   .max_len = 150,
                                   .max_live = READERS + 2,
                                   .n_block = 16,
                                   .prefix_cache = true,
                                   .weight_version = "first"};
    struct engine *e;
    assert_int_equal(engine_open(&e, &runner, &o, 60000, NULL), NYB_OK);
    pthread_t meddler;
    assert_int_equal(pthread_create(&meddler, NULL, run_meddler, e), 0);
    struct reader reader[READERS] = {0};
    for (int i = 0; i < READERS; i++) {
        reader[i].engine = e;
        reader[i].rng = 77 + (uint64_t)i;
        assert_int_equal(sampler_open(&reader[i].reference, FAKE_VOCAB, 1, NULL), NYB_OK);
        assert_int_equal(pthread_create(&reader[i].thread, NULL, run_reader, &reader[i]), 0);
    }
    pthread_join(meddler, NULL);
    long abort_count = 0;
    for (int i = 0; i < READERS; i++) {
        pthread_join(reader[i].thread, NULL);
        assert_int_equal(reader[i].n_done + reader[i].n_busy, ROUNDS);
        /* The last reply of a request may be read, and the request left, before its wake. */
        assert_true(reader[i].n_wake >= reader[i].n_reply - reader[i].n_done);
        abort_count += reader[i].n_abort;
        sampler_close(reader[i].reference);
    }
    assert_true(abort_count > 0);
    struct nyb_stats stats;
    for (int i = 0; i < 1000; i++) { /* the last cancels are on their way */
        engine_stats(e, &stats);
        if (stats.kv_blocks_used == 0 && stats.running + stats.waiting + stats.stalled == 0)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    assert_int_equal(stats.kv_blocks_used, 0);
    assert_true(stats.prefix_hits > 0 && stats.generation_tokens > 1000);
    engine_close(e);
    free(fake.kv);
}

static void test_engine_stop_ends_what_runs_and_refuses_what_comes(void **state)
{
    (void)state;
    struct fake fake = {.max_seq = 2, .max_tok = 16};
    struct runner runner = fake_runner(&fake);
    const struct step_options o = {
        .max_num_seqs = 2, .max_num_batched_tokens = 16, .max_len = 100, .max_live = 3, .n_block = 32};
    struct engine *e;
    assert_int_equal(engine_open(&e, &runner, &o, 60000, NULL), NYB_OK);
    struct request *r[4];
    struct nyb_err err;
    const int32_t prompt[2] = {1, 2};
    for (int i = 0; i < 4; i++) { /* nobody reads: they stay live, and the fourth is one too many */
        r[i] = request_new();
        r[i]->p = (struct params){
            .top_p = 1, .repetition = 1, .max_tokens = 98, .n_logprob = -1, .n_prompt_logprob = -1};
        request_prepare(r[i], prompt, 2, FAKE_VOCAB);
        assert_int_equal(engine_submit(e, r[i], 0, &err), i < 3 ? NYB_OK : NYB_E_BUSY);
    }
    assert_non_null(strstr(err.message, "3 requests"));
    engine_stop(e);
    assert_int_equal(engine_submit(e, r[3], 0, &err), NYB_E_CLOSED);
    for (int i = 0; i < 4; i++) {
        struct reply reply = {.finish = NYB_FINISH_NONE};
        const struct nyb_logprob *none;
        while (request_peek(r[i], &reply, &none))
            request_pop(r[i]);
        assert_int_equal(reply.finish, i < 3 ? NYB_FINISH_ABORT : NYB_FINISH_NONE);
        request_release(r[i]);
    }
    engine_close(e);
    free(fake.kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sched_short_prompt_does_not_wait_for_a_long_one),
        cmocka_unit_test(test_sched_decodes_go_on_beside_a_prefill),
        cmocka_unit_test(test_sched_priority_goes_first),
        cmocka_unit_test(test_sched_the_last_in_order_is_preempted),
        cmocka_unit_test(test_sched_a_stalled_reader_stops_only_itself),
        cmocka_unit_test(test_sched_survives_random_events),
        cmocka_unit_test(test_engine_thread_serves_many_readers),
        cmocka_unit_test(test_engine_stop_ends_what_runs_and_refuses_what_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
