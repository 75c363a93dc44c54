/* The sampler's passes over one long row, by all threads of a pool: for steps with fewer rows than threads.
 * Results are those of sampler_ops.h, bit for bit, for any number of threads: pieces are whole blocks, whose
 * sums are added in the order of the row. */
#ifndef NYB_ENGINE_SAMPLER_SPREAD_H
#define NYB_ENGINE_SAMPLER_SPREAD_H

#include "base/pool.h"
#include "engine/sampler_ops.h"

struct sampler_spread {
    const struct sampler_ops *ops;
    struct pool *pool; /* NULL: the caller alone, with ops */
};

/* As the operations of the same names; sum (sampler_blocks(n)) must be there. */
float sampler_spread_max(const struct sampler_spread *s, const float *x, int n, int *at);
double sampler_spread_weigh(const struct sampler_spread *s, const float *x, int n, float max, float scale,
                            float least, float *e, double *sum);
void sampler_spread_split(const struct sampler_spread *s, const float *w, int n, float cut, double *sum,
                          int32_t *n_eq);

#endif
