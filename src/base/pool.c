#include "base/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/sideline.h"
#include "base/topology.h"

/* Spins before a waiter sleeps: some 20 us. With more threads than cores spinning only takes the core away
 * from the thread waited for, so then it sleeps at once. */
#define SPIN_LIMIT 2000
/* The caller's own part of a run, from which on it looks whether it lost its core on the way. */
#define SUSPECT_NS 500000
/* What one involuntary switch may have cost: a scheduler's slice. */
#define SLICE_NS 4000000
/* Shorter waits for a thread without a core are not worth a reaction. */
#define LOSS_MIN_NS 50000
#define FOREVER     UINT64_MAX

struct worker {
    /* Written by the worker. */
    _Alignas(128) atomic_bool inside; /* a run */
    uint64_t left_ns, left_cpu_ns;    /* when it left a run whose caller slept, and its own CPU time then */
    pthread_t thread;
    clockid_t cpu_clock;
    struct pool *pool;
    int index;
    /* Written by the caller. */
    _Alignas(128) atomic_uint out; /* 1: sits out, and sleeps on it */
    uint64_t until;                /* its return                    */
    uint64_t seen_cpu_ns;          /* its CPU time when the caller began to wait for it */
    bool suspect;
    struct sideline_record record;
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
    /* Of the caller alone. */
    struct sideline sideline;
    struct pool_stats stats;
    int n_helper;         /* workers that do not sit out    */
    uint64_t next_return; /* of one that does               */
    long switched;        /* the caller's involuntary switches, as last seen */
    /* Cores: worker w is pinned to core[w->index] unless it was moved; the caller is not pinned, since the
     * threads it starts would inherit that. */
    struct topology *topology;
    int *worker_at; /* (topology->n_core) index of the worker pinned there, or 0; NULL: nobody is pinned */
    int spare;      /* the core that no worker has */
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

static uint64_t cpu_time_ns(clockid_t clock)
{
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- workers ------------------------------------------------------------------------------------- */

static int draw_items(struct pool *p, int worker)
{
    for (int n = 0;; n++) {
        int item = atomic_fetch_add_explicit(&p->ticket, 1, memory_order_relaxed);
        if (item >= p->n_item)
            return n;
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

/* The caller reads the times after it has seen `state` without us. */
static void leave_run(struct pool *p, struct worker *w)
{
    if (atomic_load(&p->caller_sleeps)) {
        w->left_cpu_ns = cpu_time_ns(CLOCK_THREAD_CPUTIME_ID);
        w->left_ns = clock_ns();
    }
    atomic_store(&w->inside, false);
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
        while (atomic_load(&w->out) && !atomic_load(&p->closing))
            futex_wait(&w->out, 1);
        if (atomic_load(&p->closing))
            return NULL;
        atomic_store_explicit(&w->inside, true, memory_order_relaxed);
        if (join_run(p)) {
            draw_items(p, w->index);
            leave_run(p, w);
        } else {
            atomic_store_explicit(&w->inside, false, memory_order_relaxed);
        }
    }
}

/* ---- who sits out -------------------------------------------------------------------------------- */

static void send_out(struct pool *p, struct worker *w, uint64_t until)
{
    if (atomic_load(&w->out))
        return;
    w->until = until;
    p->next_return = until < p->next_return ? until : p->next_return;
    p->n_helper--;
    atomic_store(&w->out, 1);
}

static void take_back(struct pool *p, struct worker *w)
{
    if (!atomic_load(&w->out))
        return;
    p->n_helper++;
    sideline_return(&p->sideline, &w->record);
    atomic_store(&w->out, 0);
    futex_wake(&w->out, 1);
}

static void take_back_due(struct pool *p, uint64_t now)
{
    p->next_return = FOREVER;
    for (int i = 0; i < p->n_thread - 1; i++) {
        struct worker *w = &p->worker[i];
        if (!atomic_load(&w->out))
            continue;
        if (w->until <= now)
            take_back(p, w);
        else if (w->until < p->next_return)
            p->next_return = w->until;
    }
}

void pool_use(struct pool *p, int n)
{
    ASSERT(n >= 1 && n <= p->n_thread);
    for (int i = 0; i < p->n_thread - 1; i++) {
        struct worker *w = &p->worker[i];
        if (i + 1 < n)
            take_back(p, w);
        else
            send_out(p, w, FOREVER);
        w->until = FOREVER; /* also of one that sat out already */
    }
}

/* Nobody in particular is to blame: the last one goes, and leaves its core to the caller. */
static struct worker *last_helper(struct pool *p)
{
    for (int i = p->n_thread - 2; i >= 0; i--)
        if (!atomic_load(&p->worker[i].out))
            return &p->worker[i];
    return NULL;
}

/* Where a run's time went, as far as its caller can tell. */
struct account {
    uint64_t gain_ns; /* what a helper saved on average                   */
    uint64_t loss_ns; /* time that passed because some thread had no core */
    struct worker *culprit;
};

static void settle(struct pool *p, const struct account *a, uint64_t now)
{
    uint64_t loss = a->loss_ns < LOSS_MIN_NS ? 0 : a->loss_ns;
    if (!sideline_settle(&p->sideline, a->gain_ns, loss))
        return;
    struct worker *w = a->culprit ? a->culprit : last_helper(p);
    if (!w)
        return;
    p->stats.sent_out++;
    send_out(p, w, now + sideline_penalty(&p->sideline, &w->record, loss));
}

/* ---- waiting for those inside -------------------------------------------------------------------- */

static bool run_is_empty(struct pool *p)
{
    return (atomic_load(&p->state) & RUN_COUNT) == 0;
}

static void note_suspects(struct pool *p)
{
    for (int i = 0; i < p->n_thread - 1; i++) {
        struct worker *w = &p->worker[i];
        w->suspect = atomic_load(&w->inside);
        if (w->suspect)
            w->seen_cpu_ns = cpu_time_ns(w->cpu_clock);
    }
}

/* For how long the worst of them was off its core, between `begin` and its leaving, and for how long the
 * caller then waited for its own. */
static void judge_suspects(const struct pool *p, uint64_t begin, uint64_t end, struct account *a)
{
    uint64_t last = begin, worst = 0;
    for (int i = 0; i < p->n_thread - 1; i++) {
        struct worker *w = &p->worker[i];
        if (!w->suspect || w->left_ns <= begin)
            continue;
        uint64_t there = w->left_ns - begin, on = w->left_cpu_ns - w->seen_cpu_ns;
        last = w->left_ns > last ? w->left_ns : last;
        if (on < there && there - on > worst) {
            worst = there - on;
            a->culprit = w;
        }
    }
    a->loss_ns += worst + (end > last ? end - last : 0);
}

static void sleep_for_workers(struct pool *p, struct account *a)
{
    note_suspects(p);
    uint64_t begin = clock_ns();
    atomic_store(&p->caller_sleeps, true);
    for (;;) {
        unsigned left = atomic_load(&p->left);
        if (run_is_empty(p))
            break;
        futex_wait(&p->left, left);
    }
    atomic_store(&p->caller_sleeps, false);
    judge_suspects(p, begin, clock_ns(), a);
}

static void wait_for_workers(struct pool *p, struct account *a)
{
    for (int spin = 0; spin < p->spin_limit; spin++) {
        if (run_is_empty(p))
            return;
        __builtin_ia32_pause();
    }
    sleep_for_workers(p, a);
}

/* ---- the caller's core --------------------------------------------------------------------------- */

static void pin(struct worker *w, int cpu)
{
    size_t bytes = CPU_ALLOC_SIZE((size_t)cpu + 1);
    cpu_set_t *one = CPU_ALLOC((size_t)cpu + 1);
    if (!one)
        return;
    CPU_ZERO_S(bytes, one);
    CPU_SET_S((size_t)cpu, bytes, one);
    pthread_setaffinity_np(w->thread, bytes, one); /* best effort: placement is not correctness */
    CPU_FREE(one);
}

/* The kernel has moved the caller onto a worker's core: the worker goes where the caller came from. */
static void make_room(struct pool *p)
{
    const struct topology *t = p->topology;
    int cpu = sched_getcpu();
    int core = cpu >= 0 && cpu < t->n_cpu ? t->core_of_cpu[cpu] : -1;
    if (core < 0 || core == p->spare)
        return;
    int index = p->worker_at[core];
    if (index > 0) {
        pin(&p->worker[index - 1], t->core[p->spare].cpu);
        p->stats.moved++;
    }
    p->worker_at[p->spare] = index;
    p->worker_at[core] = 0;
    p->spare = core;
}

/* Involuntary switches since the last look, in slices, as far as they fit into `span_ns`. */
static uint64_t time_switched_out(struct pool *p, uint64_t span_ns)
{
    struct rusage u;
    if (getrusage(RUSAGE_THREAD, &u))
        return 0;
    long n = u.ru_nivcsw - p->switched;
    p->switched = u.ru_nivcsw;
    if (n <= 0)
        return 0;
    uint64_t most = (uint64_t)n * SLICE_NS;
    return most < span_ns ? most : span_ns;
}

/* ---- a run --------------------------------------------------------------------------------------- */

static void run_alone(int n_item, pool_fn *fn, void *arg)
{
    for (int i = 0; i < n_item; i++)
        fn(arg, i, 0);
}

void pool_run(struct pool *p, int n_item, pool_fn *fn, void *arg)
{
    if (n_item <= 0)
        return;
    if (p->n_thread == 1 || n_item == 1) {
        run_alone(n_item, fn, arg);
        return;
    }
    uint64_t begin = clock_ns();
    if (begin >= p->next_return)
        take_back_due(p, begin);
    if (p->n_helper == 0) {
        run_alone(n_item, fn, arg);
        return;
    }
    if (p->worker_at)
        make_room(p);
    p->fn = fn;
    p->arg = arg;
    p->n_item = n_item;
    atomic_store_explicit(&p->ticket, 0, memory_order_relaxed);
    atomic_store(&p->state, RUN_OPEN);
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleeping))
        futex_wake(&p->epoch, INT_MAX);
    int own = draw_items(p, 0);
    atomic_fetch_and(&p->state, ~RUN_OPEN);
    uint64_t drawn = clock_ns(), busy = drawn - begin;
    struct account a = {0};
    if (busy > SUSPECT_NS)
        a.loss_ns = time_switched_out(p, busy);
    if (own > 0)
        a.gain_ns = (busy - a.loss_ns) / (uint64_t)own * (uint64_t)(n_item - own) / (uint64_t)p->n_helper;
    wait_for_workers(p, &a);
    settle(p, &a, drawn);
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

/* ---- opening ------------------------------------------------------------------------------------- */

static enum nyb_code start_worker(struct pool *p, int index, int of, struct nyb_err *err)
{
    struct worker *w = &p->worker[index - 1];
    *w = (struct worker){.pool = p, .index = index};
    int rc = pthread_create(&w->thread, NULL, worker_main, w);
    if (rc)
        return err_set(err, NYB_E_MEMORY, "cannot start thread %d of %d: %s", index + 1, of, strerror(rc));
    p->n_thread = index + 1;
    p->n_helper = index;
    if (pthread_getcpuclockid(w->thread, &w->cpu_clock))
        w->cpu_clock = CLOCK_MONOTONIC; /* then a worker is never found without a core */
    if (p->worker_at) {
        p->worker_at[index] = index;
        pin(w, p->topology->core[index].cpu);
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
    p->next_return = FOREVER;
    p->spin_limit = fits ? SPIN_LIMIT : 0;
    p->worker = aligned_alloc(_Alignof(struct worker), (size_t)n_thread * sizeof(*p->worker));
    enum nyb_code code = NYB_OK;
    if (!p->worker)
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
    futex_wake(&p->epoch, INT_MAX);
    for (int i = 1; i < p->n_thread; i++) {
        struct worker *w = &p->worker[i - 1];
        atomic_store(&w->out, 0);
        futex_wake(&w->out, 1);
        pthread_join(w->thread, NULL);
    }
    topology_close(p->topology);
    free(p->worker_at);
    free(p->worker);
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
