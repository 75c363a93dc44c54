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

#define SAMPLER_SAMPLE 4096 /* a power of two */

/* What is known of a row's logits once somebody has looked at all of them; n >= SAMPLER_SAMPLE. */
struct sampler_glance {
    float *sample; /* (SAMPLER_SAMPLE) some of them, evenly spaced: number i is x[i * n / SAMPLER_SAMPLE] */
    float *peak;   /* (sampler_blocks(n)) the largest of each block */
};

/* The largest, as max; *glance, unless NULL: whoever looks at logits has them near. */
float sampler_spread_max(const struct sampler_spread *s, const float *x, int n, int *at,
                         const struct sampler_glance *glance);
/* The sum of the weights, and of those of each block into sum. */
double sampler_spread_weigh(const struct sampler_spread *s, const struct sampler_weights *w, double *sum);
/* As weigh_band. */
int sampler_spread_band(const struct sampler_spread *s, const struct sampler_weights *w, float low,
                        float high, float *out, const struct sampler_sums *to);
/* Of sums of blocks, those of n floats. */
double sampler_total(const double *sum, int n);

#endif
