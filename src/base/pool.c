#include "base/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"

/* Spins before a waiter sleeps: some 20 us. With more threads than cores spinning only takes the core away
 * from the thread waited for, so then it sleeps at once. */
#define SPIN_LIMIT 2000

struct worker {
    struct pool *pool;
    int index;
    pthread_t thread;
};

/* A run is joined, not attended: a worker that wakes in time adds itself to `state` and draws items; the
 * caller closes the run when the tickets are gone and waits only for those who are inside. A worker without a
 * core holds nobody up. */
#define RUN_OPEN  0x80000000u
#define RUN_COUNT 0x7fffffffu

struct pool {
    int n_thread, spin_limit;
    struct worker *worker; /* (n_thread - 1): the caller is worker 0 */
    pool_fn *fn;           /* of the run; written while it is closed and nobody is inside */
    void *arg;
    int n_item;
    /* Each on a line of its own: they are written by different threads. */
    _Alignas(128) atomic_uint epoch;    /* run number; a waiter sleeps on it         */
    _Alignas(128) atomic_uint sleeping; /* workers in futex_wait                     */
    _Alignas(128) atomic_int ticket;    /* next item                                 */
    _Alignas(128) atomic_uint state;    /* RUN_OPEN, and the workers inside          */
    _Alignas(128) atomic_uint left;     /* rings for a caller who sleeps             */
    atomic_bool caller_sleeps;
    atomic_bool closing;
};

static void futex_wait(atomic_uint *word, unsigned expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void draw_items(struct pool *p, int worker)
{
    for (;;) {
        int item = atomic_fetch_add_explicit(&p->ticket, 1, memory_order_relaxed);
        if (item >= p->n_item)
            return;
        p->fn(p->arg, item, worker);
    }
}

static void wait_for_epoch(struct pool *p, unsigned seen)
{
    for (int spin = 0; spin < p->spin_limit; spin++) {
        if (atomic_load_explicit(&p->epoch, memory_order_acquire) != seen)
            return;
        __builtin_ia32_pause();
    }
    atomic_fetch_add(&p->sleeping, 1);
    while (atomic_load(&p->epoch) == seen)
        futex_wait(&p->epoch, seen);
    atomic_fetch_sub(&p->sleeping, 1);
}

/* What this run's caller wrote is visible after a successful exchange. */
static bool join_run(struct pool *p)
{
    unsigned state = atomic_load(&p->state);
    while (state & RUN_OPEN)
        if (atomic_compare_exchange_weak(&p->state, &state, state + 1))
            return true;
    return false;
}

static void leave_run(struct pool *p)
{
    atomic_fetch_sub(&p->state, 1);
    if (atomic_load(&p->caller_sleeps)) {
        atomic_fetch_add(&p->left, 1);
        futex_wake(&p->left, 1);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        wait_for_epoch(p, seen);
        seen = atomic_load(&p->epoch);
        if (atomic_load(&p->closing))
            return NULL;
        if (join_run(p)) {
            draw_items(p, w->index);
            leave_run(p);
        }
    }
}

static bool run_is_empty(struct pool *p)
{
    return (atomic_load(&p->state) & RUN_COUNT) == 0;
}

static void wait_for_workers(struct pool *p)
{
    for (int spin = 0; spin < p->spin_limit; spin++) {
        if (run_is_empty(p))
            return;
        __builtin_ia32_pause();
    }
    atomic_store(&p->caller_sleeps, true);
    for (;;) {
        unsigned left = atomic_load(&p->left);
        if (run_is_empty(p))
            break;
        futex_wait(&p->left, left);
    }
    atomic_store(&p->caller_sleeps, false);
}

void pool_run(struct pool *p, int n_item, pool_fn *fn, void *arg)
{
    if (n_item <= 0)
        return;
    if (p->n_thread == 1 || n_item == 1) {
        for (int i = 0; i < n_item; i++)
            fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_item = n_item;
    atomic_store_explicit(&p->ticket, 0, memory_order_relaxed);
    atomic_store(&p->state, RUN_OPEN);
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleeping))
        futex_wake(&p->epoch, INT_MAX);
    draw_items(p, 0);
    atomic_fetch_and(&p->state, ~RUN_OPEN);
    wait_for_workers(p);
}

struct range_run {
    pool_range_fn *fn;
    void *arg;
    int n, piece;
};

static void run_piece(void *arg, int item, int worker)
{
    struct range_run *r = arg;
    int begin = item * r->piece;
    int end = r->n - begin < r->piece ? r->n : begin + r->piece;
    r->fn(r->arg, begin, end, worker);
}

/* Four pieces a worker: enough to even out a slow one, few enough to cost nothing. */
void pool_range(struct pool *p, int n, int grain, pool_range_fn *fn, void *arg)
{
    if (n <= 0)
        return;
    int target = 4 * p->n_thread;
    int piece = (n + target - 1) / target;
    if (piece < grain)
        piece = grain;
    struct range_run run = {fn, arg, n, piece};
    pool_run(p, (n + piece - 1) / piece, run_piece, &run);
}

/* Worker i on the i-th allowed core; with more threads than cores nobody is pinned. */
static void pin_worker(pthread_t thread, int index, const cpu_set_t *allowed)
{
    int nth = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, allowed) || nth++ != index)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(thread, sizeof(one), &one); /* best effort: placement is not correctness */
        return;
    }
}

enum nyb_code pool_open(struct pool **out, int n_thread, struct nyb_err *err)
{
    int cores = cpu_count();
    if (n_thread <= 0)
        n_thread = cores;
    if (n_thread > 4096)
        return err_set(err, NYB_E_RANGE, "%d threads asked for; at most 4096 are possible", n_thread);
    struct pool *p = mem_try_aligned(sizeof(*p));
    if (!p)
        return err_set(err, NYB_E_MEMORY, "no memory for a thread pool");
    memset(p, 0, sizeof(*p));
    p->n_thread = 1;
    p->spin_limit = n_thread <= cores ? SPIN_LIMIT : 0;
    p->worker = mem_alloc((size_t)n_thread, sizeof(*p->worker));
    cpu_set_t allowed;
    bool pin = n_thread <= cores && sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
    for (int i = 1; i < n_thread; i++) {
        struct worker *w = &p->worker[i - 1];
        *w = (struct worker){.pool = p, .index = i};
        int rc = pthread_create(&w->thread, NULL, worker_main, w);
        if (rc) {
            pool_close(p);
            return err_set(err, NYB_E_MEMORY, "cannot start thread %d of %d: %s", i + 1, n_thread,
                           strerror(rc));
        }
        p->n_thread = i + 1;
        if (pin)
            pin_worker(w->thread, i, &allowed);
    }
    *out = p;
    return NYB_OK;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->closing, true);
    atomic_fetch_add(&p->epoch, 1);
    futex_wake(&p->epoch, INT_MAX);
    for (int i = 1; i < p->n_thread; i++)
        pthread_join(p->worker[i - 1].thread, NULL);
    free(p->worker);
    free(p);
}

int pool_size(const struct pool *p)
{
    return p->n_thread;
}
