/* The smallest set of weights that holds a share of their mass (top_p), found without sorting. */
#ifndef NYB_ENGINE_NUCLEUS_H
#define NYB_ENGINE_NUCLEUS_H

#include <stdbool.h>

#include "engine/sampler_spread.h"

#define NUCLEUS_SAMPLE 4096 /* weights of a long row, evenly spaced */

/* Whether a row of n weights is sampled first. */
static inline bool nucleus_wants_sample(int n)
{
    return n >= 8 * NUCLEUS_SAMPLE;
}

/* w (n): weights, each 0 or from 2^-126 to 1, the largest of them 1; sample (NUCLEUS_SAMPLE): some of them,
 * as sampler_spread_weigh picks them, where wanted; total: their sum; target: at most that; band (n +
 * SAMPLER_SLACK) and sum (sampler_blocks(n)): overwritten. Returns the cut: weights above it are in, those
 * below are out, and of those equal to it as many are in as the target takes. */
float nucleus_cut(const struct sampler_spread *s, const float *w, int n, const float *sample, double total,
                  double target, float *band, double *sum);

#endif
