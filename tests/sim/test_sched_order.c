/* What the scheduler promises, one by one: who goes first, who waits for whom, and who is preempted. */
#include "test.h"

#include "engine/engine.h"
#include "fake_runner.h"

#define PROMPT_MAX 160

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
    int32_t prompt[PROMPT_MAX];
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
    int32_t before[PROMPT_MAX];
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sched_short_prompt_does_not_wait_for_a_long_one),
        cmocka_unit_test(test_sched_decodes_go_on_beside_a_prefill),
        cmocka_unit_test(test_sched_priority_goes_first),
        cmocka_unit_test(test_sched_the_last_in_order_is_preempted),
        cmocka_unit_test(test_sched_a_stalled_reader_stops_only_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
