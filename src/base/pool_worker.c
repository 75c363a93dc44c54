/* Runs from both sides: workers that wake, draw items and leave, and the caller who waits for those inside.
 */
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/pool_state.h"

void pool_sleep(atomic_uint *word, unsigned expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

void pool_sleep_until(atomic_uint *word, unsigned expected, uint64_t until)
{
    struct timespec t = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, expected, until == POOL_FOREVER ? NULL : &t, NULL,
            FUTEX_BITSET_MATCH_ANY);
}

void pool_wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

uint64_t pool_cpu_time_ns(clockid_t clock)
{
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- workers ------------------------------------------------------------------------------------- */

/* The first item of a worker's own, or of the next one's. */
static int first_of(const struct pool *p, int owner)
{
    return (int)((int64_t)owner * p->n_item / p->n_thread);
}

/* One of the items that `owner` has left, or -1. */
static int draw_of(struct pool *p, int owner)
{
    atomic_ullong *own = &p->own[owner].drawn;
    const int first = first_of(p, owner), n = first_of(p, owner + 1) - first;
    unsigned long long seen = atomic_load_explicit(own, memory_order_relaxed), next;
    int drawn;
    do {
        drawn = (unsigned)(seen >> 32) == p->n_kept ? (int)(unsigned)seen : 0;
        next = (unsigned long long)p->n_kept << 32 | (unsigned)(drawn + 1);
        if (drawn >= n)
            return -1;
    } while (
        !atomic_compare_exchange_weak_explicit(own, &seen, next, memory_order_relaxed, memory_order_relaxed));
    atomic_fetch_add_explicit(&p->ticket, 1, memory_order_relaxed);
    return first + drawn;
}

/* A worker's own items, then what is left of the others'. */
static int draw_kept(struct pool *p, int worker)
{
    int n = 0;
    for (int i = 0, owner = worker; i < p->n_thread; i++, owner = owner + 1 < p->n_thread ? owner + 1 : 0) {
        for (int item; (item = draw_of(p, owner)) >= 0; n++)
            p->fn(p->arg, item, worker);
        if (atomic_load_explicit(&p->ticket, memory_order_relaxed) >= p->n_item)
            break;
    }
    return n;
}

int pool_draw_items(struct pool *p, int worker)
{
    if (p->kept)
        return draw_kept(p, worker);
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
        pool_sleep(&p->epoch, seen);
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
        w->left_cpu_ns = pool_cpu_time_ns(CLOCK_THREAD_CPUTIME_ID);
        w->left_ns = clock_ns();
    }
    atomic_store(&w->inside, false);
    atomic_fetch_sub(&p->state, 1);
    if (atomic_load(&p->caller_sleeps)) {
        atomic_fetch_add(&p->left, 1);
        pool_wake(&p->left, 1);
    }
}

/* One whose time is over comes by itself: a long run may be under way. The caller counts it later. */
static void sit_out(const struct pool *p, struct worker *w)
{
    while (atomic_load(&w->out) && !atomic_load(&p->closing)) {
        uint64_t until = atomic_load(&w->until);
        if (clock_ns() >= until)
            return;
        pool_sleep_until(&w->out, 1, until);
    }
}

void *pool_worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        wait_for_epoch(p, seen);
        seen = atomic_load(&p->epoch);
        sit_out(p, w);
        if (atomic_load(&p->closing))
            return NULL;
        atomic_store_explicit(&w->inside, true, memory_order_relaxed);
        if (join_run(p)) {
            pool_draw_items(p, w->index);
            leave_run(p, w);
        } else {
            atomic_store_explicit(&w->inside, false, memory_order_relaxed);
        }
    }
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
            w->seen_cpu_ns = pool_cpu_time_ns(w->cpu_clock);
    }
}

/* For how long the worst of them was off its core, between `begin` and its leaving, and for how long the
 * caller then waited for its own. */
static void judge_suspects(const struct pool *p, uint64_t begin, uint64_t end, struct pool_account *a)
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

/* A suspect who has been off its core for most of the time since `begin`. */
static struct worker *find_stuck(const struct pool *p, uint64_t begin)
{
    uint64_t there = clock_ns() - begin;
    for (int i = 0; i < p->n_thread - 1; i++) {
        struct worker *w = &p->worker[i];
        if (w->suspect && atomic_load(&w->inside) &&
            pool_cpu_time_ns(w->cpu_clock) - w->seen_cpu_ns < there / 2)
            return w;
    }
    return NULL;
}

uint64_t pool_next_ask(uint64_t begin, uint64_t ask, uint64_t now)
{
    return now < ask ? ask : now + POOL_PATIENCE_NS + (now - begin);
}

static void sleep_for_workers(struct pool *p, struct pool_account *a)
{
    note_suspects(p);
    uint64_t begin = clock_ns(), ask = begin + POOL_PATIENCE_NS;
    struct worker *guest = NULL; /* has our core until it has left */
    atomic_store(&p->caller_sleeps, true);
    for (;;) {
        unsigned left = atomic_load(&p->left);
        if (run_is_empty(p))
            break;
        if (guest && !atomic_load(&guest->inside)) {
            pool_place_home(p, guest);
            guest = NULL;
        }
        const bool may_ask = p->worker_at && !guest;
        pool_sleep_until(&p->left, left, may_ask ? ask : POOL_FOREVER);
        const uint64_t next = pool_next_ask(begin, ask, clock_ns());
        if (!may_ask || next == ask) /* somebody left */
            continue;
        ask = next;
        guest = find_stuck(p, begin);
        if (guest)
            pool_place_pin(guest, sched_getcpu());
    }
    atomic_store(&p->caller_sleeps, false);
    if (guest)
        pool_place_home(p, guest);
    judge_suspects(p, begin, clock_ns(), a);
}

void pool_wait_for_workers(struct pool *p, struct pool_account *a)
{
    for (int spin = 0; spin < p->spin_limit; spin++) {
        if (run_is_empty(p))
            return;
        __builtin_ia32_pause();
    }
    sleep_for_workers(p, a);
}
