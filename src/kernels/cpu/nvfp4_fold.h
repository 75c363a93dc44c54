/* NVFP4 weights with their block scales folded in, and the rows of x to go with them, for the matrix unit. */
#ifndef NYB_KERNELS_CPU_NVFP4_FOLD_H
#define NYB_KERNELS_CPU_NVFP4_FOLD_H

#include <stdint.h>

/* The block of n_group (1 .. 4) groups at `block` to operand B, 8 lines of 64 bytes a group: a line holds a
 * pair of k of all 16 rows of the panel, as bf16 that are 2^-108 of the weights, exactly; 64-byte aligned.
 * The block at `ahead` is sent for. */
void gemm_nvfp4_fold_in(const uint8_t *block, int n_group, uint8_t *line, const uint8_t *ahead);
/* n bf16, a multiple of 32, times 2^64; what leaves the range becomes infinite, subnormals become zero. */
void gemm_nvfp4_raise(uint16_t *to, const uint16_t *x, int n);
#define NVFP4_FOLD_UNIT 0x1p44f /* of the sums of both */

#endif
