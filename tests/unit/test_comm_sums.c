/* Sums over ranks: in rank order, alone or fused with the norm behind them, with the same bits whichever way
 * blocks go. */
#include <math.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "comm/backend.h"
#include "unit/comm_case.h"

static float value_of(int rank, size_t i)
{
    uint64_t seed = (uint64_t)rank << 32 ^ i;
    return test_random_float(&seed) * (rank % 2 ? 1e4f : 1);
}

static bool reduce_size(struct comm *c, struct pool *pool, size_t n)
{
    float *x = mem_alloc(n + 1, sizeof(float));
    for (size_t i = 0; i < n; i++)
        x[i] = value_of(comm_rank(c), i);
    struct comm_reduce r = {x, n, pool};
    comm_allreduce_start(c, 1, &r);
    CHECK(comm_allreduce_wait(c, 1, &r));
    for (size_t i = 0; i < n; i++) {
        float sum = value_of(0, i);
        for (int rank = 1; rank < comm_size(c); rank++)
            sum += value_of(rank, i);
        CHECK(x[i] == sum);
    }
    free(x);
    return true;
}

static bool reduce_all(struct comm *c)
{
    static const size_t n[] = {0, 1, 31, 33, 1000, 4096, 5000, 40000, 150001};
    struct pool *pool;
    CHECK(pool_open(&pool, 1, NULL) == NYB_OK);
    for (size_t i = 0; i < COUNT_OF(n); i++) {
        comm_set_one_shot_bytes(c, 1 << 30); /* one exchange a piece */
        CHECK(reduce_size(c, pool, n[i]));
        comm_set_one_shot_bytes(c, 64); /* two */
        CHECK(reduce_size(c, pool, n[i]));
    }
    pool_close(pool);
    return true;
}

static void test_sums_are_in_rank_order_by_one_shot_and_two(void **state)
{
    (void)state;
    for (int size = 1; size <= 6; size++)
        run_ranks(size, 32768, reduce_all);
}

static void fill_rows(struct comm *c, struct rows *t, int m, int n)
{
    size_t count = (size_t)m * (size_t)n;
    for (size_t i = 0; i < count; i++) {
        t->x[i] = value_of(comm_rank(c), i);
        t->residual[i] = value_of(77, i);
        t->y[i] = (float)NAN;
    }
    for (size_t i = 0; i < (size_t)n; i++)
        t->weight[i] = value_of(98, i);
}

static bool norm_rows(struct comm *c, struct pool *pool, struct rows *t, int m, int n, int channel)
{
    struct comm_add_norm a = add_norm_of(pool, t, m, n);
    fill_rows(c, t, m, n);
    comm_add_norm_start(c, channel, &a);
    return comm_add_norm_wait(c, channel, &a);
}

static bool check_norm(struct comm *c, const struct rows *t, int m, int n)
{
    for (int i = 0; i < m; i++) {
        double square = 0;
        size_t at = (size_t)i * (size_t)n;
        for (size_t j = 0; j < (size_t)n; j++) {
            double sum = value_of(77, at + j);
            for (int r = 0; r < comm_size(c); r++)
                sum += value_of(r, at + j);
            CHECK(fabs(t->residual[at + j] - sum) <= 1e-6 * (fabs(sum) + 2e4));
            square += sum * sum;
        }
        double inverse = 1 / sqrt(square / n + 1e-6);
        for (size_t j = 0; j < (size_t)n; j++)
            CHECK(fabs(t->y[at + j] - t->residual[at + j] * inverse * t->weight[j]) <= 1e-5);
    }
    return true;
}

static bool fused_and_composed(struct comm *c)
{
    static const int shape[][2] = {{1, 8}, {1, 2048}, {3, 100}, {4, 2048}, {16, 257}, {0, 64}};
    size_t most = 4 * 2048;
    struct pool *pool;
    CHECK(pool_open(&pool, 1, NULL) == NYB_OK);
    struct rows t = {mem_alloc(most, 4), mem_alloc(most, 4), mem_alloc(most, 4), mem_alloc(2048, 4)};
    float *first = mem_alloc(most, 4);
    for (size_t s = 0; s < COUNT_OF(shape); s++) {
        int m = shape[s][0], n = shape[s][1];
        size_t bytes = (size_t)m * (size_t)n * sizeof(float);
        comm_set_fusion_rows(c, 1 << 20);
        CHECK(comm_add_norm_fused(c, m, n));
        CHECK(norm_rows(c, pool, &t, m, n, 0));
        CHECK(check_norm(c, &t, m, n));
        memcpy(first, t.y, bytes);
        comm_set_fusion_rows(c, m - 1);
        CHECK(comm_size(c) == 1 || !comm_add_norm_fused(c, m, n));
        CHECK(norm_rows(c, pool, &t, m, n, 0));
        CHECK(memcmp(first, t.y, bytes) == 0);
    }
    free(t.x), free(t.residual), free(t.y), free(t.weight), free(first);
    pool_close(pool);
    return true;
}

static void test_fused_norm_has_the_bits_of_the_composed_one(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++)
        run_ranks(size, 256 << 10, fused_and_composed);
}

/* Every way of a block gives the same bits: shapes with and without whole lines, larger than rows that
 * announce themselves may be, on both channels, with ordinary exchanges in between, by one worker and by
 * three, and with ranks that come late, so that others fall asleep. */
static bool all_ways(struct comm *c)
{
    static const int shape[][2] = {{1, 1024}, {2, 1024},  {5, 1027}, {16, 1024},
                                   {1, 5001}, {17, 1024}, {64, 1024}};
    static const struct comm_ways way[] = {
        {0, 0}, {UINT32_MAX, 0}, {0, UINT32_MAX}, {UINT32_MAX, UINT32_MAX}};
    size_t most = 64 * 1024;
    float *first = mem_alloc(most, 4);
    struct rows t = {mem_alloc(most, 4), mem_alloc(most, 4), mem_alloc(most, 4), mem_alloc(5001, 4)};
    for (int n_thread = 1; n_thread <= 3; n_thread += 2) {
        struct pool *pool;
        CHECK(pool_open(&pool, n_thread, NULL) == NYB_OK);
        for (size_t i = 0; i < COUNT_OF(shape) * COUNT_OF(way); i++) {
            int m = shape[i / COUNT_OF(way)][0], n = shape[i / COUNT_OF(way)][1];
            size_t bytes = (size_t)m * (size_t)n * sizeof(float);
            comm_set_ways(c, way[i % COUNT_OF(way)]);
            for (int round = 0; round < 6; round++) {
                if (round == 3 && i % 5 == (size_t)comm_rank(c))
                    usleep(2000);
                CHECK(norm_rows(c, pool, &t, m, n, round % COMM_CHANNELS));
                if (i % COUNT_OF(way) == 0 && round == 0) {
                    CHECK(check_norm(c, &t, m, n));
                    memcpy(first, t.y, bytes);
                }
                CHECK(memcmp(first, t.y, bytes) == 0);
                if (round == 2)
                    CHECK(comm_barrier(c));
            }
        }
        pool_close(pool);
    }
    free(t.x), free(t.residual), free(t.y), free(t.weight), free(first);
    return true;
}

static void test_every_way_of_a_block_has_the_same_bits(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++)
        run_ranks(size, 512 << 10, all_ways);
}

/* The bits that stand for "not there yet" are those of a NaN: a row that has them must still come. */
static bool rows_of_nans(struct comm *c)
{
    struct pool *pool;
    CHECK(pool_open(&pool, 1, NULL) == NYB_OK);
    struct rows t = {mem_alloc(3333, 4), mem_alloc(3333, 4), mem_alloc(3333, 4), mem_alloc(1111, 4)};
    comm_set_ways(c, (struct comm_ways){.announced = UINT32_MAX});
    for (int round = 0; round < 20; round++) {
        struct comm_add_norm a = add_norm_of(pool, &t, 3, 1111);
        fill_rows(c, &t, 3, 1111);
        if (comm_rank(c) == round % 2)
            memset(t.x + 1111, 0xff, 1111 * sizeof(float));
        comm_add_norm_start(c, 0, &a);
        CHECK(a.announced);
        CHECK(comm_add_norm_wait(c, 0, &a));
        for (int i = 0; i < 3333; i++)
            CHECK(!isnan(t.y[i]) == (i < 1111 || i >= 2222));
    }
    free(t.x), free(t.residual), free(t.y), free(t.weight);
    pool_close(pool);
    return true;
}

static void test_rows_of_nans_arrive(void **state)
{
    (void)state;
    run_ranks(2, 64 << 10, rows_of_nans);
}

static bool all_marks(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        if (bits != UINT32_MAX)
            return false;
    }
    return true;
}

/* A row is there when its last float is, wherever that is in a line; nothing is written behind it, and its
 * room is given back whole. Rank 1 makes believe that all but the last have come; rank 0 takes its time. */
static bool last_float_of_rows(struct comm *c)
{
    static const size_t n[] = {1, 2, 5, 15, 16, 17, 31, 32, 33, 63, 64, 100};
    const struct comm_backend_rows *rows = c->backend->rows;
    CHECK(rows);
    for (size_t i = 0; i < COUNT_OF(n); i++) {
        float x[128];
        for (size_t j = 0; j < COUNT_OF(x); j++)
            x[j] = 2 + (float)j;
        CHECK(comm_barrier(c));
        if (comm_rank(c) == 0)
            usleep(3000);
        rows->start(c, 1, x, n[i]);
        float *to = (float *)(uintptr_t)rows->data(c, 1);
        if (comm_rank(c) == 1) {
            CHECK(all_marks(to, 2 * COUNT_OF(x)));
            memset(to, 0, (n[i] - 1) * sizeof(float));
        }
        CHECK(rows->come(c, 1, 0, n[i]));
        CHECK(!memcmp(to, x, n[i] * sizeof(float)));
        CHECK(all_marks(to + n[i], COUNT_OF(x)));
        rows->used(c, 1, 0, n[i]);
    }
    return comm_barrier(c);
}

static void test_rows_come_with_their_last_float(void **state)
{
    (void)state;
    run_ranks(2, 64 << 10, last_float_of_rows);
}

/* What was started on a failed communicator never comes, and is not taken for rows of NaNs. */
static bool rows_of_the_failed(struct comm *c)
{
    struct pool *pool;
    CHECK(pool_open(&pool, 1, NULL) == NYB_OK);
    struct rows t = {mem_alloc(3333, 4), mem_alloc(3333, 4), mem_alloc(3333, 4), mem_alloc(1111, 4)};
    comm_set_ways(c, (struct comm_ways){.announced = UINT32_MAX});
    for (int round = 0; round < 4; round++)
        CHECK(norm_rows(c, pool, &t, 3, 1111, round % COMM_CHANNELS));
    CHECK(comm_barrier(c));
    comm_fail(c, "as a test asks for");
    for (int round = 0; round < 4; round++)
        CHECK(!norm_rows(c, pool, &t, 3, 1111, round % COMM_CHANNELS));
    free(t.x), free(t.residual), free(t.y), free(t.weight);
    pool_close(pool);
    return true;
}

static void test_rows_of_the_failed_do_not_arrive(void **state)
{
    (void)state;
    const struct comm_options o = {.slot_bytes = 64 << 10, .timeout_ms = 20000};
    struct nyb_err err = {0};
    struct comm *c;
    assert_int_equal(comm_fork(&c, 2, &o, &err), NYB_OK);
    bool ok = rows_of_the_failed(c), child = comm_rank(c) != 0;
    comm_close(c);
    if (child)
        _exit(!ok);
    assert_true(ok);
}

static bool ways_are_measured(struct comm *c)
{
    struct pool *pool;
    struct comm_ways all[COMM_RANK_MAX];
    CHECK(pool_open(&pool, 1, NULL) == NYB_OK);
    CHECK(comm_measure_ways(c, kernels_cpu(), pool));
    struct comm_ways own = comm_ways(c);
    CHECK(comm_gather(c, &own, sizeof(own), all));
    for (int r = 0; r < comm_size(c); r++)
        CHECK(memcmp(&all[r], &own, sizeof(own)) == 0);
    CHECK(own.cached >> COMM_SIZE_CLASSES == 0 && own.announced >> COMM_SIZE_CLASSES == 0);
    CHECK(comm_size(c) == 2 || own.announced == 0);
    pool_close(pool);
    return true;
}

static bool sums_are_measured(struct comm *c)
{
    struct pool *pool;
    uint64_t all[COMM_RANK_MAX];
    CHECK(pool_open(&pool, 1, NULL) == NYB_OK);
    CHECK(comm_measure_sums(c, kernels_cpu(), pool, true, 0));
    uint64_t own = comm_one_shot_bytes(c);
    CHECK(comm_gather(c, &own, sizeof(own), all));
    for (int r = 0; r < comm_size(c); r++)
        CHECK(all[r] == own);
    CHECK(own >= (16 << 10));
    pool_close(pool);
    return true;
}

static void test_ranks_agree_on_the_ways(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++)
        run_ranks(size, 64 << 10, ways_are_measured);
}

static void test_ranks_agree_on_sums(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++)
        run_ranks(size, 64 << 10, sums_are_measured);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_in_rank_order_by_one_shot_and_two),
        cmocka_unit_test(test_fused_norm_has_the_bits_of_the_composed_one),
        cmocka_unit_test(test_every_way_of_a_block_has_the_same_bits),
        cmocka_unit_test(test_rows_of_nans_arrive),
        cmocka_unit_test(test_rows_come_with_their_last_float),
        cmocka_unit_test(test_rows_of_the_failed_do_not_arrive),
        cmocka_unit_test(test_ranks_agree_on_the_ways),
        cmocka_unit_test(test_ranks_agree_on_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
