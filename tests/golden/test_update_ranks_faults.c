/* Updates of weights over several processes that fail in one of them, and experts that have moved before. */
#include "golden/emulated.h"
#include "golden/update_ranks_case.h"

#include "base/clock.h"
#include "model/model_state.h"

/* ---- faults -------------------------------------------------------------------------------------------- */

/* At every read and every step of the commit of each rank. */
static void check_faults(const char *folder, int n_rank, bool experts, enum update_staging staging)
{
    char *b = twin(folder, "b", "--perturb 61");
    struct model *m = open_group(folder, n_rank, experts);
    float *old = golden_answer(m);
    struct nyb_err err;
    enum update_state state;
    const struct update_options back = {.folder = folder, .staging = staging};
    golden_must(try_b(m, b, staging, &state, &err), &err);
    int count[COMM_RANK_MAX][3];
    for (int r = 0; r < n_rank; r++)
        for (int p = 0; p < 3; p++)
            count[r][p] = atomic_load(&fault_plan->count[r][p]);
    check(m, &back, false, UPDATE_NEW, old);
    for (int r = 0; r < n_rank; r++)
        for (int point = UPDATE_AT_READ; point <= (int)UPDATE_AT_COMMIT; point++) {
            assert_true(count[r][point] > 0);
            int stride = golden_fault_stride(count[r][point]);
            if (group_has_gpus && stride > 1) /* the emulator is slow: two places, or three, and one answer */
                stride = count[r][point] / 2;
            for (int at = r % stride; at < count[r][point]; at += stride) {
                plan_fault(r, (enum update_point)point, at);
                assert_int_equal(try_b(m, b, staging, &state, &err), NYB_E_IO);
                assert_int_equal(state, UPDATE_OLD);
                if (!group_has_gpus || at + stride >= count[r][point])
                    assert_answer(m, old);
            }
        }
    assert_checksum(m, folder); /* of every rank */
    plan_fault(-1, UPDATE_AT_READ, 0);
    golden_must(try_b(m, b, staging, &state, &err), &err); /* nothing hinders the next one */
    assert_checksum(m, b);
    close_group(m);
    free(old);
    free(b);
}

static void test_faults_on_any_rank(void **state)
{
    (void)state;
    NEED(GOLDEN);
    check_faults(GOLDEN "qwen3_moe-modelopt", 2, false, UPDATE_STAGING_ON);
    check_faults(GOLDEN "qwen3_moe-modelopt", 2, false, UPDATE_STAGING_OFF);
    check_faults(GOLDEN "qwen3_moe-modelopt", 3, true, UPDATE_STAGING_ON);
}

/* Ranks with a GPU each read in place, and go back by reading again: there as here. */
static void test_faults_on_any_gpu(void **state)
{
    (void)state;
    NEED(GOLDEN);
    if (!emulated_use())
        skip();
    group_has_gpus = true;
    check_faults(GOLDEN "qwen3_moe-modelopt", 2, false, UPDATE_STAGING_OFF);
    group_has_gpus = false;
}

/* A rank dies while it reads beside the steps, while it reads in place, and at both ends of the commit: rank
 * 0 keeps the old weights, and knows soon. */
static void test_a_rank_dies(void **state)
{
    (void)state;
    static const struct {
        enum update_staging staging;
        enum update_point point;
        int at;
    } row[] = {
        {UPDATE_STAGING_ON, UPDATE_AT_READ, 5},    {UPDATE_STAGING_OFF, UPDATE_AT_READ, 5},
        {UPDATE_STAGING_ON, UPDATE_AT_COMMIT, 0},  {UPDATE_STAGING_ON, UPDATE_AT_COMMIT, 7},
        {UPDATE_STAGING_OFF, UPDATE_AT_COMMIT, 3},
    };
    NEED(TALES);
    char *b = twin(TALES, "b", "--perturb 61");
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        struct nyb_err err = {0};
        enum update_state after;
        struct model *m = open_group(TALES, 2, i % 2);
        free(golden_answer(m));
        atomic_store(&fault_plan->kill, true);
        plan_fault(1, row[i].point, row[i].at);
        uint64_t begin = clock_ns();
        enum nyb_code code = try_b(m, b, row[i].staging, &after, &err);
        if (code != NYB_E_RANK || after != UPDATE_OLD || !strstr(err.message, "rank 1"))
            fail_msg("row %zu: code %d, state %s: %s", i, code, update_state_name(after), err.message);
        assert_true(clock_ns() - begin < 10000000000u); /* half of the ranks' time limit */
        close_group(m);
    }
    free(b);
}

/* ---- experts that move --------------------------------------------------------------------------------- */

#define LAYER 1 /* whose experts do */

/* As if so many rows had chosen each: of two ranks with 16 experts each, the plan exchanges 2 for 20 and
 * leaves all others where they are. It gives out the busiest first, to the rank with least so far or, where
 * both have the same, to whoever had it; so these five leave both ranks with the same, and after that come
 * pairs of one of each. */
static void plan_exchange(struct model *m)
{
    static const struct {
        int expert, count;
    } busy[] = {{0, 100000}, {2, 99000}, {16, 3000}, {20, 2500}, {17, 500}};
    int n_expert = m->config.moe.n_expert, pair[2] = {0};
    assert_int_equal(n_expert, 32);
    for (int i = 0; i < m->config.n_layer * n_expert; i++)
        atomic_store(&m->expert_load[i], 0);
    for (int e = 0; e < n_expert; e++) {
        int count = 0;
        for (size_t i = 0; i < COUNT_OF(busy); i++)
            count = busy[i].expert == e ? busy[i].count : count;
        atomic_store(&m->expert_load[LAYER * n_expert + e], (unsigned)(count ? count : 100 - pair[e / 16]++));
    }
    assert_true(model_rebalance_begin(m));
}

static int slot_of_expert(const struct model *m, int expert)
{
    int slot[64], at = 0;
    assert_true(model_expert_slots(m, LAYER, slot));
    while (slot[at] != expert)
        at++;
    return at;
}

/* Until it is done, with steps in between. */
static void exchange_experts(struct model *m)
{
    struct model_rebalance done;
    struct nyb_err err;
    bool more = true;
    while (more) {
        golden_must(model_rebalance_step(m, 1, &more, &done, &err), &err);
        free(golden_answer(m));
        usleep(more ? 1000 : 0);
    }
    assert_int_equal(done.n_move, 1);
    assert_int_equal(slot_of_expert(m, 2), 20);
    assert_int_equal(slot_of_expert(m, 20), 2);
}

/* The second rank is held in the middle of a read while the first closes the update: nothing moves, steps go
 * on, and so does the beginning of the next update, however long that takes. */
static void test_nothing_moves_while_a_rank_closes_an_update(void **state)
{
    (void)state;
    NEED(TALES);
    char *b = twin(TALES, "b", "--perturb 5");
    struct model *m = open_group(TALES, 2, true);
    float *old = golden_answer(m);
    const struct update_options o = {.folder = b, .staging = UPDATE_STAGING_ON};
    struct model_rebalance done;
    struct update_facts facts;
    struct update *u;
    struct nyb_err err;
    bool more;
    atomic_store(&fault_plan->hold, true);
    plan_fault(1, UPDATE_AT_READ, 0);
    golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
    poll_until_ready(m, u); /* and the second rank stages */
    while (!atomic_load(&fault_plan->count[1][UPDATE_AT_READ]))
        usleep(500);
    update_close(u);
    plan_exchange(m);
    for (int i = 0; i < 3; i++) {
        golden_must(model_rebalance_step(m, UINT64_MAX, &more, &done, &err), &err);
        assert_true(more);
        assert_int_equal(done.n_move, 0);
        assert_answer(m, old);
    }
    golden_must(update_prepare(&u, m, &o, &facts, &err), &err);
    assert_answer(m, old); /* which tells the others of it */
    atomic_store(&fault_plan->rank, -1);
    atomic_store(&fault_plan->hold, false);
    poll_until_ready(m, u);
    update_close(u);
    exchange_experts(m);
    assert_answer(m, old);
    assert_checksum(m, TALES);
    close_group(m);
    free(old);
    free(b);
}

/* An update in place that fails, and goes back to where the moved experts are from; then one that does not.
 */
static void check_way_back(struct model *m, const char *to)
{
    struct nyb_err err;
    enum update_state state;
    float *old = golden_answer(m);
    plan_fault(0, UPDATE_AT_READ, 5);
    assert_int_equal(try_b(m, to, UPDATE_STAGING_OFF, &state, &err), NYB_E_IO);
    assert_int_equal(state, UPDATE_OLD);
    assert_answer(m, old);
    plan_fault(-1, UPDATE_AT_READ, 0);
    golden_must(try_b(m, to, UPDATE_STAGING_OFF, &state, &err), &err);
    assert_checksum(m, to);
    free(old);
}

static void update_some(struct model *m, const char *folder, const char *const *names, int n)
{
    struct nyb_err err = {0};
    enum update_state state;
    const struct update_options some = {
        .folder = folder, .names = names, .n_names = n, .staging = UPDATE_STAGING_ON};
    golden_must(try_update(m, &some, false, &state, &err), &err);
}

/* Both ranks have both checkpoints open, one parameter each of the second. When those change places, a rank
 * gives up the one that it had before the other comes. */
static void test_moved_experts_are_read_again(void **state)
{
    (void)state;
    static const char *const names[] = {"model.layers.1.mlp.experts.2.down_proj.*",
                                        "model.layers.1.mlp.experts.20.gate_proj.*"};
    NEED(TALES);
    char *b = twin(TALES, "b", "--perturb 5 --compressed"), *c = twin(TALES, "c", "--perturb 6");
    struct model *m = open_group(TALES, 2, true);
    update_some(m, b, names, 2);
    plan_exchange(m);
    exchange_experts(m);
    check_way_back(m, c);
    close_group(m);
    free(b);
    free(c);
}

/* Another checkpoint lies where the served one was read from, and one expert comes from it. The rank to which
 * that expert moves has only the first one open, so that an update in place keeps a copy of it. */
static void test_an_expert_of_a_folder_that_was_replaced(void **state)
{
    (void)state;
    static const char *const names[] = {"model.layers.1.mlp.experts.2.*"};
    NEED(TALES);
    char *a = twin(TALES, "served", "--perturb 5"), *c = twin(TALES, "c", "--perturb 7"),
         *aside = path_join(workshop, "aside");
    struct model *m = open_group(a, 2, true);
    assert_int_equal(rename(a, aside), 0);
    free(twin(TALES, "served", "--perturb 6"));
    update_some(m, a, names, 1);
    plan_exchange(m);
    exchange_experts(m);
    check_way_back(m, c);
    close_group(m);
    free(a);
    free(c);
    free(aside);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults_on_any_rank),
        cmocka_unit_test(test_faults_on_any_gpu),
        cmocka_unit_test(test_a_rank_dies),
        cmocka_unit_test(test_nothing_moves_while_a_rank_closes_an_update),
        cmocka_unit_test(test_moved_experts_are_read_again),
        cmocka_unit_test(test_an_expert_of_a_folder_that_was_replaced),
    };
    return cmocka_run_group_tests(tests, make_workshop, drop_workshop);
}
