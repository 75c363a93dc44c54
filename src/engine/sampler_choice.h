/* The draw from a row of weights, once it is known which of them are in. */
#ifndef NYB_ENGINE_SAMPLER_CHOICE_H
#define NYB_ENGINE_SAMPLER_CHOICE_H

#include "engine/sampler_ops.h"

/* Of a row of weights those above `cut`, and the first n_eq of those equal to it; the mass and the number of
 * either kind in each block. */
struct sampler_choice {
    const struct sampler_ops *ops;
    const struct sampler_weights *w;
    float cut;
    int n_eq;
    const double *sum;         /* (blocks)                                      */
    const int32_t *n_eq_block; /* (blocks), or NULL where none equal to it count */
};

/* The token where the mass, counted from the first, passes `target`. -1 where there is no mass. */
int32_t sampler_choice_draw(const struct sampler_choice *c, double target);

#endif
