/* The engine's thread: many readers at once, somebody who meddles between steps, and stopping. */
#include "test.h"

#include <pthread.h>
#include <time.h>

#include "engine/engine.h"
#include "fake_runner.h"

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
        cmocka_unit_test(test_engine_thread_serves_many_readers),
        cmocka_unit_test(test_engine_stop_ends_what_runs_and_refuses_what_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
