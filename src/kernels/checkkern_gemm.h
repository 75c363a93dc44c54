/* Random inputs of the grouped product, for its checks and its bench. */
#ifndef NYB_KERNELS_CHECKKERN_GEMM_H
#define NYB_KERNELS_CHECKKERN_GEMM_H

#include "kernels/gemm.h"

void checkkern_make_weight(struct arena *arena, uint64_t *seed, enum weight_type type, int n, int k,
                           struct weight *w);
float *checkkern_make_rows(struct arena *arena, uint64_t *seed, int m, int k); /* (m, k) */
/* What one of an int8 operand's integers stands for, in the group of element i. */
double checkkern_int8_step(const struct operand *op, int row, int i);

#endif
