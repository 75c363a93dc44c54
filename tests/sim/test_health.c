/* What the engine tells of itself: the state for /health, and the histograms of its steps. */
#include "test.h"

#include <time.h>

#include "engine/engine.h"
#include "engine/pulse.h"
#include "fake_runner.h"

/* A fake whose steps hang while `hold` is set, and fail with `code` while that is not NYB_OK. */
struct moody {
    struct fake fake;
    atomic_bool hold;
    atomic_int code;
};

static void nap_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

static enum nyb_code moody_reserve(void *self, int n_block, struct nyb_err *err)
{
    struct moody *m = self;
    return fake_reserve(&m->fake, n_block, err);
}

static enum nyb_code moody_forward(void *self, const struct batch *b, float *logits, struct nyb_err *err)
{
    struct moody *m = self;
    while (atomic_load(&m->hold))
        nap_ms(1);
    enum nyb_code code = (enum nyb_code)atomic_load(&m->code);
    if (code != NYB_OK)
        return err_set(err, code, "in a bad mood");
    return fake_forward(&m->fake, b, logits, err);
}

static struct engine *open_moody(struct moody *m, int stuck_ms)
{
    *m = (struct moody){.fake = {.max_seq = 4, .max_tok = 16}};
    const struct runner runner = {
        .self = m, .vocab = FAKE_VOCAB, .reserve = moody_reserve, .forward = moody_forward};
    const struct step_options o = {
        .max_num_seqs = 4, .max_num_batched_tokens = 16, .max_len = 100, .max_live = 8, .n_block = 64};
    struct engine *e;
    assert_int_equal(engine_open(&e, &runner, &o, stuck_ms, NULL), NYB_OK);
    return e;
}

static struct request *submit(struct engine *e, int n_prompt, int max_tokens)
{
    struct request *r = request_new();
    int32_t prompt[64];
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = i % FAKE_VOCAB;
    r->p = (struct params){
        .top_p = 1, .repetition = 1, .max_tokens = max_tokens, .n_logprob = -1, .n_prompt_logprob = -1};
    request_prepare(r, prompt, n_prompt, FAKE_VOCAB);
    assert_int_equal(engine_submit(e, r, 0, NULL), NYB_OK);
    return r;
}

static enum nyb_finish read_to_end(struct request *r)
{
    struct reply reply = {.finish = NYB_FINISH_NONE};
    const struct nyb_logprob *none;
    for (int i = 0; i < 10000 && reply.finish == NYB_FINISH_NONE; i++) {
        unsigned seen = bell_look(&r->bell);
        if (request_peek(r, &reply, &none))
            request_pop(r);
        else
            bell_wait(&r->bell, seen, 10);
    }
    request_release(r);
    return reply.finish;
}

/* Until that state holds, for at most ten seconds. */
static struct nyb_health await(struct engine *e, enum nyb_engine_state state)
{
    struct nyb_health h;
    for (int i = 0; i < 10000; i++) {
        engine_health(e, &h);
        if (h.state == state)
            return h;
        nap_ms(1);
    }
    fail_msg("the state is %s, expected %s", nyb_engine_state_name(h.state), nyb_engine_state_name(state));
    return h;
}

static void test_health_idle_running_stuck_and_back(void **state)
{
    (void)state;
    struct moody m;
    struct engine *e = open_moody(&m, 100);
    struct nyb_health h = await(e, NYB_ENGINE_IDLE);
    assert_true(h.alive && !h.pending && h.no_step_ns == 0 && h.last_step_ns == 0);
    nap_ms(150); /* sleeping for longer than the limit is no trouble */
    engine_health(e, &h);
    assert_int_equal(h.state, NYB_ENGINE_IDLE);

    atomic_store(&m.hold, true);
    struct request *r = submit(e, 5, 3);
    engine_health(e, &h);
    assert_int_equal(h.state, NYB_ENGINE_RUNNING);
    assert_true(h.alive && h.pending);
    h = await(e, NYB_ENGINE_STUCK);
    assert_true(!h.alive && h.pending && h.no_step_ns >= 100000000u);

    atomic_store(&m.hold, false);
    assert_int_equal(read_to_end(r), NYB_FINISH_LENGTH);
    h = await(e, NYB_ENGINE_IDLE);
    assert_true(h.alive && h.last_step_ns > 0);
    engine_close(e);
    free(m.fake.kv);
}

static void test_health_failing_steps(void **state)
{
    (void)state;
    struct moody m;
    struct engine *e = open_moody(&m, 60000);
    atomic_store(&m.code, NYB_E_IO);
    for (int i = 1; i <= NYB_FAILED_STEPS; i++) {
        assert_int_equal(read_to_end(submit(e, 5, 3)), NYB_FINISH_ERROR);
        struct nyb_health h = await(e, i < NYB_FAILED_STEPS ? NYB_ENGINE_IDLE : NYB_ENGINE_FAILED);
        assert_int_equal(h.failure.code, NYB_E_IO);
        assert_string_equal(h.failure.message, "in a bad mood");
    }
    atomic_store(&m.code, NYB_OK); /* a step that goes well ends it */
    assert_int_equal(read_to_end(submit(e, 5, 3)), NYB_FINISH_LENGTH);
    struct nyb_health h = await(e, NYB_ENGINE_IDLE);
    assert_int_equal(h.failed_steps, 0);

    atomic_store(&m.code, NYB_E_RANK); /* once is enough */
    assert_int_equal(read_to_end(submit(e, 5, 3)), NYB_FINISH_ERROR);
    h = await(e, NYB_ENGINE_FAILED);
    assert_true(!h.alive);
    engine_stop(e);
    engine_health(e, &h);
    assert_int_equal(h.state, NYB_ENGINE_STOPPED);
    assert_false(h.alive);
    engine_close(e);
    free(m.fake.kv);
}

/* The thread is asleep and has missed the ring: only the time of submission tells. */
static void test_health_a_thread_that_does_not_wake_is_stuck(void **state)
{
    (void)state;
    struct pulse p;
    struct nyb_health h;
    pulse_open(&p, 50);
    pulse_turn(&p, 1000);
    pulse_sleep(&p);
    pulse_read(&p, 900000000000u, false, false, &h);
    assert_int_equal(h.state, NYB_ENGINE_IDLE);
    pulse_submit(&p, 900000000000u);
    pulse_submit(&p, 800000000000u); /* a slower submitter does not turn the time back */
    pulse_read(&p, 900049000000u, false, false, &h);
    assert_int_equal(h.state, NYB_ENGINE_RUNNING);
    pulse_read(&p, 900051000000u, false, false, &h);
    assert_int_equal(h.state, NYB_ENGINE_STUCK);
    assert_int_equal(h.no_step_ns, 51000000u);
    pulse_turn(&p, 900052000000u);
    pulse_read(&p, 900053000000u, true, false, &h);
    assert_int_equal(h.state, NYB_ENGINE_RUNNING);
    pulse_close(&p);
}

static void test_health_histograms_count_every_step(void **state)
{
    (void)state;
    struct moody m;
    struct engine *e = open_moody(&m, 60000);
    /* Steps of 16 and 14 prompt tokens, then nine of one: ten tokens come of ten steps. */
    assert_int_equal(read_to_end(submit(e, 30, 10)), NYB_FINISH_LENGTH);
    await(e, NYB_ENGINE_IDLE);
    struct nyb_stats s;
    engine_stats(e, &s);
    assert_int_equal(s.steps, 11);
    assert_int_equal((int)s.step_tokens.bound[0], 1);
    assert_int_equal(s.step_tokens.count[0], 9);
    assert_int_equal((int)s.step_tokens.bound[2], 16);
    assert_int_equal(s.step_tokens.count[2], 2);
    assert_true(s.step_tokens.sum == 39);
    uint64_t n = 0;
    for (int i = 0; i <= s.step_seconds.n_bound; i++)
        n += s.step_seconds.count[i];
    assert_int_equal(n, 11);
    assert_true(s.step_seconds.sum > 0);
    engine_close(e);
    free(m.fake.kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_health_idle_running_stuck_and_back),
        cmocka_unit_test(test_health_failing_steps),
        cmocka_unit_test(test_health_a_thread_that_does_not_wake_is_stuck),
        cmocka_unit_test(test_health_histograms_count_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
