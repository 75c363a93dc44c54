/* Rows of residual addition and RMSNorm, a block each: shared by the norm alone and by the one that adds what
 * several GPUs have, so that both give the same bits. */
#pragma once

#include "kernels/cuda/plugin/operators.h"

#define NORM_N_MAX 32768 /* a row lies in shared memory */

/* The threads depend on n alone, and so does the order of the sum. */
static inline int norm_threads(int n)
{
    const int quarters = (n + 3) / 4, threads = (quarters + 31) / 32 * 32;
    return threads < 1024 ? threads : 1024;
}

/* The kernel for one row. */
bool add_norm_one_takes(const struct cuda_op *op);
const char *add_norm_one_start(const struct cuda_op *op, const struct op_place *at);

/* Of shared memory: whole fours. */
static inline size_t norm_shared_bytes(int n)
{
    return (size_t)(n + 3) / 4 * 4 * sizeof(float);
}

/* Elements i to i + 3 of a row of n; beyond its end zeros. ALIGNED: n is a multiple of 4. */
template <bool ALIGNED> static __device__ __forceinline__ float4 norm_four(const float *row, int i, int n)
{
    if (ALIGNED)
        return *(const float4 *)(row + i);
    return make_float4(row[i], i + 1 < n ? row[i + 1] : 0.0f, i + 2 < n ? row[i + 2] : 0.0f,
                       i + 3 < n ? row[i + 3] : 0.0f);
}

static __device__ __forceinline__ float4 norm_add(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

template <bool ALIGNED> static __device__ __forceinline__ void norm_put(float *row, int i, int n, float4 v)
{
    if (ALIGNED) {
        *(float4 *)(row + i) = v;
        return;
    }
    const float part[4] = {v.x, v.y, v.z, v.w};
    for (int j = 0; j < 4 && i + j < n; j++)
        row[i + j] = part[j];
}

/* Into this thread's places of `row`; returns `sum` and their squares. */
static __device__ __forceinline__ float norm_keep(float *row, int i, float4 v, float sum)
{
    *(float4 *)(row + i) = v; /* there is room for whole fours */
    return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
}

/* Row `to` of y and y_float, from what norm_keep has kept. All threads; `room` as block_sum has it. */
template <bool ALIGNED>
static __device__ __forceinline__ void norm_end(const cuda_add_norm &a, const float *row, float sum,
                                                float *room, size_t to, float4 first_weight)
{
    const int n = a.n, mine = 4 * threadIdx.x;
    sum = block_sum(sum, room);
    const float by = 1.0f / sqrtf(sum / (float)n + a.eps);
    for (int i = mine; i < n; i += 4 * blockDim.x) {
        const float4 v = *(const float4 *)(row + i),
                     w = i == mine ? first_weight : norm_four<ALIGNED>(a.weight, i, n);
        const float4 y = make_float4(v.x * by * w.x, v.y * by * w.y, v.z * by * w.z, v.w * by * w.w);
        if (a.y_float)
            norm_put<ALIGNED>(a.y_float + to, i, n, y);
        if (a.y && ALIGNED) {
            *(uint2 *)(a.y + to + i) = make_uint2(float_bf16_pair(y.x, y.y), float_bf16_pair(y.z, y.w));
        } else if (a.y) {
            const float part[4] = {y.x, y.y, y.z, y.w};
            for (int j = 0; j < 4 && i + j < n; j++)
                a.y[to + i + j] = float_bf16(part[j]);
        }
    }
}
