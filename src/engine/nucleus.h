/* The smallest set of weights that holds a share of their mass (top_p), found without sorting. */
#ifndef NYB_ENGINE_NUCLEUS_H
#define NYB_ENGINE_NUCLEUS_H

#include "engine/sampler_ops.h"

/* w (n): weights, each 0 or from 2^-126 to 1, the largest of them 1; total: their sum; target: at most that;
 * band (n + SAMPLER_SLACK): overwritten. Returns the cut: weights above it are in, those below are out, and
 * of those equal to it as many are in as the target takes. */
float nucleus_cut(const struct sampler_ops *ops, const float *w, int n, double total, double target,
                  float *band);

#endif
