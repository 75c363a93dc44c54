/* Ranks as forked processes of this test: exchanges, sums, and what happens when one of them dies. */
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/topology.h"
#include "comm/comm.h"
#include "comm/cores.h"
#include "test.h"

/* cmocka's asserts jump to the parent's runner, so ranks beyond 0 check with this. */
#define CHECK(cond)                                                                           \
    do {                                                                                      \
        if (!(cond)) {                                                                        \
            fprintf(stderr, "rank %d: %s:%d: %s\n", comm_rank(c), __FILE__, __LINE__, #cond); \
            return false;                                                                     \
        }                                                                                     \
    } while (0)

typedef bool rank_fn(struct comm *c);

/* Run fn on `size` ranks; every one must say true. */
static void run_ranks(int size, size_t slot_bytes, rank_fn *fn)
{
    const struct comm_options o = {.slot_bytes = slot_bytes, .timeout_ms = 20000};
    struct nyb_err err = {0};
    struct comm *c;
    if (comm_fork(&c, size, &o, &err) != NYB_OK)
        fail_msg("%s", err.message);
    bool ok = fn(c) && comm_status(c, &err) == NYB_OK;
    if (!ok && comm_status(c, &err) == NYB_OK)
        comm_fail(c, "a check of rank %d failed", comm_rank(c));
    bool child = comm_rank(c) != 0;
    ok = ok && (comm_rank(c) != 0 || comm_status(c, &err) == NYB_OK);
    if (child) {
        comm_close(c);
        _exit(!ok);
    }
    /* the last word of everybody */
    comm_close(c);
    assert_true(ok);
}

/* ---- exchanges ----------------------------------------------------------------------------------- */

static uint8_t byte_of(int from, int to, int round, size_t i)
{
    return (uint8_t)((size_t)(from * 31 + to * 17 + round * 7) + i * 13 + (i >> 8));
}

static size_t bytes_of(int from, int to, int round)
{
    return (size_t)((from * 7919 + to * 104729 + round * 1299709) % 9000);
}

static bool exchange_rounds(struct comm *c)
{
    int size = comm_size(c), rank = comm_rank(c);
    uint8_t *buf = mem_alloc((size_t)size, 9000);
    for (int round = 0; round < 300; round++) {
        int channel = round % COMM_CHANNELS;
        struct comm_part part[COMM_RANK_MAX], in[COMM_RANK_MAX];
        for (int r = 0; r < size; r++) {
            uint8_t *at = buf + (size_t)r * 9000;
            part[r] = (struct comm_part){at, bytes_of(rank, r, round)};
            for (size_t i = 0; i < part[r].bytes; i++)
                at[i] = byte_of(rank, r, round, i);
        }
        comm_exchange_start(c, channel, part);
        if ((round + rank) % 11 == 0)
            usleep(300); /* so that waiters also sleep */
        CHECK(comm_exchange_wait(c, channel, in));
        for (int r = 0; r < size; r++) {
            CHECK(in[r].bytes == bytes_of(r, rank, round));
            const uint8_t *got = in[r].data;
            for (size_t i = 0; i < in[r].bytes; i++)
                CHECK(got[i] == byte_of(r, rank, round, i));
        }
    }
    free(buf);
    return true;
}

static void test_exchange_brings_each_part(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++)
        run_ranks(size, 64 << 10, exchange_rounds);
}

/* Both channels in flight at once, finished in either order. */
static bool two_channels(struct comm *c)
{
    for (int round = 0; round < 200; round++) {
        int32_t mine[2] = {round * 100 + comm_rank(c), -round * 100 - comm_rank(c)};
        struct comm_part in[COMM_RANK_MAX];
        comm_publish_start(c, 0, &mine[0], sizeof(mine[0]));
        comm_publish_start(c, 1, &mine[1], sizeof(mine[1]));
        for (int i = 0; i < 2; i++) {
            int channel = round % 2 ? i : 1 - i;
            CHECK(comm_exchange_wait(c, channel, in));
            for (int r = 0; r < comm_size(c); r++) {
                int32_t got;
                CHECK(in[r].bytes == sizeof(got));
                memcpy(&got, in[r].data, sizeof(got));
                CHECK(got == (channel ? -round * 100 - r : round * 100 + r));
            }
        }
    }
    return true;
}

static void test_channels_are_independent(void **state)
{
    (void)state;
    run_ranks(3, 4096, two_channels);
}

static bool broadcast_and_gather(struct comm *c)
{
    size_t n = 100000; /* several slots */
    uint8_t *data = mem_alloc(n, 1), *all = mem_alloc(n, (size_t)comm_size(c));
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < n; i++)
            data[i] = comm_rank(c) == 0 ? byte_of(0, 1, round, i) : 0;
        CHECK(comm_broadcast(c, data, n));
        for (size_t i = 0; i < n; i++)
            CHECK(data[i] == byte_of(0, 1, round, i));
        for (size_t i = 0; i < n; i++)
            data[i] = byte_of(comm_rank(c), 2, round, i);
        CHECK(comm_gather(c, data, n, all));
        for (size_t i = 0; i < n * (size_t)comm_size(c); i++)
            CHECK(all[i] == byte_of((int)(i / n), 2, round, i % n));
        CHECK(comm_barrier(c));
    }
    free(data);
    free(all);
    return true;
}

static void test_broadcast_and_gather_longer_than_a_slot(void **state)
{
    (void)state;
    run_ranks(1, 4096, broadcast_and_gather);
    run_ranks(4, 16384, broadcast_and_gather);
}

/* ---- sums ---------------------------------------------------------------------------------------- */

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

struct rows {
    float *x, *residual, *y, *weight;
};

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

static struct comm_add_norm add_norm_of(struct pool *pool, struct rows *t, int m, int n)
{
    return (struct comm_add_norm){.kernels = kernels_cpu(),
                                  .pool = pool,
                                  .x = t->x,
                                  .residual = t->residual,
                                  .weight = t->weight,
                                  .y = t->y,
                                  .m = m,
                                  .n = n,
                                  .eps = 1e-6f};
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

static void test_ranks_agree_on_the_ways(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++)
        run_ranks(size, 64 << 10, ways_are_measured);
}

/* ---- failures ------------------------------------------------------------------------------------ */

/* Rank `victim` gets the signal in the middle of a run of exchanges; all others must fail, and say the same.
 */
static void lose_rank(int size, int victim, int signal_number, bool rows, const char *expect)
{
    const struct comm_options o = {.slot_bytes = 4096, .timeout_ms = 700};
    float x[1024] = {0}, residual[1024] = {0}, y[1024], weight[1024] = {0};
    struct nyb_err err = {0};
    struct comm *c;
    struct comm_part in[COMM_RANK_MAX];
    assert_int_equal(comm_fork(&c, size, &o, &err), NYB_OK);
    int rank = comm_rank(c);
    struct pool *pool;
    assert_int_equal(pool_open(&pool, 1, NULL), NYB_OK);
    struct rows t = {x, residual, y, weight};
    comm_set_ways(c, (struct comm_ways){.announced = UINT32_MAX});
    uint64_t begin = clock_ns();
    for (int i = 0;; i++) {
        if (i == 500 && rank == victim)
            kill(getpid(), signal_number);
        struct comm_add_norm a = add_norm_of(pool, &t, 1, 1024);
        if (rows) {
            comm_add_norm_start(c, i % 2, &a);
            if (!comm_add_norm_wait(c, i % 2, &a))
                break;
            continue;
        }
        comm_publish_start(c, i % 2, &i, sizeof(i));
        if (!comm_exchange_wait(c, i % 2, in))
            break;
    }
    bool ok = comm_status(c, &err) == NYB_E_RANK && strstr(err.message, expect) &&
              clock_ns() - begin < 10000000000u;
    if (!ok)
        fprintf(stderr, "rank %d: %s\n", rank, err.message);
    pool_close(pool);
    comm_close(c);
    if (rank != 0)
        _exit(!ok);
    assert_true(ok);
}

static void test_killed_rank_ends_the_others(void **state)
{
    (void)state;
    lose_rank(2, 1, SIGKILL, true, "rank 1 (process ");
    lose_rank(2, 1, SIGKILL, false, "rank 1 (process ");
    lose_rank(4, 2, SIGKILL, false, "rank 2 (process ");
}

static void test_stopped_rank_ends_the_others(void **state)
{
    (void)state;
    lose_rank(3, 1, SIGSTOP, false, "rank 1 ");
    lose_rank(2, 1, SIGSTOP, true, "rank 1 ");
}

/* Rank 0 dies: its children must not stay behind. */
static void test_ranks_end_when_rank_zero_is_killed(void **state)
{
    (void)state;
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct comm_options o = {.slot_bytes = 4096, .timeout_ms = 3000};
        struct comm_part in[COMM_RANK_MAX];
        struct comm *c;
        close(fd[0]);
        if (comm_fork(&c, 3, &o, NULL) != NYB_OK)
            _exit(9);
        if (comm_rank(c) == 0) {
            usleep(50000);
            kill(getpid(), SIGKILL);
        }
        comm_publish_start(c, 0, NULL, 0); /* an idle follower: no time limit of its own */
        struct nyb_err err = {0};
        char said = !comm_exchange_wait_idle(c, 0, in) && comm_status(c, &err) == NYB_E_RANK &&
                            strstr(err.message, "rank 0 (process ")
                        ? 'y'
                        : 'n';
        if (write(fd[1], &said, 1) != 1)
            _exit(9);
        comm_close(c);
        _exit(0);
    }
    close(fd[1]);
    char said[3] = {0};
    assert_int_equal(read(fd[0], said, 1), 1);
    assert_int_equal(read(fd[0], said + 1, 1), 1);
    assert_string_equal(said, "yy");
    assert_int_equal(read(fd[0], said, 1), 0); /* both are gone */
    close(fd[0]);
    waitpid(pid, NULL, 0);
}

static bool fail_by_hand(struct comm *c)
{
    struct comm_part in[COMM_RANK_MAX];
    struct nyb_err err = {0};
    if (comm_rank(c) == 1)
        comm_fail(c, "disk %d is full", 7);
    for (int i = 0; i < 100000; i++) {
        comm_publish_start(c, 0, &i, sizeof(i));
        if (!comm_exchange_wait(c, 0, in))
            break;
    }
    CHECK(comm_status(c, &err) == NYB_E_RANK);
    CHECK(strcmp(err.message, "disk 7 is full") == 0);
    return true;
}

static void test_a_rank_can_fail_all(void **state)
{
    (void)state;
    const struct comm_options o = {.slot_bytes = 4096, .timeout_ms = 20000};
    struct comm *c;
    assert_int_equal(comm_fork(&c, 3, &o, NULL), NYB_OK);
    bool ok = fail_by_hand(c);
    int rank = comm_rank(c);
    comm_close(c);
    if (rank != 0)
        _exit(!ok);
    assert_true(ok);
}

static void test_too_many_ranks_are_refused(void **state)
{
    (void)state;
    const struct comm_options o = {.slot_bytes = 4096};
    struct comm *c;
    struct nyb_err err = {0};
    assert_int_equal(comm_fork(&c, 0, &o, &err), NYB_E_RANGE);
    assert_int_equal(comm_fork(&c, 65, &o, &err), NYB_E_RANGE);
}

/* ---- cores --------------------------------------------------------------------------------------- */

static bool cores_are_apart(struct comm *c)
{
    cpu_set_t own, all[COMM_RANK_MAX];
    CHECK(sched_getaffinity(0, sizeof(own), &own) == 0);
    CHECK(CPU_COUNT(&own) > 0 && comm_gather(c, &own, sizeof(own), all));
    for (int r = 0; r < comm_size(c); r++)
        for (int other = 0; other < r; other++) {
            cpu_set_t both;
            CPU_AND(&both, &all[r], &all[other]);
            CHECK(CPU_COUNT(&both) == 0);
        }
    return true;
}

static bool cores_are_shared(struct comm *c)
{
    cpu_set_t own, all[COMM_RANK_MAX];
    CHECK(sched_getaffinity(0, sizeof(own), &own) == 0 && comm_gather(c, &own, sizeof(own), all));
    for (int r = 0; r < comm_size(c); r++)
        CHECK(CPU_EQUAL(&own, &all[r]));
    return true;
}

static void test_each_rank_has_cores_of_its_own(void **state)
{
    (void)state;
    cpu_set_t before, after;
    struct topology *t = topology_open();
    int n_core = t->n_core;
    topology_close(t);
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    if (n_core >= 2)
        run_ranks(2, 4096, cores_are_apart);
    if (n_core < 8)
        run_ranks(n_core + 1, 4096, cores_are_shared);
    assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
}

static void test_parts_of_the_cores_cover_them_once(void **state)
{
    (void)state;
    for (int n = 0; n <= 70; n++)
        for (int count = 1; count <= 9; count++) {
            int next = 0, begin, end;
            for (int i = 0; i < count; i++, next = end) {
                cores_part(n, i, count, &begin, &end);
                if (n < count) {
                    assert_int_equal(begin, end);
                    continue;
                }
                assert_int_equal(begin, next);
                assert_true(end - begin == n / count || end - begin == n / count + 1);
            }
            assert_int_equal(next, n < count ? 0 : n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchange_brings_each_part),
        cmocka_unit_test(test_channels_are_independent),
        cmocka_unit_test(test_broadcast_and_gather_longer_than_a_slot),
        cmocka_unit_test(test_sums_are_in_rank_order_by_one_shot_and_two),
        cmocka_unit_test(test_fused_norm_has_the_bits_of_the_composed_one),
        cmocka_unit_test(test_every_way_of_a_block_has_the_same_bits),
        cmocka_unit_test(test_rows_of_nans_arrive),
        cmocka_unit_test(test_rows_of_the_failed_do_not_arrive),
        cmocka_unit_test(test_ranks_agree_on_the_ways),
        cmocka_unit_test(test_killed_rank_ends_the_others),
        cmocka_unit_test(test_stopped_rank_ends_the_others),
        cmocka_unit_test(test_ranks_end_when_rank_zero_is_killed),
        cmocka_unit_test(test_a_rank_can_fail_all),
        cmocka_unit_test(test_too_many_ranks_are_refused),
        cmocka_unit_test(test_each_rank_has_cores_of_its_own),
        cmocka_unit_test(test_parts_of_the_cores_cover_them_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
