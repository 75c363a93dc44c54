/* Block-scaled NVFP4 products through cuBLASLt, which is loaded at run time. Both factors are as cuda_tiled.h
 * has them; sums are fp32. */
#pragma once

#include "kernels/cuda/cuda_tiled.h"
#include "kernels/cuda/plugin/internal.h"

struct lt; /* the library, its workspace, and what it has been asked for before */

/* NULL: why not, one line: a GPU that cannot, no library, or one that is too old. NYBBLE_CUBLASLT names
 * another file than the system's library. */
struct lt *lt_open(const cudaDeviceProp *device, char *why, size_t why_bytes);
void lt_close(struct lt *lt);

/* d[n][ld] = *alpha * x[n] . w[m], all 256-byte aligned and the device's. The rows of w are m up to a
 * multiple of 16; m and ld are multiples of 4, K is one of 32 and includes the padding. */
struct lt_product {
    const uint8_t *w, *w_scale, *x, *x_scale;
    const float *alpha;
    float *d;
    int m, n, K, ld;
};
/* NULL, or why not. May be recorded as part of a graph. */
const char *lt_product_start(struct lt *lt, const struct lt_product *p, cudaStream_t stream);

/* CUDA_EXPERTS_MAX numbers of host memory that the device can copy to. */
int32_t *lt_counts(struct lt *lt);

/* ---- activations (quantize.cu) --------------------------------------------------------------------- */

/* Where rows of NVFP4 go: codes [rows][cuda_tiled_row(K) / 2] and tiles of scales, under *input. */
struct quantized {
    uint8_t *codes, *scales;
    const float *input; /* [1]; of experts [n_expert][2] */
};

/* Rows of K to NVFP4, under up to three scales at once. Row r of the result comes from row source[r] / n_used
 * of x, or where that is below zero it is zeros; without `source` from row r, zeros from *count on. n_row is
 * a multiple of 128; the padding of rows is written too. */
struct quantize {
    const uint16_t *x; /* bf16 [][K], or NULL, and then */
    const float *x_float;
    const float *gate;     /* [n_row][K] of the result's rows: x_float is `up`, and silu(gate) * up counts */
    const int32_t *source; /* [n_row] or NULL */
    const int32_t *expert; /* [n_row]: the scale of row r is input[2 * expert[r]]; NULL: *input */
    const int32_t *count;  /* NULL: n_real */
    int K, n_row, n_real, n_used, n_part;
    struct quantized part[CUDA_PARTS_MAX];
};
const char *quantize_start(const struct quantize *q, cudaStream_t stream);

/* ---- operators (cublaslt_linear.cu, cublaslt_moe.cu), and weights on their way in (cublaslt_pack.cu) --- */

struct op_place;
const char *lt_linear_start(const struct cuda_op *op, const struct op_place *at);
size_t lt_linear_scratch(const struct cuda_op *op);
const char *lt_moe_start(const struct cuda_op *op, const struct op_place *at);
size_t lt_moe_scratch(const struct cuda_op *op);
const char *lt_moe_check(const struct cuda_op *op);
/* p with its rows in the device's memory. */
const char *lt_pack_start(const struct cuda_pack *p, const uint8_t *codes, const uint8_t *scales,
                          cudaStream_t stream);
