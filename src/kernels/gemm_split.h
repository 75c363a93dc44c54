/* Jobs with fewer pairs of panels than the pool has work for, and many rows: cut by rows as well. */
#ifndef NYB_KERNELS_GEMM_SPLIT_H
#define NYB_KERNELS_GEMM_SPLIT_H

#include "kernels/gemm.h"

/* The jobs as they are, or new ones from the arena, of which *n_job are there then. Each row goes the same
 * way as before: its result does not change. */
const struct gemm_job *gemm_split(struct arena *scratch, const struct gemm_job *job, int *n_job, int workers);

#endif
