/* A MoE layer over many tokens (hundreds and up): sorted by expert, two grouped products, a weighted sum. */
#ifndef NYB_KERNELS_CUDA_PREFILL_CUH
#define NYB_KERNELS_CUDA_PREFILL_CUH

#include "kernels/cuda/plugin/gpu.h"

#include "kernels/cuda/plugin/internal.h"

/* Of a product by the kernels for many rows: rows, or pairs of a row and an expert; columns and outputs. */
#define PREFILL_MAX_SLOTS (1 << 24)
#define PREFILL_MAX_WIDTH (1 << 16)

/* NULL, or why these sizes are refused. */
const char *prefill_check(const struct packed_moe *m);

/* Bytes of scratch for sizes that pass. */
size_t prefill_bytes(const struct packed_moe *m);

/* As a packed_moe of any number of rows. `scratch`: prefill_bytes, 16-byte aligned, contents of no matter.
 * The same input gives the same bits. NULL, or why it did not start. */
const char *prefill_start(const struct packed_moe *m, void *scratch, const struct gpu_limits *limits,
                          cudaStream_t stream);

/* A dense product of more rows than the kernel for few takes; where x_is_new is false, x is that of the call
 * before with the same scratch. Compute capability 9.0. */
bool prefill_linear_takes(const struct packed_linear *w, const struct gpu_limits *limits);
size_t prefill_linear_bytes(int n_row, int K);
const char *prefill_linear_start(const struct packed_linear *w, bool x_is_new, void *scratch,
                                 const struct gpu_limits *limits, cudaStream_t stream);

/* A dense product of bf16 with more rows than the kernel for few takes, K a multiple of 64. Compute
 * capability 9.0. */
struct dense;
struct op_place;
bool prefill_bf16_takes(const struct dense *d, const struct gpu_limits *limits);
const char *prefill_bf16_start(const struct dense *d, const struct op_place *at);

#endif
