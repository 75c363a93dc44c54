/* Rows that are drawn together: a row has two passes, both cut into pieces, and between and after them little
 * that one thread does, who ended the row's last piece. Each pass is one run of the pool over the pieces of
 * all rows, where a thread has the same ones in the second as in the first. So rows are dealt out evenly
 * whatever their number, and a thread that is slow, because others use its core, holds up a piece and not a
 * row. Results are those of sampler_spread.h. */
#ifndef NYB_ENGINE_SAMPLER_TOGETHER_H
#define NYB_ENGINE_SAMPLER_TOGETHER_H

#include <stdatomic.h>

#include "engine/nucleus.h"
#include "kernels/kernels.h" /* struct draw */

struct sampler_row {
    const struct draw *draw; /* without top_k */
    const float *logits;
    struct nucleus_work *work;
    int32_t token; /* the result: -1 where no logit is finite */
    /* The pass under way. */
    struct sampler_pass pass;
    struct sampler_glance glance;
    atomic_int looked, weighed; /* pieces of either pass that are done */
    bool decided;               /* the second has nothing to do        */
};

/* Rows of n logits each. */
void sampler_together(const struct sampler_ops *ops, struct pool *pool, int n, struct sampler_row *row,
                      int n_row);

#endif
