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

/* As the operations of the same names; sum (sampler_blocks(n)) must be there, and out must not be w. */
float sampler_spread_max(const struct sampler_spread *s, const float *x, int n, int *at);
/* Besides, n_sample <= n of the weights, evenly spaced, into sample (or NULL): whoever made them has them
 * near. */
double sampler_spread_weigh(const struct sampler_spread *s, const float *x, int n, float max, float scale,
                            float least, float *e, double *sum, float *sample, int n_sample);
int sampler_spread_band(const struct sampler_spread *s, const float *w, int n, float low, float high,
                        float *out, double *above, double *sum);
void sampler_spread_split(const struct sampler_spread *s, const float *w, int n, float cut, double *sum,
                          int32_t *n_eq);

#endif
