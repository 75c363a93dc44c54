/* Rows of Y back to tokens: their weighted sum, or each by itself. */
#ifndef NYB_KERNELS_CUDA_PREFILL_SUM_CUH
#define NYB_KERNELS_CUDA_PREFILL_SUM_CUH

#include "kernels/cuda/plugin/gpu.h"

static __device__ void add(float (&sum)[8], float w, uint4 v)
{
    const uint32_t pair[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int p = 0; p < 4; p++) {
        sum[2 * p] = fmaf(w, __uint_as_float(pair[p] << 16), sum[2 * p]);
        sum[2 * p + 1] = fmaf(w, __uint_as_float(pair[p] & 0xffff0000), sum[2 * p + 1]);
    }
}

/* out[t] = sum of weight * Y, slots ascending: blockIdx.x is the token, a thread has 8 of its values. */
static __global__ void finalize_kernel(const uint16_t *y, const int *row, const float *weight, int n_used,
                                       int hidden, size_t capacity, float *out)
{
    gpu_wait_before();
    gpu_let_next();
    row += (size_t)blockIdx.x * n_used;
    weight += (size_t)blockIdx.x * n_used;
    out += (size_t)blockIdx.x * hidden;
    const int chunk = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (chunk < hidden / 8) {
        float sum[8] = {};
        const uint4 *from = (const uint4 *)(y + (size_t)(chunk / 8) * capacity * 64);
#pragma unroll 8
        for (int j = 0; j < n_used; j++) {
            const int r = row[j];
            if (r >= 0)
                add(sum, weight[j], __ldcs(from + (size_t)r * 8 + ((chunk & 7) ^ (r & 7))));
        }
        float4 *to = (float4 *)(out + 8 * chunk);
        to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    }
}

/* each[slot] = Y of that slot, where it has one: blockIdx.x is the token, a thread has 8 of its values. */
static __global__ void each_kernel(const uint16_t *y, const int *row, int n_used, int hidden, size_t capacity,
                                   uint16_t *each)
{
    gpu_wait_before();
    gpu_let_next();
    row += (size_t)blockIdx.x * n_used;
    each += (size_t)blockIdx.x * n_used * hidden;
    const int chunk = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (chunk < hidden / 8) {
        const uint4 *from = (const uint4 *)(y + (size_t)(chunk / 8) * capacity * 64);
#pragma unroll 8
        for (int j = 0; j < n_used; j++) {
            const int r = row[j];
            if (r >= 0)
                *(uint4 *)(each + (size_t)j * hidden + 8 * chunk) =
                    __ldcs(from + (size_t)r * 8 + ((chunk & 7) ^ (r & 7)));
        }
    }
}

#endif
