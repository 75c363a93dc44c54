/* Numbers of fewer bits: bf16, half precision, e4m3, e2m1. */
#pragma once

#include "kernels/cuda/plugin/gpu_launch.h"

__device__ __forceinline__ float bf16_float(uint16_t b)
{
    return __uint_as_float((uint32_t)b << 16);
}
__device__ __forceinline__ float bf16_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

#ifdef __CUDACC__

__device__ __forceinline__ uint16_t float_bf16(float f)
{
    uint16_t b;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(f));
    return b;
}
__device__ __forceinline__ float half_float(uint16_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
/* The nearest; 448 for what is larger, with its sign. */
__device__ __forceinline__ uint8_t float_e4m3(float f)
{
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(f));
    return (uint8_t)pair;
}
/* Two bf16 of low and high. */
__device__ __forceinline__ uint32_t float_bf16_pair(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ uint32_t bf16_pair_times(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ float gpu_exp2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

#else

uint16_t float_bf16(float f);
float half_float(uint16_t h);
uint8_t float_e4m3(float f);
static inline uint32_t float_bf16_pair(float low, float high)
{
    return float_bf16(low) | (uint32_t)float_bf16(high) << 16;
}
static inline uint32_t bf16_pair_times(uint32_t a, uint32_t b)
{
    return float_bf16_pair(bf16_low(a) * bf16_low(b), bf16_high(a) * bf16_high(b));
}
static inline float gpu_exp2(float x)
{
    return exp2f(x);
}

#endif

/* Every e4m3 number is a bf16 number: sign, and the seven low bits four places up, are value * 2^-120. */
#define E4M3_BACK 0x7b807b80u                                             /* bf16 2^120, twice */
__device__ __forceinline__ uint32_t e4m3_bf16_pair(uint32_t low_and_high) /* bytes 0 and 2 */
{
    return bf16_pair_times((low_and_high & 0x00800080u) << 8 | (low_and_high & 0x007f007fu) << 4, E4M3_BACK);
}
/* Four e4m3 in their order to two pairs of bf16. */
__device__ __forceinline__ void e4m3_bf16(uint32_t four, uint32_t *first, uint32_t *second)
{
    *first = e4m3_bf16_pair((four & 0xffu) | (four & 0xff00u) << 8);
    *second = e4m3_bf16_pair((four >> 16 & 0xffu) | (four >> 8 & 0xff0000u));
}
/* The number times 2^120 is exact in fp32 too. 0x7f and 0xff come out as 480. */
__device__ __forceinline__ float e4m3_float(uint8_t b)
{
    return __uint_as_float((uint32_t)(b & 0x80) << 24 | (uint32_t)(b & 0x7f) << 20) * 0x1p120f;
}
__device__ __forceinline__ float e2m1_float(uint32_t code)
{
    const uint32_t m = code & 7u; /* 0 0.5 1 1.5 2 3 4 6 */
    const uint32_t bits = m < 2 ? m * 0x3f000000u : 0x3f000000u + (m << 22);
    return __uint_as_float(bits | (code & 8u) << 28);
}
