/* NVFP4 matrices for the checks of kernels that read the packed layout: random rows as a checkpoint has them,
 * what they are as floats, and activations. */
#ifndef NYB_KERNELS_CHECKKERN_CUDA_PACKED_H
#define NYB_KERNELS_CHECKKERN_CUDA_PACKED_H

#include "kernels/checkkern_cuda_case.h"

/* Of the sum of magnitudes: fp32 sums on matrix units, which may truncate, over any K here. */
#define PACKED_SUM_TOLERANCE 0x1p-16

/* Rows [n_row][K] in the arena, codes and scales apart. */
struct packed_rows {
    uint8_t *codes, *scales;
    float global;
    int n_row, K;
};

/* Scales of all sizes, subnormal ones among them; now and then negative, zero or NaN, the latter over zeros.
 */
struct packed_rows packed_rows_make(struct arena *a, uint64_t *seed, int n_row, int K);

/* Row r as floats [K] without the global scale. */
void packed_rows_value(const struct packed_rows *w, int r, float *out);

/* Activations: n bf16 numbers, a few of them large. */
uint16_t *packed_x(struct arena *a, uint64_t *seed, int n);

#endif
