/* Jobs cut by rows as well as by panels: those with fewer pairs of panels than the pool has work for, and
 * those with more rows than the second caches hold. */
#ifndef NYB_KERNELS_GEMM_SPLIT_H
#define NYB_KERNELS_GEMM_SPLIT_H

#include "kernels/gemm_tile.h"

/* The jobs as they are, or new ones from the arena, of which *n_job are there then. Each row goes the same
 * way as before: its result does not change. */
const struct gemm_job *gemm_split(const struct gemm_table *table, enum compute mode, struct arena *scratch,
                                  const struct gemm_job *job, int *n_job, int workers);

#endif
