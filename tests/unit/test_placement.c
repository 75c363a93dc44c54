/* Where experts are and where they should be: every plan is a placement, gets better and never worse the more
 * copies there are, and the way to it is one on which every expert stays somewhere. */
#include <math.h>

#include "base/mem.h"
#include "model/placement.h"
#include "test.h"

/* ---- placements ---------------------------------------------------------------------------------- */

static void check_whole(const struct placement *p)
{
    int n = 0;
    for (int e = 0; e < p->n_expert; e++) {
        assert_true(placement_copies(p, e) >= 1);
        for (int i = p->first[e]; i < p->first[e + 1]; i++, n++) {
            assert_int_equal(p->expert[p->copy[i]], e);
            assert_true(i == p->first[e] || p->copy[i] > p->copy[i - 1]);
        }
    }
    assert_int_equal(n, p->n_slot);
}

static void test_slots_are_shared_out_over_the_ranks(void **state)
{
    (void)state;
    for (int n_rank = 1; n_rank <= 9; n_rank++)
        for (int n_slot = 4; n_slot <= 4 * n_rank && n_slot < 20; n_slot++) {
            struct placement p;
            placement_init(&p, 4, n_slot, n_rank);
            check_whole(&p);
            int next = 0;
            for (int r = 0; r < n_rank; r++) {
                struct shard_range own = placement_slots(r, n_rank, n_slot);
                assert_int_equal(own.begin, next);
                assert_in_range(own.count, n_slot / n_rank, (n_slot + n_rank - 1) / n_rank);
                for (int s = own.begin; s < own.begin + own.count; s++)
                    assert_int_equal(placement_rank(&p, s), r);
                next = own.begin + own.count;
            }
            assert_int_equal(next, n_slot);
            placement_free(&p);
        }
}

/* ---- plans --------------------------------------------------------------------------------------- */

/* Some experts have nothing to do, few have much. */
static void make_load(double *load, int n, uint64_t *seed)
{
    for (int e = 0; e < n; e++) {
        double x = (double)(test_random(seed) >> 11) * 0x1p-53;
        load[e] = x < 0.2 ? 0 : floor(1000 * x * x * x * x);
    }
}

/* The busiest rank's load, counted another way than the balancer does. */
static double busiest(const struct placement *p, const int16_t *expert, const double *load)
{
    double most = 0;
    for (int r = 0; r < p->n_rank; r++) {
        struct shard_range own = placement_slots(r, p->n_rank, p->n_slot);
        double rank = 0;
        for (int s = own.begin; s < own.begin + own.count; s++) {
            int copies = 0;
            for (int i = 0; i < p->n_slot; i++)
                copies += expert[i] == expert[s];
            rank += load[expert[s]] / copies;
        }
        most = fmax(most, rank);
    }
    return most;
}

static int count(const int16_t *expert, struct shard_range slots, int e)
{
    int n = 0;
    for (int s = slots.begin; s < slots.begin + slots.count; s++)
        n += expert[s] == e;
    return n;
}

/* Copies go where one copy has most to do: no expert has a copy that another one would need more. */
static void check_copies(const struct placement *p, const int16_t *target, const double *load)
{
    const struct shard_range all = {0, p->n_slot};
    for (int e = 0; e < p->n_expert; e++)
        for (int f = 0, n = count(target, all, e); f < p->n_expert && n > 1; f++) {
            int other = count(target, all, f);
            assert_true(other == p->n_rank || load[e] / (n - 1) >= load[f] / other * (1 - 1e-9));
        }
}

/* What stays on a rank stays in its slot. */
static void check_kept(const struct placement *p, const int16_t *target)
{
    for (int r = 0; r < p->n_rank; r++) {
        struct shard_range own = placement_slots(r, p->n_rank, p->n_slot);
        int kept = 0, common = 0;
        for (int e = 0; e < p->n_expert; e++) {
            int now = count(p->expert, own, e), then = count(target, own, e);
            common += now < then ? now : then;
        }
        for (int s = own.begin; s < own.begin + own.count; s++)
            kept += target[s] == p->expert[s];
        assert_int_equal(kept, common);
    }
}

static void check_plan(const struct placement *p, const int16_t *target, const double *load)
{
    double sum = 0;
    bool there[512] = {false};
    for (int s = 0; s < p->n_slot; s++) {
        assert_in_range(target[s], 0, p->n_expert - 1);
        there[target[s]] = true;
    }
    for (int e = 0; e < p->n_expert; e++) {
        assert_true(there[e]);
        sum += load[e];
    }
    double got = balance_of(p, target, load),
           expected = sum > 0 ? busiest(p, target, load) * p->n_rank / sum : 1;
    assert_true(fabs(got - expected) < 1e-9 * expected);
    assert_true(got >= 1 - 1e-9);
    check_copies(p, target, load);
    check_kept(p, target);
}

/* Walk there. After every step each expert is somewhere; no more steps than slots differ. */
static void check_way(struct placement *p, const int16_t *target)
{
    struct placement_move move;
    int differ = 0, n = 0;
    for (int s = 0; s < p->n_slot; s++)
        differ += p->expert[s] != target[s];
    for (; balance_next(p, target, &move); n++) {
        assert_true(n < differ);
        assert_int_equal(p->expert[move.from], target[move.to]);
        assert_int_not_equal(p->expert[move.to], target[move.to]);
        struct shard_range own = placement_slots(placement_rank(p, move.to), p->n_rank, p->n_slot);
        if (!move.exchange && count(p->expert, own, target[move.to])) /* then nothing travels */
            assert_int_equal(placement_rank(p, move.from), placement_rank(p, move.to));
        if (move.exchange)
            assert_int_not_equal(p->expert[move.from], target[move.from]); /* nothing settled is taken away */
        placement_apply(p, &move);
        check_whole(p);
    }
    for (int s = 0; s < p->n_slot; s++)
        assert_int_equal(p->expert[s], target[s]);
}

static void test_plans_are_placements_and_can_be_reached(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int round = 0; round < 400; round++) {
        struct placement p;
        int n_expert = 1 + (int)(test_random(&seed) % 64), n_rank = 1 + (int)(test_random(&seed) % 8);
        int more = (int)(test_random(&seed) % (uint64_t)(n_expert * (n_rank - 1) + 1));
        double load[64];
        placement_init(&p, n_expert, n_expert + more, n_rank);
        int16_t *target = mem_alloc((size_t)p.n_slot, sizeof(*target));
        for (int time = 0; time < 4; time++) {
            make_load(load, n_expert, &seed);
            balance_plan(&p, load, target);
            check_plan(&p, target, load);
            check_way(&p, target);
        }
        free(target);
        placement_free(&p);
    }
}

/* Two experts have nearly everything to do and begin on one rank. */
static void test_a_hot_rank_is_relieved(void **state)
{
    (void)state;
    double load[16];
    int16_t target[24];
    struct placement p;
    for (int e = 0; e < 16; e++)
        load[e] = e < 2 ? 700 : 10;
    placement_init(&p, 16, 16, 4);
    double before = balance_of(&p, p.expert, load);
    balance_plan(&p, load, target);
    double apart = balance_of(&p, target, load); /* on ranks of their own: 730 of 385 at the least */
    assert_true(before > 3.6 && apart < 2.0);
    placement_free(&p);
    placement_init(&p, 16, 24, 4); /* and in copies */
    balance_plan(&p, load, target);
    assert_true(balance_of(&p, target, load) < 1.05);
    for (int r = 0; r < 4; r++) { /* one of each on each rank */
        int n[2] = {0};
        for (int s = 6 * r; s < 6 * r + 6; s++)
            if (target[s] < 2)
                n[target[s]]++;
        assert_true(n[0] == 1 && n[1] == 1);
    }
    placement_free(&p);
}

static void test_an_even_load_moves_nothing_between_ranks(void **state)
{
    (void)state;
    double load[12];
    int16_t target[12];
    struct placement p;
    for (int e = 0; e < 12; e++)
        load[e] = 5;
    placement_init(&p, 12, 12, 3);
    balance_plan(&p, load, target);
    assert_true(fabs(balance_of(&p, target, load) - 1) < 1e-9);
    double none[12] = {0};
    assert_true(fabs(balance_of(&p, p.expert, none) - 1) < 1e-9);
    balance_plan(&p, load, target);
    check_way(&p, target);
    balance_plan(&p, load, target); /* from there nothing is better */
    struct placement_move move;
    assert_false(balance_next(&p, target, &move));
    placement_free(&p);
}

/* Of ranks that are equally good, the one where the expert is. */
static void test_an_even_load_leaves_experts_that_have_moved(void **state)
{
    (void)state;
    const double load[3] = {5, 5, 5};
    int16_t target[3];
    struct placement p;
    struct placement_move move = {.from = 0, .to = 2, .exchange = true};
    placement_init(&p, 3, 3, 3);
    placement_apply(&p, &move);
    balance_plan(&p, load, target);
    assert_false(balance_next(&p, target, &move));
    placement_free(&p);
}

/* Nobody has anything to do: copies still go to ranks that have none, where there is room. */
static void test_copies_are_on_ranks_of_their_own(void **state)
{
    (void)state;
    const double none[8] = {0};
    int16_t target[16];
    struct placement p;
    placement_init(&p, 8, 16, 4);
    balance_plan(&p, none, target);
    for (int r = 0; r < 4; r++)
        for (int e = 0; e < 8; e++)
            assert_true(count(target, placement_slots(r, 4, 16), e) <= 1);
    placement_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_are_shared_out_over_the_ranks),
        cmocka_unit_test(test_plans_are_placements_and_can_be_reached),
        cmocka_unit_test(test_a_hot_rank_is_relieved),
        cmocka_unit_test(test_an_even_load_moves_nothing_between_ranks),
        cmocka_unit_test(test_an_even_load_leaves_experts_that_have_moved),
        cmocka_unit_test(test_copies_are_on_ranks_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
