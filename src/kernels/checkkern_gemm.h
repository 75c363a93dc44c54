/* Random inputs of the grouped product, for its checks and its bench. */
#ifndef NYB_KERNELS_CHECKKERN_GEMM_H
#define NYB_KERNELS_CHECKKERN_GEMM_H

#include "kernels/gemm.h"

void checkkern_make_weight(struct arena *arena, uint64_t *seed, enum weight_type type, int n, int k,
                           struct weight *w);
float *checkkern_make_rows(struct arena *arena, uint64_t *seed, int m, int k); /* (m, k) */
/* An int8 operand's integer at place i of a row, what one stands for there, and its group's bias. */
int checkkern_int8(const struct operand *op, int row, int i);
double checkkern_int8_step(const struct operand *op, int row, int i);
int checkkern_int8_bias(const struct operand *op, int row, int i);
/* Row `col` of NVFP4 weights w (k) as products with that row of x in blocks of 64 see it: with block scales
 * as integers in a unit that the 64 share. Operands that are not in blocks leave it as it is. */
void checkkern_int8_weights(const struct operand *op, int row, const struct weight *weight, int col,
                            float *w);

#endif
