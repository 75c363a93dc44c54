/* How many threads are worth it on this machine, where nobody has said.
 *
 * Decoding is bound by memory and prefill by arithmetic. Both are tried for a few milliseconds with rising
 * numbers of threads, on the weights themselves, and fewer threads than cores are taken only where they are
 * clearly faster (processors that share cores, memory that fewer threads saturate). The answer is kept in
 * $XDG_CACHE_HOME/nybble/threads (or ~/.cache) under what it depends on: the processor's name, the processors
 * and the time that this process may use, and whether the weights fit a cache. A file that cannot be read or
 * written is as good as none. */
#ifndef NYB_MODEL_THREADS_H
#define NYB_MODEL_THREADS_H

#include "base/pool.h"

/* For a pool with a thread on each core, which it leaves as it was. data: `bytes` of resident memory. */
int threads_choose(struct pool *pool, const uint8_t *data, size_t bytes);

/* ---- parts, for tests ---------------------------------------------------------------------------- */

struct threads_speed {
    int n_thread;
    double read, compute; /* in any unit */
};

/* The best of n measurements, in rising order of threads; the last has a thread on each core. */
int threads_best(const struct threads_speed *s, int n);
/* The number that `path` has for this key; 0: none. */
int threads_recall(const char *path, const char *key);
void threads_remember(const char *path, const char *key, int n_thread);

#endif
