/* A fork-join thread pool, one thread a core. The calling thread is worker 0.
 *
 * pool_run hands the items 0..n_item-1 out by ticket, so a slow or descheduled
 * worker delays only the item in its hands. Which worker runs an item is not
 * fixed: callers must make each item's result independent of the worker, and
 * give items their own output. Workers spin for a short while between runs, then
 * sleep on a futex. One pool_run at a time; not reentrant.
 *
 * A worker whose core another process has taken in the middle of an item
 * finishes it on the caller's core, while the caller waits. If that costs more
 * than it brings, the worker sits out for a while (base/sideline.h), so that a run
 * is not slower than the caller alone would be. */
#ifndef NYB_BASE_POOL_H
#define NYB_BASE_POOL_H

#include "base/err.h"

struct pool;
typedef void pool_fn(void *arg, int item, int worker);

/* n_thread <= 0: one for each core this process may use, at most what its control group pays for. */
enum nyb_code pool_open(struct pool **out, int n_thread, struct nyb_err *err) NYB_MUST_CHECK;
void pool_close(struct pool *p);
int pool_size(const struct pool *p);
struct topology;
const struct topology *pool_topology(const struct pool *p); /* base/topology.h: where its threads may be */
/* Only the first n threads take part from now on, 1 <= n <= pool_size(): to find out how many are worth it.
 */
void pool_use(struct pool *p, int n);
/* Nobody sits out for now: before a run that is long, or one that is to show what the machine can do. */
void pool_recall(struct pool *p);
void pool_run(struct pool *p, int n_item, pool_fn *fn, void *arg);

/* The same where what items are about is the same from run to run, as rows are: item i of n goes to the
 * thread that had the i-th of n before, in whose caches its lines are, unless that one is late. */
void pool_run_kept(struct pool *p, int n_item, pool_fn *fn, void *arg);

/* Split 0..n-1 into pieces of at least `grain` and run fn over [begin, end), as pool_run_kept does. */
typedef void pool_range_fn(void *arg, int begin, int end, int worker);
void pool_range(struct pool *p, int n, int grain, pool_range_fn *fn, void *arg);

struct pool_stats {
    uint64_t sent_out; /* times that a worker had to sit out       */
    uint64_t moved;    /* times that a worker made room for the caller */
    int active;        /* threads taking part now, the caller included */
};
void pool_stats(const struct pool *p, struct pool_stats *out);

#endif
