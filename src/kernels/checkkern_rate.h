/* What the machine does on average over a given time, with all of a pool's threads: reading, and arithmetic
 * from registers. A program that runs for seconds can be compared with this; with the best of many moments
 * (checkkern_measure) one that runs for a moment. */
#ifndef NYB_KERNELS_CHECKKERN_RATE_H
#define NYB_KERNELS_CHECKKERN_RATE_H

#include "kernels/checkkern.h"

/* Read n words, a multiple of 32, and fold them into one. */
typedef uint64_t checkkern_read_fn(const uint64_t *data, size_t n);

/* Memory that is read piece by piece, from its start again after the last. */
struct checkkern_stream {
    checkkern_read_fn *read;
    const uint8_t *data;
    size_t piece; /* bytes */
    int n_piece, next;
    uint64_t *sink; /* by worker */
    void *own;      /* memory that it has taken itself */
    size_t own_bytes;
};

/* Nothing of the data is written. False: no memory, or too little to read. */
bool checkkern_stream_open(struct checkkern_stream *s, const void *data, size_t bytes, int n_thread);
/* The same over memory of its own, more than last caches hold: 256 MB at least. */
bool checkkern_stream_take(struct checkkern_stream *s, struct pool *pool);
void checkkern_stream_close(struct checkkern_stream *s);

/* Bytes or operations, and the time that they took. */
struct checkkern_rate {
    double done, seconds;
};

/* Each goes on for so many seconds, and at least for a moment, and adds what it did. Whoever sits out because
 * of a neighbour is called for every moment, and once more at the end: what comes next finds all threads. */
void checkkern_rate_read(struct pool *pool, struct checkkern_stream *s, double seconds,
                         struct checkkern_rate *rate);
/* False: the level has no such instructions, and nothing was done. */
bool checkkern_rate_peak(struct pool *pool, enum cpu_level level, enum checkkern_unit unit, double seconds,
                         struct checkkern_rate *rate);

#endif
