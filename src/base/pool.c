#include "base/pool.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/pool_state.h"

/* Spins before a waiter sleeps: some 20 us. With more threads than cores spinning only takes the core away
 * from the thread waited for, so then it sleeps at once. */
#define SPIN_LIMIT 2000
/* The caller's own part of a run, from which on it looks whether it lost its core on the way. */
#define SUSPECT_NS 500000

/* ---- a run --------------------------------------------------------------------------------------- */

static void run_alone(int n_item, pool_fn *fn, void *arg)
{
    for (int i = 0; i < n_item; i++)
        fn(arg, i, 0);
}

/* By how much longer the run would have been with one helper less, of n: an n-th of what they did would have
 * been shared out to n threads. */
static uint64_t helpers_gain(const struct pool *p, uint64_t busy_ns, int own, int n_item)
{
    uint64_t n = (uint64_t)p->n_helper;
    return busy_ns / (uint64_t)own * (uint64_t)(n_item - own) / (n * n);
}

static void run(struct pool *p, int n_item, pool_fn *fn, void *arg, bool kept)
{
    if (n_item <= 0)
        return;
    if (p->n_thread == 1 || n_item == 1) {
        run_alone(n_item, fn, arg);
        return;
    }
    uint64_t begin = clock_ns();
    if (begin >= p->next_return)
        pool_out_take_back_due(p, begin);
    if (p->n_helper == 0 && p->next_return == POOL_FOREVER) {
        run_alone(n_item, fn, arg);
        return;
    }
    if (p->worker_at)
        pool_place_make_room(p);
    p->fn = fn;
    p->arg = arg;
    p->n_item = n_item;
    p->kept = kept;
    p->n_kept += kept;
    atomic_store_explicit(&p->ticket, 0, memory_order_relaxed);
    atomic_store(&p->state, RUN_OPEN);
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleeping))
        pool_wake(&p->epoch, INT_MAX);
    int own = pool_draw_items(p, 0);
    atomic_fetch_and(&p->state, ~RUN_OPEN);
    uint64_t drawn = clock_ns(), busy = drawn - begin;
    struct pool_account a = {0};
    if (busy > SUSPECT_NS)
        a.loss_ns = pool_place_time_lost(p, busy);
    if (drawn >= p->next_return) /* it may have come on its own */
        pool_out_take_back_due(p, drawn);
    if (own > 0 && p->n_helper > 0)
        a.gain_ns = helpers_gain(p, busy - a.loss_ns, own, n_item);
    pool_wait_for_workers(p, &a);
    pool_out_settle(p, &a, drawn);
}

void pool_run(struct pool *p, int n_item, pool_fn *fn, void *arg)
{
    run(p, n_item, fn, arg, false);
}

void pool_run_kept(struct pool *p, int n_item, pool_fn *fn, void *arg)
{
    run(p, n_item, fn, arg, true);
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
    struct range_run range = {fn, arg, n, piece};
    pool_run_kept(p, (n + piece - 1) / piece, run_piece, &range);
}

/* ---- opening ------------------------------------------------------------------------------------- */

static enum nyb_code start_worker(struct pool *p, int index, int of, struct nyb_err *err)
{
    struct worker *w = &p->worker[index - 1];
    *w = (struct worker){.pool = p, .index = index};
    int rc = pthread_create(&w->thread, NULL, pool_worker_main, w);
    if (rc)
        return err_set(err, NYB_E_MEMORY, "cannot start thread %d of %d: %s", index + 1, of, strerror(rc));
    p->n_thread = index + 1;
    p->n_helper = index;
    if (pthread_getcpuclockid(w->thread, &w->cpu_clock))
        w->cpu_clock = CLOCK_MONOTONIC; /* then a worker is never found without a core */
    if (p->worker_at) {
        p->worker_at[index] = index;
        pool_place_pin(w, p->topology->core[index].cpu);
    }
    return NYB_OK;
}

enum nyb_code pool_open(struct pool **out, int n_thread, struct nyb_err *err)
{
    if (n_thread > 4096)
        return err_set(err, NYB_E_RANGE, "%d threads asked for; at most 4096 are possible", n_thread);
    struct pool *p = aligned_alloc(_Alignof(struct pool), sizeof(*p));
    if (!p)
        return err_set(err, NYB_E_MEMORY, "no memory for a thread pool");
    memset(p, 0, sizeof(*p));
    p->topology = topology_open();
    if (n_thread <= 0)
        n_thread = topology_threads(p->topology);
    bool fits = n_thread <= topology_threads(p->topology);
    p->n_thread = 1;
    p->next_return = POOL_FOREVER;
    p->spin_limit = fits ? SPIN_LIMIT : 0;
    p->worker = aligned_alloc(_Alignof(struct worker), (size_t)n_thread * sizeof(*p->worker));
    enum nyb_code code = NYB_OK;
    p->own = aligned_alloc(_Alignof(struct pool_own), (size_t)n_thread * sizeof(*p->own));
    for (int i = 0; p->own && i < n_thread; i++)
        atomic_init(&p->own[i].drawn, 0);
    if (!p->worker || !p->own)
        code = err_set(err, NYB_E_MEMORY, "no memory for %d threads", n_thread);
    if (n_thread <= p->topology->n_core && p->topology->real)
        p->worker_at = mem_alloc((size_t)p->topology->n_core, sizeof(*p->worker_at));
    for (int i = 1; code == NYB_OK && i < n_thread; i++)
        code = start_worker(p, i, n_thread, err);
    if (code != NYB_OK) {
        pool_close(p);
        return code;
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
    pool_wake(&p->epoch, INT_MAX);
    for (int i = 1; i < p->n_thread; i++) {
        struct worker *w = &p->worker[i - 1];
        atomic_store(&w->out, 0);
        pool_wake(&w->out, 1);
        pthread_join(w->thread, NULL);
    }
    topology_close(p->topology);
    free(p->worker_at);
    free(p->worker);
    free(p->own);
    free(p);
}

int pool_size(const struct pool *p)
{
    return p->n_thread;
}

const struct topology *pool_topology(const struct pool *p)
{
    return p->topology;
}

void pool_stats(const struct pool *p, struct pool_stats *out)
{
    *out = p->stats;
    out->active = p->n_helper + 1;
}
