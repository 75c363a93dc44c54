/* Beside busy processes two threads must not be slower than one. Best of several turns, and a generous bound:
 * what this guards against is not a few percent but a run that waits for a thread without a core. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/pool.h"

#define TURN_NS 200000000 /* longer than several slices of the scheduler */
#define TURNS   6
#define BOUND   0.8
#define TRIES   3  /* others may come and go while we measure */
#define N_ITEM  24 /* as a decode step of a small model has: some 10 us a run */

static float result[N_ITEM * 32];

static void work(void *arg, int item, int worker)
{
    (void)arg;
    (void)worker;
    float x = (float)item;
    for (int i = 0; i < 300; i++) {
        x = x * 1.0001f + 0.5f;
        __asm__ volatile("" : "+x"(x)); /* or it is computed at compile time */
    }
    result[item * 32] = x;
}

static double runs_a_second(struct pool *p)
{
    uint64_t begin = clock_ns(), now = begin;
    double runs = 0;
    for (; now - begin < TURN_NS; now = clock_ns(), runs += 20)
        for (int i = 0; i < 20; i++)
            pool_run(p, N_ITEM, work, NULL);
    return runs / ((double)(now - begin) * 1e-9);
}

/* cpu -1: wherever the kernel likes. */
static pid_t start_busy(int cpu)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)cpu, &set);
        sched_setaffinity(0, sizeof(set), &set);
    }
    for (;;)
        __builtin_ia32_pause();
}

/* Two threads' speed over one's. */
static double compare(const char *where, const int *cpu, int n_busy)
{
    pid_t busy[2];
    struct pool *pool[2];
    double best[2] = {0};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pool_open(&pool[i], i + 1, NULL), NYB_OK);
    for (int i = 0; i < n_busy; i++)
        busy[i] = start_busy(cpu[i]);
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < 2; i++) {
            double rate = runs_a_second(pool[i]);
            best[i] = rate > best[i] ? rate : best[i];
        }
    for (int i = 0; i < n_busy; i++) {
        kill(busy[i], SIGKILL);
        waitpid(busy[i], NULL, 0);
    }
    for (int i = 0; i < 2; i++)
        pool_close(pool[i]);
    printf("busy on %s: %.0f runs/s with one thread, %.0f with two\n", where, best[0], best[1]);
    return best[1] / best[0];
}

static void check(const char *where, const int *cpu, int n_busy)
{
    for (int i = 0; i < TRIES; i++)
        if (compare(where, cpu, n_busy) >= BOUND)
            return;
    fail_msg("busy on %s: two threads are slower than one", where);
}

/* The first two processors that we may use. */
static bool two_cpus(int *cpu)
{
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof(set), &set))
        return false;
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET((size_t)i, &set))
            cpu[n++] = i;
    return n == 2 && cpu_count() >= 2;
}

static void test_pool_two_threads_beside_a_busy_process(void **state)
{
    (void)state;
    int cpu[2];
    const int anywhere = -1;
    if (!two_cpus(cpu))
        skip();
    check("the first core", cpu, 1);
    check("the second core", cpu + 1, 1);
    check("either core", &anywhere, 1);
    check("both cores", cpu, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pool_two_threads_beside_a_busy_process)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
