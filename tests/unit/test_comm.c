/* Ranks: exchanges, what happens when one of them dies, and the cores that each has. */
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/topology.h"
#include "comm/backend.h"
#include "comm/cores.h"
#include "unit/comm_case.h"

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
    CHECK(!c->cores.crowded);
    return true;
}

static bool cores_are_shared(struct comm *c)
{
    cpu_set_t own, all[COMM_RANK_MAX];
    CHECK(sched_getaffinity(0, sizeof(own), &own) == 0 && comm_gather(c, &own, sizeof(own), all));
    for (int r = 0; r < comm_size(c); r++)
        CHECK(CPU_EQUAL(&own, &all[r]));
    CHECK(c->cores.crowded);
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

/* As a rank that mpirun has bound to cores of its own. */
static void test_one_part_is_not_crowded(void **state)
{
    (void)state;
    struct cores alone = {.crowded = true};
    cores_take(&alone, 0, 1);
    assert_false(alone.narrowed);
    assert_false(alone.crowded);
    cores_give_back(&alone);
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
        cmocka_unit_test(test_killed_rank_ends_the_others),
        cmocka_unit_test(test_stopped_rank_ends_the_others),
        cmocka_unit_test(test_ranks_end_when_rank_zero_is_killed),
        cmocka_unit_test(test_a_rank_can_fail_all),
        cmocka_unit_test(test_too_many_ranks_are_refused),
        cmocka_unit_test(test_each_rank_has_cores_of_its_own),
        cmocka_unit_test(test_one_part_is_not_crowded),
        cmocka_unit_test(test_parts_of_the_cores_cover_them_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
