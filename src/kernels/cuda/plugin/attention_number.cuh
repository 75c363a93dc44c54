/* The numbers in which a row of `single` meets the cache: bf16 as they are, e4m3 as f16, which holds them all
 * and into which the device turns two of them with one instruction. The other factor follows: queries
 * multiplied by a power of two, so that f16 holds them, and weights of keys multiplied by FP8_WEIGHT. */
#pragma once

#include "kernels/cuda/plugin/attention.cuh"

/* A weight of 1 is 2^15: f16's largest power of two, so that weights down to 2^-29 keep all of their bits. */
#define FP8_WEIGHT_LOG2 15.0f

/* Two e4m3 (the low half of `two`) as f16; two floats as f16, to nearest even; the product of mma_bf16 with
 * f16 in place of bf16. */
#ifdef __CUDACC__
__device__ __forceinline__ uint32_t e4m3_half_pair(uint32_t two)
{
    uint32_t r;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((uint16_t)two));
    return r;
}
__device__ __forceinline__ uint32_t float_half_pair(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
uint32_t e4m3_half_pair(uint32_t two);
uint32_t float_half_pair(float low, float high);
void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
#endif

/* kv_keep of four bytes, keys of one dimension. */
__device__ __forceinline__ uint32_t kv_keep_bytes(uint32_t v, int n)
{
    return n >= 4 ? v : n <= 0 ? 0u : v & ((1u << 8 * n) - 1u);
}

template <int TYPE> __device__ __forceinline__ uint32_t kv_pair(float low, float high)
{
    return TYPE == CUDA_KV_FP8 ? float_half_pair(low, high) : float_bf16_pair(low, high);
}

/* A lane's part of a query, N vectors of four pairs of bf16, of which its neighbours, LANES in all, have the
 * rest: as f16 times a power of two, to which the largest element's exponent leads. Returns its inverse. */
template <int LANES, int N> __device__ __forceinline__ float query_half(uint4 (&q)[N])
{
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t pair[4] = {q[i].x, q[i].y, q[i].z, q[i].w};
#pragma unroll
        for (int j = 0; j < 4; j++)
            largest = fmaxf(largest, fmaxf(fabsf(bf16_low(pair[j])), fabsf(bf16_high(pair[j]))));
    }
#pragma unroll
    for (int d = 1; d < LANES; d *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, d));
    /* to between 2^14 and 2^15; the bounds keep both factors normal where a query is all but zero, or huge */
    const int exponent = min(max((int)(__float_as_uint(largest) >> 23), 27), 253) - 127;
    const float by = __uint_as_float((uint32_t)(127 + 14 - exponent) << 23);
#pragma unroll
    for (int i = 0; i < N; i++)
        q[i] = make_uint4(float_half_pair(bf16_low(q[i].x) * by, bf16_high(q[i].x) * by),
                          float_half_pair(bf16_low(q[i].y) * by, bf16_high(q[i].y) * by),
                          float_half_pair(bf16_low(q[i].z) * by, bf16_high(q[i].z) * by),
                          float_half_pair(bf16_low(q[i].w) * by, bf16_high(q[i].w) * by));
    return __uint_as_float((uint32_t)(127 - 14 + exponent) << 23);
}
