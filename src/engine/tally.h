/* Histograms that one thread counts and any other may read. */
#ifndef NYB_ENGINE_TALLY_H
#define NYB_ENGINE_TALLY_H

#include <stdatomic.h>

#include "nybble.h"

struct tally {
    const double *bound; /* (n_bound) rising, at most NYB_BUCKET_MAX */
    int n_bound;
    atomic_uint_fast64_t count[NYB_BUCKET_MAX + 1]; /* (n_bound + 1), not cumulative */
    _Atomic double sum;
};

/* Prometheus metrics of vLLM have these bounds, so that its dashboards show ours. */
void tally_init_tokens(struct tally *t);  /* iteration_tokens_total */
void tally_init_seconds(struct tally *t); /* finer than vLLM's of requests: a step is short */
void tally_add(struct tally *t, double x);
/* Counts may be one step apart from one another. */
void tally_read(const struct tally *t, struct nyb_histogram *out);

#endif
