/* What the scheduler promises, one by one: who goes first, who waits for whom, who is preempted, and where a
 * sequence lives. */
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

static void open_step(struct small *s, const struct step_options *o)
{
    memset(s, 0, sizeof(*s));
    s->fake =
        (struct fake){.max_seq = o->max_num_seqs, .max_tok = o->max_num_batched_tokens, .n_rank = o->n_rank};
    struct runner r = fake_runner(&s->fake);
    assert_int_equal(step_open(&s->step, &r, o, NULL), NYB_OK);
}

static void open_small(struct small *s, int seqs, int tokens, int n_block, int max_len)
{
    const struct step_options o = {.max_num_seqs = seqs,
                                   .max_num_batched_tokens = tokens,
                                   .max_len = max_len,
                                   .max_live = 16,
                                   .n_block = n_block,
                                   .prefix_cache = false};
    open_step(s, &o);
}

static void open_ranks(struct small *s, int n_rank)
{
    const struct step_options o = {.max_num_seqs = 10,
                                   .max_num_batched_tokens = 512,
                                   .max_len = 150,
                                   .max_live = 16,
                                   .n_block = 80,
                                   .prefix_cache = true,
                                   .n_rank = n_rank};
    open_step(s, &o);
}

static void close_small(struct small *s)
{
    sched_check(&s->step.sched);
    step_abort_all(&s->step);
    assert_int_equal(kv_free_count(s->step.kv), kv_block_count(s->step.kv));
    step_close(&s->step);
    free(s->fake.kv);
}

static struct request *add_scored(struct small *s, int n_prompt, int max_tokens, int64_t key, int n_score)
{
    struct request *r = request_new();
    int32_t prompt[PROMPT_MAX];
    for (int i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)((key + i) % FAKE_VOCAB + FAKE_VOCAB) % FAKE_VOCAB;
    r->p = (struct params){
        .top_p = 1, .repetition = 1, .max_tokens = max_tokens, .n_logprob = -1, .n_prompt_logprob = n_score};
    request_prepare(r, prompt, n_prompt, FAKE_VOCAB);
    r->key = key;
    r->attention = &s->step.attention;
    r->engine_bell = &s->bell;
    step_add(&s->step, r);
    return r;
}

static struct request *add_small(struct small *s, int n_prompt, int max_tokens, int64_t key)
{
    return add_scored(s, n_prompt, max_tokens, key, -1);
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

/* The logits that score prompts have room for so many rows: who comes first takes them, and the next waits.
 */
static void test_sched_scored_prompts_share_the_rows(void **state)
{
    (void)state;
    static const int computed[][2] = {{16, 0}, {32, 0}, {40, 8}, {41, 24}, {42, 40}, {43, 41}};
    struct nyb_logprob score[2][40];
    for (int narrow = 0; narrow < 2; narrow++) {
        struct small s;
        open_small(&s, 3, 64, 64, 64);
        if (narrow)
            s.step.sched.limit.max_score_rows = 16;
        struct request *a = add_scored(&s, 40, 9, 1, 0), *b = add_scored(&s, 40, 9, 2, 0);
        struct request *c = add_small(&s, 4, 9, 3); /* it wants none, but comes after them */
        for (int i = 0; i < 6; i++) {
            step_run(&s.step);
            assert_true(!narrow || (a->n_computed == computed[i][0] && b->n_computed == computed[i][1]));
            assert_true(!narrow || (c->n_computed > 0) == (i > 1));
        }
        assert_true(a->n_scored == 40 && b->n_scored == 40);
        memcpy(score[narrow], b->prompt_logprob, sizeof(score[narrow]));
        close_small(&s);
        request_release(a);
        request_release(b);
        request_release(c);
    }
    assert_memory_equal(score[0] + 1, score[1] + 1, sizeof(score[0]) - sizeof(score[0][0]));
}

/* Before the weights change, those who have begun may end; who has not, waits. */
static void test_sched_only_who_has_begun_goes_on(void **state)
{
    (void)state;
    struct small s;
    open_small(&s, 1, 16, 64, 64);
    struct request *a = add_small(&s, 4, 8, 5), *b = add_small(&s, 4, 2, 3);
    step_run(&s.step);
    assert_true(b->state == REQUEST_RUNNING && a->state == REQUEST_WAITING);
    s.step.sched.only_started = true;
    struct request *c = add_small(&s, 4, 2, 1);
    for (int i = 0; i < 3; i++)
        step_run(&s.step);
    assert_true(b->state == REQUEST_DONE && a->state == REQUEST_WAITING && c->state == REQUEST_WAITING);
    s.step.sched.only_started = false;
    step_run(&s.step);
    step_run(&s.step);
    assert_true(c->state == REQUEST_DONE);
    step_run(&s.step);
    assert_true(a->state == REQUEST_RUNNING);
    s.step.sched.only_started = true;
    step_retract_all(&s.step); /* back to those who wait, begun as it is, behind one who has not */
    struct request *d = add_small(&s, 4, 2, 1);
    step_run(&s.step);
    assert_true(a->state == REQUEST_RUNNING && d->state == REQUEST_WAITING);
    close_small(&s);
    request_release(a);
    request_release(b);
    request_release(c);
    request_release(d);
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

static int take_all(struct request *r)
{
    struct reply reply;
    const struct nyb_logprob *none;
    int n = 0;
    for (; request_peek(r, &reply, &none); request_pop(r))
        n += reply.token >= 0;
    return n;
}

/* All tokens of a request of 4 and 100 that nobody disturbs. */
static void answer_alone(int32_t *tok)
{
    struct small s;
    open_small(&s, 1, 16, 10, 150);
    struct request *a = add_small(&s, 4, 100, 1);
    while (step_run(&s.step))
        take_all(a);
    assert_int_equal(a->n_tok, 104);
    memcpy(tok, a->tok, 104 * sizeof(*tok));
    close_small(&s);
    request_release(a);
}

/* Who waits, with blocks from before it was parked, gives them to who runs. */
static void test_sched_blocks_of_the_waiting_are_taken_back(void **state)
{
    (void)state;
    struct small s;
    int32_t alone[104];
    answer_alone(alone);
    open_small(&s, 1, 16, 10, 150);
    struct request *a = add_small(&s, 4, 100, 1);
    while (a->state != REQUEST_PARKED)
        step_run(&s.step);
    int seen = 0, held = a->n_block;
    struct request *b = add_small(&s, 4, 140, 2);
    for (; b->n_block < 3; take_all(b))
        step_run(&s.step);
    seen += take_all(a); /* it wants to go on, but b runs */
    for (; b->n_block + held < 10; take_all(b))
        step_run(&s.step);
    assert_true(a->state == REQUEST_WAITING && a->n_block == held);
    for (; b->n_block + held < 11; take_all(b))
        step_run(&s.step);
    assert_true(a->state == REQUEST_WAITING && a->n_block == 0 && b->state == REQUEST_RUNNING);
    while (step_run(&s.step)) {
        take_all(b);
        seen += take_all(a);
    }
    assert_int_equal(seen + take_all(a), 100);
    assert_memory_equal(a->tok, alone, sizeof(alone));
    close_small(&s);
    request_release(a);
    request_release(b);
}

/* A request that lost its place, for whose next replies there is no room, does not take it again. */
static void test_sched_who_has_no_room_for_replies_is_not_admitted(void **state)
{
    (void)state;
    struct small s;
    int32_t alone[104];
    answer_alone(alone);
    open_small(&s, 1, 16, 10, 150);
    struct request *a = add_small(&s, 4, 100, 1);
    for (int i = 0; i < REQUEST_RING - 1; i++)
        step_run(&s.step);
    assert_true(a->state == REQUEST_RUNNING && a->n_tok == 4 + REQUEST_RING - 1);
    step_retract_all(&s.step);
    assert_int_equal(a->state, REQUEST_WAITING);
    assert_false(step_run(&s.step));
    assert_true(a->state == REQUEST_PARKED && a->n_block == 0);
    int seen = take_all(a);
    while (step_run(&s.step))
        seen += take_all(a);
    assert_int_equal(seen + take_all(a), 100);
    assert_memory_equal(a->tok, alone, sizeof(alone));
    close_small(&s);
    request_release(a);
}

static void test_sched_a_sequence_goes_where_least_is_to_do(void **state)
{
    (void)state;
    static const int n_prompt[] = {100, 20, 20, 20, 20, 20}, home[] = {0, 1, 2, 1, 2, 1};
    struct small s;
    struct request *r[6];
    open_ranks(&s, 3);
    for (int i = 0; i < 6; i++)
        r[i] = add_small(&s, n_prompt[i], 5, i);
    step_run(&s.step);
    for (int i = 0; i < 6; i++)
        assert_int_equal(r[i]->home, home[i]);
    assert_true(s.fake.rows_at[0] == 100 && s.fake.rows_at[1] == 60 && s.fake.rows_at[2] == 40);
    struct request *next = add_small(&s, 20, 5, 6); /* the long prompt is computed now: one sequence there */
    step_run(&s.step);
    assert_int_equal(next->home, 0);
    close_small(&s);
    for (int i = 0; i < 6; i++)
        request_release(r[i]);
    request_release(next);
}

/* What a rank has of a prompt draws it there, until others keep that rank busier than computing it anew would
 * keep another one. Nothing cached is taken from another rank. */
static void test_sched_a_prompt_goes_where_its_beginning_is(void **state)
{
    (void)state;
    static const int home[] = {1, 1, 1, 1, 0, 0}, cached[] = {64, 64, 64, 64, 0, 64};
    struct small s;
    struct request *r[6];
    open_ranks(&s, 2);
    struct request *other = add_small(&s, 40, 1, 1), *first = add_small(&s, 64, 1, 2);
    step_run(&s.step);
    assert_true(other->state == REQUEST_DONE && first->state == REQUEST_DONE);
    assert_true(other->home == 0 && first->home == 1);
    for (int i = 0; i < 6; i++) {
        r[i] = add_small(&s, 80, 20, 2 + (i + 1) * FAKE_VOCAB); /* first's tokens, and 16 more */
        step_run(&s.step);
        assert_int_equal(r[i]->home, home[i]);
        assert_int_equal(r[i]->n_cached, cached[i]);
        assert_int_equal(r[i]->tok[80], r[0]->tok[80]);
    }
    close_small(&s);
    request_release(other);
    request_release(first);
    for (int i = 0; i < 6; i++)
        request_release(r[i]);
}

/* The cached tokens of a reply are those of others: what is found of its own, once it goes on, is not
 * counted. */
static void test_sched_own_blocks_are_not_counted_as_cached(void **state)
{
    (void)state;
    struct small s;
    open_ranks(&s, 1);
    struct request *a = add_small(&s, 40, 20, 1);
    step_run(&s.step);
    step_retract_all(&s.step);
    assert_true(a->state == REQUEST_WAITING && a->n_computed == 0);
    step_run(&s.step);
    assert_int_equal(s.step.sched.prefix_hits, 32);
    assert_int_equal(a->n_cached, 0);
    close_small(&s);
    request_release(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sched_short_prompt_does_not_wait_for_a_long_one),
        cmocka_unit_test(test_sched_decodes_go_on_beside_a_prefill),
        cmocka_unit_test(test_sched_priority_goes_first),
        cmocka_unit_test(test_sched_the_last_in_order_is_preempted),
        cmocka_unit_test(test_sched_scored_prompts_share_the_rows),
        cmocka_unit_test(test_sched_only_who_has_begun_goes_on),
        cmocka_unit_test(test_sched_a_stalled_reader_stops_only_itself),
        cmocka_unit_test(test_sched_blocks_of_the_waiting_are_taken_back),
        cmocka_unit_test(test_sched_who_has_no_room_for_replies_is_not_admitted),
        cmocka_unit_test(test_sched_a_sequence_goes_where_least_is_to_do),
        cmocka_unit_test(test_sched_a_prompt_goes_where_its_beginning_is),
        cmocka_unit_test(test_sched_own_blocks_are_not_counted_as_cached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
