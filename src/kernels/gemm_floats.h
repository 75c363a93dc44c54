/* Rows as floats, for the jobs whose kernels want them where operands hold bf16 alone. */
#ifndef NYB_KERNELS_GEMM_FLOATS_H
#define NYB_KERNELS_GEMM_FLOATS_H

#include "kernels/gemm_tile.h"

/* The jobs as they are, or new ones from the arena: floats of an operand are made once a call. */
const struct gemm_job *gemm_floats(const struct gemm_table *table, struct pool *pool, struct arena *scratch,
                                   enum compute mode, const struct gemm_job *job, int n_job);

#endif
