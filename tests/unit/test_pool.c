/* Who takes part in a run, where threads go, and what they may use. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/pool_state.h"
#include "base/quota.h"
#include "base/sideline.h"
#include "base/topology.h"

#define MS UINT64_C(1000000)

/* ---- sideline ------------------------------------------------------------------------------------ */

static void test_sideline_forgives_a_blip(void **state)
{
    (void)state;
    struct sideline s = {0};
    struct sideline_record r = {0};
    sideline_gain(&s, 5 * MS);
    assert_false(sideline_lose(&s, &r, 0, MS)); /* a loss counts twice */
    assert_false(sideline_lose(&s, &r, 0, MS));
    assert_true(sideline_lose(&s, &r, 0, MS));
    sideline_return(&s, &r);
    sideline_gain(&s, 1000 * MS);
    assert_false(sideline_lose(&s, &r, 0, 50 * MS)); /* credit does not grow beyond 100 ms */
    assert_true(sideline_lose(&s, &r, 0, MS));
}

/* Something that runs for a millisecond now and then, half of the time in one worker's way: it is worth much
 * more than it costs. Once a millisecond was all that could be lost, and it sat out most of the time. */
static void test_sideline_keeps_a_worker_with_a_light_neighbour(void **state)
{
    (void)state;
    struct sideline s = {0};
    struct sideline_record r = {0};
    for (int i = 0; i < 1000; i++) {
        sideline_gain(&s, 20 * MS);
        assert_false(sideline_lose(&s, &r, MS, 3 * MS / 2));
    }
    /* Of one long run all losses come at once. */
    assert_false(sideline_lose(&s, &r, 4000 * MS, 200 * MS));
    assert_false(sideline_lose(&s, &r, 0, 50 * MS));
    assert_true(sideline_lose(&s, &r, 0, MS));
}

/* Slices of 4 ms with a core and without: the worker brings no more than it costs. It may waste what it
 * earned before; then it is there for a slice at a time, and away for ever longer. */
static void test_sideline_sends_out_beside_a_busy_process(void **state)
{
    (void)state;
    struct sideline s = {0};
    struct sideline_record r = {0};
    sideline_gain(&s, 10000 * MS);
    int n = 1;
    for (; !sideline_lose(&s, &r, 0, 4 * MS); n++)
        sideline_gain(&s, 4 * MS);
    assert_in_range(n, 2, 30);
    uint64_t in = 0, out = 0;
    for (int i = 0; i < 20; i++) {
        out += sideline_penalty(&s, &r, 4 * MS);
        sideline_return(&s, &r);
        sideline_gain(&s, 4 * MS);
        in += 8 * MS;
        assert_true(sideline_lose(&s, &r, 0, 4 * MS)); /* nothing is earned before: out at once */
    }
    assert_true(out > 50 * in);
}

static void test_sideline_penalty_doubles_for_a_repeated_offence(void **state)
{
    (void)state;
    struct sideline s = {0};
    struct sideline_record r = {0};
    uint64_t last = 0;
    for (int i = 0; i < 12; i++) {
        assert_true(sideline_lose(&s, &r, 0, 3 * MS));
        uint64_t penalty = sideline_penalty(&s, &r, 3 * MS);
        assert_true(penalty == 1000 * MS ||
                    penalty == (i ? (6 * MS) << i : 10 * MS)); /* twice, 10 ms at least */
        last = penalty;
        sideline_return(&s, &r);
        sideline_gain(&s, 2 * MS); /* too little to make up for it */
    }
    assert_int_equal(last, 1000 * MS);
    sideline_gain(&s, 100 * MS);
    assert_int_equal(sideline_penalty(&s, &r, 30 * MS), 1000 * MS);
    assert_int_equal(sideline_penalty(&s, &r, 6 * MS),
                     12 * MS); /* earned 16 times, and no offence any more */
    assert_int_equal(sideline_penalty(&s, &r, UINT64_MAX), 1000 * MS);
    assert_true(sideline_lose(&s, &r, 0, UINT64_MAX));
}

/* ---- quota --------------------------------------------------------------------------------------- */

static void put(const char *root, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_quota_is_the_lowest_of_all_groups(void **state)
{
    (void)state;
    char root[] = "/tmp/nybble-quota-XXXXXX", self[64], command[96];
    assert_non_null(mkdtemp(root));
    snprintf(self, sizeof(self), "%s/self", root);
    put(root, "self", "0::/a/b\n");
    assert_int_equal(quota_cores_in(root, self), 0);
    put(root, "a/b/cpu.max", "max 100000\n");
    assert_int_equal(quota_cores_in(root, self), 0);
    put(root, "a/cpu.max", "250000 100000\n");
    assert_int_equal(quota_cores_in(root, self), 3);
    put(root, "a/b/cpu.max", "50000 100000\n");
    assert_int_equal(quota_cores_in(root, self), 1);
    put(root, "a/b/cpu.max", "garbage\n");
    assert_int_equal(quota_cores_in(root, self), 3);
    put(root, "self", "4:memory:/x\n3:cpuset:/d\n2:cpu,cpuacct:/c\n");
    put(root, "cpu/c/cpu.cfs_quota_us", "-1\n");
    put(root, "cpu/c/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota_cores_in(root, self), 0);
    put(root, "cpu/c/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(quota_cores_in(root, self), 4);
    put(root, "cpu.max", "200000 100000\n"); /* a container's own group is mounted at the root */
    assert_int_equal(quota_cores_in(root, "/nonexistent"), 2);
    snprintf(command, sizeof(command), "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

/* ---- topology ------------------------------------------------------------------------------------ */

static struct topology *synthetic(const char *text)
{
    setenv("HWLOC_SYNTHETIC", text, 1);
    struct topology *t = topology_open();
    unsetenv("HWLOC_SYNTHETIC");
    return t;
}

static void test_topology_gives_one_thread_a_core(void **state)
{
    (void)state;
    struct topology *t = synthetic("numa:2 core:8 pu:2");
    assert_false(t->real);
    assert_int_equal(t->n_core, 16);
    assert_int_equal(t->n_node, 2);
    assert_int_equal(t->n_cpu, 32);
    int per_node[2] = {0};
    for (int i = 0; i < t->n_core; i++) {
        assert_int_equal(t->core[i].node, i % 2); /* nodes in turn */
        assert_int_equal(t->core_of_cpu[t->core[i].cpu], i);
        assert_int_equal(t->core_of_cpu[t->core[i].cpu + 1], i); /* its second hardware thread */
        per_node[t->core[i].node]++;
    }
    assert_int_equal(per_node[0], 8);
    char page[64];
    assert_false(topology_interleave(t, page, sizeof(page))); /* not this machine's memory */
    topology_close(t);
}

static void test_topology_takes_caches_in_turn(void **state)
{
    (void)state;
    struct topology *t = synthetic("pack:2 [numa] l3:2 core:4 pu:1");
    assert_int_equal(t->n_core, 16);
    assert_int_equal(t->n_node, 2);
    bool seen[4] = {false};
    for (int i = 0; i < 4; i++)
        seen[t->core[i].cpu / 4] = true; /* four processors share a cache */
    for (int i = 0; i < 4; i++)
        assert_true(seen[i]);
    topology_close(t);
}

static void test_topology_of_this_machine(void **state)
{
    (void)state;
    struct topology *t = topology_open();
    assert_true(t->real && t->n_core >= 1 && t->n_node >= 1);
    assert_true(topology_threads(t) >= 1 && topology_threads(t) <= cpu_count());
    for (int i = 0; i < t->n_core; i++)
        assert_int_equal(t->core_of_cpu[t->core[i].cpu], i);
    topology_close(t);
}

static void test_topology_knows_the_last_cache(void **state)
{
    (void)state;
    struct topology *t = synthetic("package:2 l3:2(size=16777216) l2:4(size=524288) core:1 pu:2");
    assert_int_equal(topology_last_cache(t), 16777216);
    topology_close(t);
    t = synthetic("package:1 l2:4(size=1048576) core:1 pu:1");
    assert_int_equal(topology_last_cache(t), 1048576);
    topology_close(t);
    t = synthetic("package:1 core:4 pu:1");
    assert_int_equal(topology_last_cache(t), 0);
    topology_close(t);
}

static void test_pool_on_a_synthetic_machine_is_not_pinned(void **state)
{
    (void)state;
    setenv("HWLOC_SYNTHETIC", "numa:2 core:2 pu:2", 1);
    struct pool *p;
    assert_int_equal(pool_open(&p, 0, NULL), NYB_OK);
    unsetenv("HWLOC_SYNTHETIC");
    assert_true(pool_size(p) >= 1 && pool_size(p) <= 4);
    pool_close(p);
}

/* ---- pool_use ------------------------------------------------------------------------------------ */

struct seen {
    atomic_int items, highest;
};

static void look(void *arg, int item, int worker)
{
    (void)item;
    struct seen *s = arg;
    atomic_fetch_add(&s->items, 1);
    int highest = atomic_load(&s->highest);
    while (worker > highest && !atomic_compare_exchange_weak(&s->highest, &highest, worker))
        continue;
    for (int i = 0; i < 200; i++)
        __builtin_ia32_pause();
}

static void test_pool_use_limits_who_takes_part(void **state)
{
    (void)state;
    struct pool *p;
    struct pool_stats stats;
    assert_int_equal(pool_open(&p, 4, NULL), NYB_OK);
    const int limit[] = {4, 2, 1, 3, 4, 1};
    for (int round = 0; round < 6; round++) {
        struct seen s = {0};
        pool_use(p, limit[round]);
        pool_stats(p, &stats);
        assert_int_equal(stats.active, limit[round]);
        for (int i = 0; i < 50; i++)
            pool_run(p, 40, look, &s);
        assert_int_equal(atomic_load(&s.items), 2000);
        assert_true(atomic_load(&s.highest) < limit[round]);
    }
    assert_int_equal(pool_size(p), 4);
    pool_close(p); /* with three asleep */
}

/* ---- sitting out --------------------------------------------------------------------------------- */

/* Done when two threads are in it at once. */
static void meet(void *arg, int item, int worker)
{
    (void)item;
    (void)worker;
    struct seen *s = arg;
    atomic_fetch_add(&s->items, 1);
    for (uint64_t begin = clock_ns(); atomic_load(&s->items) < 2 && clock_ns() - begin < 10000 * MS;)
        __builtin_ia32_pause();
    atomic_fetch_add(&s->highest, atomic_load(&s->items) == 2);
}

static int active(const struct pool *p)
{
    struct pool_stats stats;
    pool_stats(p, &stats);
    return stats.active;
}

static void test_pool_worker_comes_back_into_a_long_run(void **state)
{
    (void)state;
    struct pool *p;
    assert_int_equal(pool_open(&p, 2, NULL), NYB_OK);
    const struct pool_account a = {.loss_ns = 51 * MS, .culprit = &p->worker[0]}; /* beyond any credit */
    for (int round = 0; round < 2; round++) {
        struct seen s = {0};
        pool_out_settle(p, &a, clock_ns()); /* for 102 ms, then twice that */
        assert_int_equal(active(p), 1);
        if (round == 0)
            pool_recall(p);
        assert_int_equal(active(p), round == 0 ? 2 : 1);
        pool_run(p, 2, meet, &s);
        assert_int_equal(atomic_load(&s.highest), 2);
        pool_recall(p); /* it may have been slow once more */
    }
    pool_use(p, 1);
    pool_recall(p); /* not those who are not wanted */
    assert_int_equal(active(p), 1);
    pool_close(p);
}

/* ---- items that are kept -------------------------------------------------------------------------- */

enum { KEPT_MOST = 2000, KEPT_THREADS = 7 };
struct kept {
    atomic_int runs[KEPT_MOST];
    int worker[KEPT_MOST];
    atomic_int began;
    int wait_for; /* items that begin before any ends, or 0 */
    uint64_t until;
};

static void run_kept(void *arg, int item, int worker)
{
    struct kept *k = arg;
    atomic_fetch_add(&k->runs[item], 1);
    k->worker[item] = worker;
    atomic_fetch_add(&k->began, 1);
    while (atomic_load(&k->began) < k->wait_for && clock_ns() < k->until)
        sched_yield();
}

/* Every item once, whatever their number; and with one for each thread, each of which waits for all others,
 * each thread has its own. */
static void test_pool_keeps_items(void **state)
{
    (void)state;
    static struct kept k;
    static const int n_item[] = {2, 3, KEPT_THREADS, KEPT_THREADS + 1, 64, KEPT_MOST};
    for (int n_thread = 1; n_thread <= KEPT_THREADS; n_thread += 2) {
        struct pool *pool;
        assert_int_equal(pool_open(&pool, n_thread, NULL), NYB_OK);
        for (int round = 0; round < 60; round++) {
            int n = n_item[round % 6];
            memset(&k, 0, sizeof(k));
            if (round % 9 == 8)
                pool_run(pool, n, run_kept, &k); /* between those of the other kind */
            else
                pool_run_kept(pool, n, run_kept, &k);
            for (int i = 0; i < KEPT_MOST; i++)
                assert_int_equal(atomic_load(&k.runs[i]), i < n);
        }
        for (int round = 0, all = 0; n_thread > 1 && round < 100 && all < 3; round++) {
            memset(&k, 0, sizeof(k));
            k.wait_for = n_thread;
            k.until = clock_ns() + 20 * MS; /* somebody may have no core */
            pool_recall(pool);
            pool_run_kept(pool, n_thread, run_kept, &k);
            bool waited = clock_ns() >= k.until;
            for (int i = 0; !waited && i < n_thread; i++)
                assert_int_equal(k.worker[i], i);
            all += !waited;
        }
        pool_close(pool);
    }
}

/* Who waits for long asks seldom, and those who leave meanwhile, each of whom wakes it, change nothing.
 */
static void test_pool_patience_doubles_whoever_leaves(void **state)
{
    (void)state;
    const uint64_t begin = 7 * MS, patience = POOL_PATIENCE_NS;
    uint64_t ask = begin + patience;
    for (uint64_t n = 1; n <= 20; n++) { /* after 1, 3, 7, 15 ... times the patience */
        assert_int_equal(ask, begin + ((UINT64_C(1) << n) - 1) * patience);
        for (uint64_t early = begin; early < ask; early += (ask - begin) / 50 + 1)
            assert_int_equal(pool_next_ask(begin, ask, early), ask);
        assert_int_equal(pool_next_ask(begin, ask, ask - 1), ask);
        ask = pool_next_ask(begin, ask, ask);
    }
    assert_in_range(ask - begin, 100000 * MS, 300000 * MS); /* 21 times in more than a minute */
    const uint64_t late =
        begin + 5 * MS; /* it had no core itself: twice what has really passed, and a patience */
    assert_int_equal(pool_next_ask(begin, begin + patience, late), begin + 10 * MS + patience);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sideline_forgives_a_blip),
        cmocka_unit_test(test_sideline_keeps_a_worker_with_a_light_neighbour),
        cmocka_unit_test(test_sideline_sends_out_beside_a_busy_process),
        cmocka_unit_test(test_sideline_penalty_doubles_for_a_repeated_offence),
        cmocka_unit_test(test_quota_is_the_lowest_of_all_groups),
        cmocka_unit_test(test_topology_gives_one_thread_a_core),
        cmocka_unit_test(test_topology_takes_caches_in_turn),
        cmocka_unit_test(test_topology_of_this_machine),
        cmocka_unit_test(test_topology_knows_the_last_cache),
        cmocka_unit_test(test_pool_on_a_synthetic_machine_is_not_pinned),
        cmocka_unit_test(test_pool_use_limits_who_takes_part),
        cmocka_unit_test(test_pool_worker_comes_back_into_a_long_run),
        cmocka_unit_test(test_pool_keeps_items),

        cmocka_unit_test(test_pool_patience_doubles_whoever_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
