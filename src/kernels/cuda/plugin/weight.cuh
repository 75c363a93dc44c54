/* Elements of matrices that are not packed, one at a time or a vector, as floats without the matrix's scale.
 */
#pragma once

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/plugin/gpu.h"

/* Element k of row `row`, of rows of K. */
template <int TYPE>
__device__ __forceinline__ float weight_at(const struct cuda_weight &w, size_t row, int K, int k)
{
    const size_t at = row * (size_t)K + (size_t)k;
    if (TYPE == CUDA_F32)
        return ((const float *)w.data)[at];
    if (TYPE == CUDA_BF16)
        return bf16_float(((const uint16_t *)w.data)[at]);
    if (TYPE == CUDA_F16)
        return half_float(((const uint16_t *)w.data)[at]);
    if (TYPE == CUDA_FP8)
        return e4m3_float(w.data[at]);
    const uint32_t byte = w.data[at / 2];
    return e2m1_float(at % 2 ? byte >> 4 : byte & 15u) * e4m3_float(w.block[row * (size_t)(K / 16) + k / 16]);
}

/* Elements k to k + 7, k a multiple of 8, K too. */
template <int TYPE>
__device__ __forceinline__ void weight_vector(const struct cuda_weight &w, size_t row, int K, int k,
                                              float (&out)[8])
{
    const size_t at = row * (size_t)K + (size_t)k;
    if (TYPE == CUDA_F32) {
        const float4 u = *(const float4 *)(w.data + 4 * at), v = *(const float4 *)(w.data + 4 * at + 16);
        out[0] = u.x, out[1] = u.y, out[2] = u.z, out[3] = u.w;
        out[4] = v.x, out[5] = v.y, out[6] = v.z, out[7] = v.w;
    } else if (TYPE == CUDA_BF16 || TYPE == CUDA_F16) {
        const uint4 v = *(const uint4 *)(w.data + 2 * at);
        const uint32_t pair[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            out[i] = TYPE == CUDA_F16 ? half_float((uint16_t)(pair[i / 2] >> 16 * (i % 2)))
                     : i % 2          ? bf16_high(pair[i / 2])
                                      : bf16_low(pair[i / 2]);
    } else if (TYPE == CUDA_FP8) {
        const uint2 v = *(const uint2 *)(w.data + at);
#pragma unroll
        for (int i = 0; i < 8; i++)
            out[i] = e4m3_float((uint8_t)((i < 4 ? v.x : v.y) >> 8 * (i % 4)));
    } else {
        const uint32_t eight = *(const uint32_t *)(w.data + at / 2);
        const float scale = e4m3_float(w.block[row * (size_t)(K / 16) + k / 16]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            out[i] = e2m1_float(eight >> 4 * i & 15u) * scale;
    }
}

/* `call<TYPE>` for the type of a matrix that is not packed; NULL stays in `why` where there is none such. */
#define WEIGHT_SWITCH(why, type, call)            \
    switch (type) {                               \
    case CUDA_NVFP4:                              \
        why = call(CUDA_NVFP4);                   \
        break;                                    \
    case CUDA_FP8:                                \
        why = call(CUDA_FP8);                     \
        break;                                    \
    case CUDA_BF16:                               \
        why = call(CUDA_BF16);                    \
        break;                                    \
    case CUDA_F16:                                \
        why = call(CUDA_F16);                     \
        break;                                    \
    case CUDA_F32:                                \
        why = call(CUDA_F32);                     \
        break;                                    \
    default:                                      \
        why = "a type of weights without kernel"; \
    }
