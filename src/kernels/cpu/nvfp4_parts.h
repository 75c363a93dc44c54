/* The vector work around the matrix unit for NVFP4, whose order of sums is: for each group of 16 k, the
 * products of codes and x with even k and those with odd k in two chains of fma from zero; then
 * sum = fma(block scale, even + odd, sum). */
#ifndef NYB_KERNELS_CPU_NVFP4_PARTS_H
#define NYB_KERNELS_CPU_NVFP4_PARTS_H

#include <stdint.h>

#define NVFP4_SPREAD_BYTES 512 /* of operand B from one group: 8 lines of 64 */
#define NVFP4_CHAIN_ROW    4   /* at most, of gemm_nvfp4_chain */

/* Codes of n_group (1 .. 4) groups of a panel, at `block`, to lines of bf16 pairs; 64-byte aligned. */
void gemm_nvfp4_spread(const uint8_t *block, int n_group, uint8_t *line);
/* sum (n_row, 16) += scales of `block` times dot (n_group, 16, 16), group by group; n_row 1 .. 16. */
void gemm_nvfp4_fold(const uint8_t *block, int n_group, int n_row, const float *dot, float *sum);
/* n bf16, a multiple of 16, to floats. */
void gemm_nvfp4_widen(const uint16_t *x, int n, float *to);
/* The same sums without a matrix unit: panel against n_row rows of x, `stride` apart, to sum (n_row, 16). */
void gemm_nvfp4_chain(const uint8_t *panel, int k, int n_row, const float *x, int stride, float *sum);

#endif
