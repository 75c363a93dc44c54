/* The engine under a simulated load: random arrivals, cancels, stalled readers, stops, failing steps and far
 * too few blocks, over a model that gives a wrong token when any block is wrong (fake_runner.h). Every token
 * of every request is compared with what the request gets alone; at the end of each episode no block is held,
 * no request is lost and none has starved. NYBBLE_SIM_EVENTS sets the length. */
#include "test.h"

#include <math.h>
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
                             .prefix_cache = chance(s, 75),
                             .n_rank = chance(s, 40) ? 2 + roll(s, 3) : 1};
    o.max_num_batched_tokens = o.max_num_seqs + roll(s, 60);
    s->fake = (struct fake){.fail_one_in = chance(s, 25) ? 100 : 0,
                            .fail_rng = test_random(&s->rng),
                            .max_tok = o.max_num_batched_tokens,
                            .max_seq = o.max_num_seqs,
                            .n_rank = o.n_rank};
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sched_survives_random_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
