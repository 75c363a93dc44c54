/* Activations to NVFP4 under a fixed scale of their matrix: for each 16 elements a scale SF = e4m3(min(amax /
 * (6 s), 448)) and codes e2m1(x / (SF s)). The same operations in the same order as the CPU's, bit for bit.
 */
#include "kernels/cuda/plugin/cublaslt.h"
#include "kernels/cuda/plugin/operators.h"

#define THREADS 128

/* Nearest, ties to the even code; NaN is 7, as the conversion in hardware has it. */
static __device__ __forceinline__ uint32_t float_e2m1(float x)
{
    const float a = fabsf(x);
    if (x != x)
        return 7u;
    const uint32_t magnitude = (uint32_t)(a > 0.25f) + (uint32_t)(a >= 0.75f) + (uint32_t)(a > 1.25f) +
                               (uint32_t)(a >= 1.75f) + (uint32_t)(a > 2.5f) + (uint32_t)(a >= 3.5f) +
                               (uint32_t)(a > 5.0f);
    return (x < 0.0f ? 8u : 0u) | magnitude;
}

/* The codes of 16 elements, the first in the lowest bits. */
static __device__ __forceinline__ uint2 quantize_block(const float (&x)[16], float s, uint8_t *scale)
{
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    *scale = float_e4m3(fminf(amax / (6.0f * s), 448.0f));
    const float step = e4m3_float(*scale) * s;
    uint32_t word[2] = {0, 0};
    if (step != 0.0f) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            word[i / 8] |= float_e2m1(x[i] / step) << 4 * (i % 8);
    }
    return make_uint2(word[0], word[1]);
}

static __device__ __forceinline__ void load_block(const quantize &q, size_t row, int block, float (&x)[16])
{
    const size_t at = row * (size_t)q.K + (size_t)block * 16;
    if (q.x) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 v = *(const uint4 *)(q.x + at + 8 * i);
            const uint32_t pair[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[8 * i + j] = j % 2 ? bf16_high(pair[j / 2]) : bf16_low(pair[j / 2]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 v = *(const float4 *)(q.x_float + at + 4 * i);
        x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
    if (!q.gate)
        return;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float gate = q.gate[at + i];
        x[i] = gate / (1.0f + expf(-gate)) * x[i];
    }
}

/* Where row r comes from; below zero: nowhere. */
static __device__ __forceinline__ int source_of(const quantize &q, int r)
{
    if (q.source) {
        const int from = q.source[r];
        return from < 0 ? -1 : q.gate ? r : from / q.n_used;
    }
    return r < OP_COUNT(q.count, q.n_real) ? r : -1;
}

/* A thread makes one block of 16, or one of the zeros that pad a row; grid: (rows, blocks of a row). */
static __global__ void __launch_bounds__(THREADS) quantize_kernel(const quantize q)
{
    gpu_wait_before();
    gpu_let_next();
    const int across = (int)cuda_tiled_across((size_t)q.K) * CUDA_TILE_BLOCKS;
    const int block = (int)(blockIdx.y * THREADS + threadIdx.x), r = (int)blockIdx.x;
    if (block >= across)
        return;
    const int from = block < q.K / 16 ? source_of(q, r) : -1, expert = q.expert ? q.expert[r] : 0;
    const size_t row_bytes = cuda_tiled_row((size_t)q.K) / 2;
    float x[16];
    if (from >= 0)
        load_block(q, (size_t)from, block, x);
    for (int p = 0; p < q.n_part; p++) {
        const quantized &to = q.part[p];
        uint8_t scale = 0;
        uint2 codes = make_uint2(0, 0);
        if (from >= 0)
            codes = quantize_block(x, to.input[2 * expert], &scale);
        if ((size_t)block * 8 < row_bytes)
            *(uint2 *)(to.codes + (size_t)r * row_bytes + (size_t)block * 8) = codes;
        to.scales[cuda_tiled_scale_at((size_t)r, (size_t)block, (size_t)q.K)] = scale;
    }
}

const char *quantize_start(const struct quantize *q, cudaStream_t stream)
{
    if (q->K < 16 || q->K % 16 || q->n_row < CUDA_TILE_ROWS || q->n_row % CUDA_TILE_ROWS || q->n_part < 1 ||
        q->n_part > CUDA_PARTS_MAX || (!q->x && !q->x_float))
        return "quantize: expected rows of a multiple of 16, their number a multiple of 128";
    const unsigned across = (unsigned)cuda_tiled_across((size_t)q->K) * CUDA_TILE_BLOCKS;
    const dim3 grid((unsigned)q->n_row, (across + THREADS - 1) / THREADS);
    return gpu_why(gpu_launch(quantize_kernel, grid, THREADS, 0, stream, *q));
}
