/* A MoE layer over many tokens (hundreds and up): sorted by expert, two grouped products, a weighted sum. */
#ifndef NYB_KERNELS_CUDA_PREFILL_CUH
#define NYB_KERNELS_CUDA_PREFILL_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_plugin.h"

/* NULL, or why these sizes are refused. */
const char *prefill_check(const struct cuda_moe *m);

/* Bytes of scratch for sizes that pass. */
size_t prefill_bytes(const struct cuda_moe *m);

/* As a cuda_moe of any number of rows. `scratch`: prefill_bytes, 16-byte aligned, contents of no matter. The
 * same input gives the same bits. NULL, or why it did not start. */
const char *prefill_start(const struct cuda_moe *m, void *scratch, cudaStream_t stream);

/* The two products alone, for benches, after a prefill_start with the same arguments: which 0 gate and up, 1
 * down. */
const char *prefill_product(const struct cuda_moe *m, void *scratch, int which, cudaStream_t stream);

#endif
