/* The sampler's passes over a row, one set for each CPU level. Every set gives the same bits:
 * sampler_lanes.h. */
#ifndef NYB_ENGINE_SAMPLER_OPS_H
#define NYB_ENGINE_SAMPLER_OPS_H

#include <stdint.h>

#include "base/cpu.h"

#define SAMPLER_GROUP 16  /* sums of blocks that are added up before they join the row's */
#define SAMPLER_BLOCK 512 /* floats that are summed in fp32 (32 to a lane) before they join an fp64 sum */
#define SAMPLER_SCAN  64  /* floats that next_above looks at together */
#define SAMPLER_SLACK 16  /* floats that `band` may write after its last */

static inline int sampler_blocks(int n)
{
    return (n + SAMPLER_BLOCK - 1) / SAMPLER_BLOCK;
}

/* Logits x (n) whose weights are exp((x - max) * scale), and 0 below `least`; max: the largest, finite. */
struct sampler_weights {
    const float *x;
    int n;
    float max, scale, least;
};

/* By block: see weigh_band. */
struct sampler_sums {
    double *all, *above;
    int32_t *held;
};

struct sampler_ops {
    /* The largest of x (n) and in *at where it is first. NaNs never win; -INFINITY and 0 where nothing does.
     * That of each block into peak (sampler_blocks(n), or NULL). */
    float (*max)(const float *x, int n, int *at, float *peak);

    /* The weights exp((x - max) * scale) into e (n; may be x itself, or NULL), the sum of each block into sum
     * (sampler_blocks(n), or NULL), and the total back. Weights below `least` and those of NaN are 0; max
     * must be finite and no x above it. */
    double (*weigh)(const float *x, int n, float max, float scale, float least, float *e, double *sum);

    /* The first start of SAMPLER_SCAN floats, from the multiple `from` of it on, that hold one above `bound`;
     * else n.
     */
    int (*next_above)(const float *x, int n, int from, float bound);

    /* How many of x (n) are above x[at], or equal and before it. */
    int (*count_before)(const float *x, int n, int at);

    /* The sum of the weights of at least `bound`. */
    double (*mass_from)(const float *w, int n, float bound);

    /* low <= w < high of the weights w (n) into out (n + SAMPLER_SLACK; may be w itself), in their order;
     * returns how many. The sum of those of at least `high` into *above. */
    int (*band)(const float *w, int n, float low, float high, float *out, double *above);

    /* The same of the weights of logits x (n), as weigh makes them, which are not kept otherwise. For each
     * block (sampler_blocks(n)): the sum of its weights, of those of at least `high`, and how many went into
     * out. Whole blocks need no slack. */
    int (*weigh_band)(const struct sampler_weights *w, float low, float high, float *out,
                      const struct sampler_sums *to);

    /* The sum of those of w (n; at most SAMPLER_BLOCK) above a cut that is above 0, and how many are equal to
     * it. */
    double (*above)(const float *w, int n, float cut, int32_t *n_eq);

    /* Minus infinity into x (n). */
    void (*ban)(float *x, int n);
};

extern const struct sampler_ops sampler_ops_scalar, sampler_ops_avx2, sampler_ops_avx512;

/* The set of one level, which must not be above cpu_detect(). */
const struct sampler_ops *sampler_ops_at(enum cpu_level level);

#endif
