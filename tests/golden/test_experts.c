/* Experts shared out over processes: whatever the number of ranks, copies and moves, requests get the tokens
 * that one process gives, while experts move, too; and what the routers choose is counted for all of them. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/mem.h"
#include "nybble.h"
#include "test.h"

#define MODEL     NYBBLE_SOURCE_DIR "/models/tales-24m-moe-nvfp4"
#define N_REQUEST 10
#define MAX_OUT   40

static const char *const opening[] = {
    "Once upon a time there was a little girl who",
    "The old king had three sons, and the youngest",
    "Once upon a time",
    "In the middle of the forest stood a house. Nobody knew who had built it, for nobody had ever seen a "
    "light "
    "in its windows. But one winter night, when the snow lay deep and the wolves were hungry, a woodcutter",
    "\"Who are you?\" asked the fox.",
};

struct answer {
    int32_t id[MAX_OUT];
    int n;
};

/* What is counted of a run. */
struct counts {
    int n_layer, n_expert;
    uint64_t *of; /* (n_layer, n_expert) */
};

/* ---- engines ------------------------------------------------------------------------------------- */

static void set_options(struct nyb_options *o)
{
    nyb_options_init(o);
    o->model = MODEL;
    o->threads = 1;
    o->max_model_len = 256;
    o->max_num_seqs = N_REQUEST;
    o->max_num_batched_tokens = 64;
    o->prefix_cache = false; /* so that every run computes the same rows */
}

/* The other ranks live in here. */
static struct nyb_engine *open_engine(struct nyb_options *o)
{
    struct nyb_engine *e;
    struct nyb_err err;
    if (nyb_ranks_open(&o->ranks, o, &err) != NYB_OK)
        fail_msg("%s", err.message);
    if (nyb_ranks_rank(o->ranks) > 0)
        _exit(nyb_ranks_follow(o->ranks, o, &err) != NYB_OK);
    if (nyb_open(&e, o, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    return e;
}

static struct nyb_stream *submit(struct nyb_engine *e, int i)
{
    struct nyb_sampling s;
    struct nyb_stream *stream;
    struct nyb_err err;
    nyb_sampling_init(&s);
    s.max_tokens = MAX_OUT;
    s.temperature = i % 2 ? 0.8 : 0;
    s.seed = 100 + i;
    s.ignore_eos = true;
    const struct nyb_request r = {.text = opening[(size_t)i % (sizeof(opening) / sizeof(*opening))],
                                  .sampling = &s};
    if (nyb_submit(e, &r, &stream, &err) != NYB_OK)
        fail_msg("%s: %s", err.where, err.message);
    return stream;
}

static void finish(struct nyb_stream *stream, struct answer *a)
{
    struct nyb_event ev;
    *a = (struct answer){0};
    while (nyb_next(stream, &ev, 60000))
        if (ev.token >= 0)
            a->id[a->n++] = ev.token;
    nyb_stream_free(stream);
}

static void run_all(struct nyb_engine *e, struct answer *a)
{
    struct nyb_stream *stream[N_REQUEST];
    for (int i = 0; i < N_REQUEST; i++)
        stream[i] = submit(e, i);
    for (int i = 0; i < N_REQUEST; i++)
        finish(stream[i], &a[i]);
}

static void take_counts(const struct nyb_engine *e, struct counts *c)
{
    const struct nyb_info *info = nyb_engine_info(e);
    c->n_layer = info->n_layer;
    c->n_expert = info->n_expert;
    c->of = mem_alloc((size_t)c->n_layer * (size_t)c->n_expert, sizeof(*c->of));
    for (int l = 0; l < c->n_layer; l++)
        (void)nyb_expert_load(e, l, c->of + (size_t)l * (size_t)c->n_expert);
}

/* ---- what one process gives ---------------------------------------------------------------------- */

static struct answer wanted[N_REQUEST];
static struct counts wanted_counts; /* of one run */

static int run_alone(void **state)
{
    (void)state;
    struct nyb_options o;
    set_options(&o);
    struct nyb_engine *e = open_engine(&o);
    run_all(e, wanted);
    take_counts(e, &wanted_counts);
    nyb_close(e);
    return 0;
}

static int forget(void **state)
{
    (void)state;
    free(wanted_counts.of);
    return 0;
}

/* ---- the same over ranks ------------------------------------------------------------------------- */

static void check_answers(const struct answer *a)
{
    for (int i = 0; i < N_REQUEST; i++) {
        assert_int_equal(a[i].n, wanted[i].n);
        assert_memory_equal(a[i].id, wanted[i].id, (size_t)a[i].n * sizeof(a[i].id[0]));
    }
}

/* Each expert somewhere, every rank's pairs counted, and as many computed as chosen. */
static void check_facts(const struct nyb_engine *e, int n_run, int n_rank, int n_redundant)
{
    struct counts c;
    struct nyb_experts x;
    take_counts(e, &c);
    nyb_engine_experts(e, &x);
    assert_int_equal(x.ranks, n_rank);
    assert_int_equal(x.slots, c.n_expert + n_redundant);
    uint64_t *all = mem_alloc((size_t)n_rank, sizeof(*all)),
             *recent = mem_alloc((size_t)n_rank, sizeof(*all));
    int *slot = mem_alloc((size_t)x.slots, sizeof(*slot));
    for (int l = 0; l < c.n_layer; l++) {
        uint64_t chosen = 0, computed = 0;
        bool *there = mem_alloc((size_t)c.n_expert, sizeof(*there));
        const uint64_t *count = c.of + l * c.n_expert, *one = wanted_counts.of + l * c.n_expert;
        if (!nyb_expert_slots(e, l, slot))
            continue;
        assert_true(nyb_rank_load(e, l, all, recent));
        for (int s = 0; s < x.slots; s++)
            there[slot[s]] = true;
        for (int i = 0; i < c.n_expert; i++) {
            assert_true(there[i]);
            assert_int_equal(count[i], (uint64_t)n_run * one[i]);
            chosen += count[i];
        }
        for (int r = 0; r < n_rank; r++)
            computed += all[r];
        assert_int_equal(chosen, computed);
        free(there);
    }
    free(all);
    free(recent);
    free(slot);
    free(c.of);
}

/* Somebody who has experts moved all the time. */
struct mover {
    struct nyb_engine *engine;
    atomic_bool stop;
    int n_called;
    enum nyb_code code;
};

static void *move_often(void *arg)
{
    struct mover *m = arg;
    struct nyb_rebalance r;
    struct nyb_err err;
    while (!atomic_load(&m->stop) && m->code == NYB_OK) {
        m->code = nyb_rebalance_experts(m->engine, &r, &err);
        m->n_called += m->code == NYB_OK;
        usleep(3000);
    }
    return NULL;
}

static void check_ranks(struct nyb_options *o, bool on_demand)
{
    struct answer a[N_REQUEST];
    struct nyb_engine *e = open_engine(o);
    struct mover mover = {.engine = e};
    struct nyb_experts before, after;
    pthread_t thread;
    nyb_engine_experts(e, &before);
    if (on_demand)
        assert_int_equal(pthread_create(&thread, NULL, move_often, &mover), 0);
    run_all(e, a);
    check_answers(a);
    run_all(e, a);
    check_answers(a);
    atomic_store(&mover.stop, true);
    if (on_demand) {
        pthread_join(thread, NULL);
        assert_int_equal(mover.code, NYB_OK);
        assert_true(mover.n_called > 0);
    }
    nyb_engine_experts(e, &after);
    assert_true(!on_demand || after.moves > before.moves);
    if (o->expert_rebalance_interval)
        assert_true(after.rebalances > 0 && after.moves > 0 && after.moved_bytes > 0);
    run_all(e, a); /* from where experts have come to be */
    check_answers(a);
    check_facts(e, 3, o->tensor_parallel_size, o->num_redundant_experts);
    nyb_close(e);
}

static void test_experts_of_two_ranks(void **state)
{
    (void)state;
    struct nyb_options o;
    set_options(&o);
    o.expert_parallel = true;
    o.tensor_parallel_size = 2;
    check_ranks(&o, false);
}

static void test_experts_that_move_every_few_steps(void **state)
{
    (void)state;
    struct nyb_options o;
    set_options(&o);
    o.expert_parallel = true;
    o.tensor_parallel_size = 3;
    o.num_redundant_experts = 4;
    o.expert_rebalance_interval = 5;
    check_ranks(&o, false);
}

static void test_experts_that_move_when_asked(void **state)
{
    (void)state;
    struct nyb_options o;
    set_options(&o);
    o.expert_parallel = true;
    o.tensor_parallel_size = 4;
    check_ranks(&o, true);
    o.num_redundant_experts = 9;
    o.two_batch_overlap = true; /* of steps as small as can be cut */
    o.tbo_prefill_min = o.tbo_decode_min = 2;
    o.expert_rebalance_interval = 7;
    check_ranks(&o, true);
}

/* Random weights are of the parameter, not of the slot: ranks and copies have the same ones. */
static void test_random_experts_are_the_same_on_all_ranks(void **state)
{
    (void)state;
    struct answer one[N_REQUEST], many[N_REQUEST];
    struct nyb_options o;
    set_options(&o);
    o.load_format = NYB_LOAD_DUMMY;
    struct nyb_engine *e = open_engine(&o);
    run_all(e, one);
    nyb_close(e);
    o.expert_parallel = true;
    o.tensor_parallel_size = 3;
    o.num_redundant_experts = 7;
    e = open_engine(&o);
    run_all(e, many);
    nyb_close(e);
    for (int i = 0; i < N_REQUEST; i++) {
        assert_int_equal(many[i].n, one[i].n);
        assert_memory_equal(many[i].id, one[i].id, (size_t)one[i].n * sizeof(one[i].id[0]));
    }
}

/* ---- what does not work -------------------------------------------------------------------------- */

static void test_moving_needs_several_ranks(void **state)
{
    (void)state;
    struct nyb_options o;
    struct nyb_rebalance r;
    struct nyb_err err;
    set_options(&o);
    struct nyb_engine *e = open_engine(&o);
    assert_int_equal(nyb_rebalance_experts(e, &r, &err), NYB_E_UNSUPPORTED);
    nyb_close(e);
    o.num_redundant_experts = 2;
    assert_int_equal(nyb_open(&e, &o, &err), NYB_E_ARG);
    assert_string_equal(err.where, "num_redundant_experts");
    o.expert_parallel = true; /* of one rank */
    assert_int_equal(nyb_open(&e, &o, &err), NYB_E_ARG);
    assert_string_equal(err.where, "num_redundant_experts");
    o.expert_parallel = false;
    o.num_redundant_experts = 0;
    o.expert_rebalance_interval = 5;
    assert_int_equal(nyb_open(&e, &o, &err), NYB_E_ARG);
    assert_string_equal(err.where, "expert_rebalance_interval");
}

static void test_no_more_copies_than_ranks(void **state)
{
    (void)state;
    struct nyb_options o;
    struct nyb_engine *e;
    struct nyb_err err;
    set_options(&o);
    o.expert_parallel = true;
    o.tensor_parallel_size = 2;
    o.num_redundant_experts = wanted_counts.n_expert + 1;
    assert_int_equal(nyb_ranks_open(&o.ranks, &o, &err), NYB_OK);
    if (nyb_ranks_rank(o.ranks) > 0)
        _exit(nyb_ranks_follow(o.ranks, &o, &err) != NYB_E_RANGE);
    assert_int_equal(nyb_open(&e, &o, &err), NYB_E_RANGE);
    assert_string_equal(err.where, "num_redundant_experts");
    nyb_ranks_close(o.ranks);
}

/* The model is open on all ranks, but the cache has no room: whoever opened the ranks closes them. */
static void test_an_engine_that_does_not_open_leaves_the_ranks(void **state)
{
    (void)state;
    struct nyb_options o;
    struct nyb_engine *e;
    struct nyb_err err;
    set_options(&o);
    o.expert_parallel = true;
    o.tensor_parallel_size = 2;
    o.kv_cache_bytes = 1 << 16;
    assert_int_equal(nyb_ranks_open(&o.ranks, &o, &err), NYB_OK);
    if (nyb_ranks_rank(o.ranks) > 0)
        _exit(nyb_ranks_follow(o.ranks, &o, &err) != NYB_OK);
    assert_int_equal(nyb_open(&e, &o, &err), NYB_E_MEMORY);
    assert_null(e);
    nyb_ranks_close(o.ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_of_two_ranks),
        cmocka_unit_test(test_experts_that_move_every_few_steps),
        cmocka_unit_test(test_experts_that_move_when_asked),
        cmocka_unit_test(test_random_experts_are_the_same_on_all_ranks),
        cmocka_unit_test(test_moving_needs_several_ranks),
        cmocka_unit_test(test_no_more_copies_than_ranks),
        cmocka_unit_test(test_an_engine_that_does_not_open_leaves_the_ranks),
    };
    return cmocka_run_group_tests(tests, run_alone, forget);
}
