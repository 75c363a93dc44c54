/* What the files of the thread pool share: the pool, its workers, and what each writes. */
#ifndef NYB_BASE_POOL_STATE_H
#define NYB_BASE_POOL_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/pool.h"
#include "base/sideline.h"
#include "base/topology.h"

#define POOL_FOREVER UINT64_MAX

/* A caller who waits for longer than this asks whether it waits for somebody without a core, and again after
 * twice the time. That others leave meanwhile is no reason to ask. */
#define POOL_PATIENCE_NS 100000

struct worker {
    /* Written by the worker. */
    _Alignas(128) atomic_bool inside; /* a run */
    uint64_t left_ns, left_cpu_ns;    /* when it left a run whose caller slept, and its own CPU time then */
    pthread_t thread;
    clockid_t cpu_clock;
    struct pool *pool;
    int index;
    /* Written by the caller. */
    _Alignas(128) atomic_uint out; /* 1: sits out, and sleeps on it                       */
    atomic_ullong until;           /* then it comes by itself, if a run is under way        */
    uint64_t seen_cpu_ns;          /* its CPU time when the caller began to wait for it */
    bool suspect;
    struct sideline_record record;
};

/* What is left of a worker's own items in a run where items have owners: the run's number, and how many of
 * them are drawn. Of another run: none is. */
struct pool_own {
    _Alignas(128) atomic_ullong drawn;
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
    bool kept;       /* items have owners: (n_thread) own */
    unsigned n_kept; /* number of such a run              */
    struct pool_own *own;
    /* Of the caller alone. */
    struct sideline sideline;
    struct pool_stats stats;
    int n_helper;         /* workers that do not sit out    */
    uint64_t next_return; /* of one that does               */
    long switched;        /* the caller's involuntary switches, as last seen */
    uint64_t queued_ns;   /* that the caller had waited for a core then */
    /* Cores: worker w is pinned to core[w->index] unless it was moved; the caller is not pinned, since the
     * threads it starts would inherit that. */
    struct topology *topology;
    int *worker_at; /* (topology->n_core) index of the worker pinned there, or 0; NULL: nobody is pinned */
    int spare;      /* the core that no worker has */
    /* Each on a line of its own: they are written by different threads. */
    _Alignas(128) atomic_uint epoch;    /* run number; a waiter sleeps on it         */
    _Alignas(128) atomic_uint sleeping; /* workers in pool_sleep                     */
    _Alignas(128) atomic_int ticket;    /* next item; where they have owners: how many are drawn */
    _Alignas(128) atomic_uint state;    /* RUN_OPEN, and the workers inside          */
    _Alignas(128) atomic_uint left;     /* rings for a caller who sleeps             */
    atomic_bool caller_sleeps;
    atomic_bool closing;
};

/* Where a run's time went, as far as its caller can tell. */
struct pool_account {
    uint64_t gain_ns; /* by which a helper made it shorter, on average     */
    uint64_t loss_ns; /* time that passed because some thread had no core */
    struct worker *culprit;
};

/* ---- pool_worker.c ------------------------------------------------------------------------------- */

/* Until somebody wakes those who sleep on the word, if it is `expected`; or until a time of clock_ns. */
void pool_sleep(atomic_uint *word, unsigned expected);
void pool_sleep_until(atomic_uint *word, unsigned expected, uint64_t until);
void pool_wake(atomic_uint *word, int n);
uint64_t pool_cpu_time_ns(clockid_t clock);

/* Runs items of the open run until there are no more; how many. */
int pool_draw_items(struct pool *p, int worker);
/* The life of a worker, which is `arg`. */
void *pool_worker_main(void *arg);
/* When a caller who has waited since `begin`, is awake at `now` and would have asked at `ask` asks again:
 * `ask` itself until then. */
uint64_t pool_next_ask(uint64_t begin, uint64_t ask, uint64_t now);
/* The caller's: until nobody is inside the run, which is closed. What the wait cost goes into the account. */
void pool_wait_for_workers(struct pool *p, struct pool_account *a);

/* ---- pool_out.c: who sits out -------------------------------------------------------------------- */

void pool_out_take_back_due(struct pool *p, uint64_t now);
/* After a run: sends one out where helpers cost more than they bring. */
void pool_out_settle(struct pool *p, const struct pool_account *a, uint64_t now);

/* ---- pool_place.c: who is on which core ---------------------------------------------------------- */

void pool_place_pin(struct worker *w, int cpu);
/* Back to its own core. */
void pool_place_home(const struct pool *p, struct worker *w);
/* The kernel may have moved the caller onto a worker's core: then that worker goes where the caller came
 * from. */
void pool_place_make_room(struct pool *p);
/* Involuntary switches of the caller since the last look, in slices, as far as they fit into span_ns. */
uint64_t pool_place_time_lost(struct pool *p, uint64_t span_ns);

#endif
