/* What lanes do together: sums over a warp or a block, products of small matrices. */
#pragma once

#include "kernels/cuda/plugin/gpu_number.h"

#define ALL_LANES 0xffffffffu

/* A number that all lanes have, said so that the compiler knows it: what it derives from that is worked out
 * once a warp, descriptors of wgmma for instance. */
__device__ __forceinline__ int warp_alike(int v)
{
    return __shfl_sync(ALL_LANES, v, 0);
}

/* The same bits in every lane: a tree over the lanes' numbers. The emulator's lanes meet once for it. */
#ifdef __CUDACC__
__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        v += __shfl_xor_sync(ALL_LANES, v, d);
    return v;
}
__device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
        v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, d));
    return v;
}
__device__ __forceinline__ uint32_t warp_total(uint32_t v)
{
    return __reduce_add_sync(ALL_LANES, v);
}
__device__ __forceinline__ uint32_t warp_largest(uint32_t v)
{
    return __reduce_max_sync(ALL_LANES, v);
}
__device__ __forceinline__ uint32_t warp_smallest(uint32_t v)
{
    return __reduce_min_sync(ALL_LANES, v);
}
#else
static inline float warp_sum(float v)
{
    return simt::fold(v, [](float a, float b) { return a + b; });
}
static inline float warp_max(float v)
{
    return simt::fold(v, [](float a, float b) { return fmaxf(a, b); });
}
static inline uint32_t warp_total(uint32_t v)
{
    return simt::fold(v, [](uint32_t a, uint32_t b) { return a + b; });
}
static inline uint32_t warp_largest(uint32_t v)
{
    return simt::fold(v, [](uint32_t a, uint32_t b) { return max(a, b); });
}
static inline uint32_t warp_smallest(uint32_t v)
{
    return simt::fold(v, [](uint32_t a, uint32_t b) { return min(a, b); });
}
#endif

/* n, and one more where key > than: a carry, which takes two instructions. */
#ifdef __CUDACC__
__device__ __forceinline__ uint32_t count_above(uint32_t n, uint32_t key, uint32_t than)
{
    asm("{\n.reg .u32 unread;\nadd.cc.u32 unread, %1, %2;\naddc.u32 %0, %0, 0;\n}"
        : "+r"(n)
        : "r"(key), "r"(~than));
    return n;
}
#else
static inline uint32_t count_above(uint32_t n, uint32_t key, uint32_t than)
{
    return n + (key > than);
}
#endif

/* Over a block of whole warps; `room` is 32 floats of shared memory that nobody else uses. All threads. */
__device__ __forceinline__ float block_sum(float v, float *room)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = blockDim.x / 32;
    v = warp_sum(v);
    if (lane == 0)
        room[warp] = v;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum += room[i];
    return sum;
}

/* c[16][8] += a[16][16] * b[16][8] over a warp, bf16 into fp32: with g = lane / 4 and q = lane % 4, c is
 * (g, 2q) (g, 2q + 1) (g + 8, 2q) (g + 8, 2q + 1); a is pairs (g, 2q) (g + 8, 2q) (g, 2q + 8) (g + 8, 2q +
 * 8); b pairs (2q, g) (2q + 8, g). */
#ifdef __CUDACC__
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* A matrix of 8 x 8 bf16, a row in four lanes, transposed. */
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t pair)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}
#else
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
uint32_t transpose_8x8(uint32_t pair);
#endif
