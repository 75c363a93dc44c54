/* Global memory that others write and read meanwhile, and copies to shared memory that go on by themselves.
 */
#pragma once

#include "kernels/cuda/plugin/gpu_launch.h"

#ifdef __CUDACC__

/* Into the L2, some time. */
__device__ __forceinline__ void gpu_prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
/* So many bytes, both multiples of 16. */
__device__ __forceinline__ void gpu_prefetch_bulk(const void *p, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
}
/* What other GPUs and the host write and read at the same time: each word of its own is whole, in no order.
 */
__device__ __forceinline__ float4 gpu_load_system(const float4 *p)
{
    float4 v;
    asm volatile("ld.relaxed.sys.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ void gpu_store_system(float4 *p, float4 v)
{
    asm volatile("st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y),
                 "f"(v.z), "f"(v.w)
                 : "memory");
}
__device__ __forceinline__ uint32_t gpu_load_system(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
/* What the writer of the word, a copy engine it may be, wrote before, too. */
__device__ __forceinline__ uint32_t gpu_acquire_system(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void gpu_store_system(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ uint64_t gpu_now_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}
/* Between two looks at what another GPU is to write. */
__device__ __forceinline__ void gpu_wait_peer()
{
}

/* What other blocks of the launch write and read at the same time: each word of its own is whole, in no
 * order. */
__device__ __forceinline__ uint4 gpu_load_grid(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ uint32_t gpu_load_grid(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
/* What the block wrote before its last barrier is there for who sees the sum by gpu_load_acquire. */
__device__ __forceinline__ uint32_t gpu_add_release(uint32_t *p, uint32_t v)
{
    uint32_t old;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}
/* What the writer of the word wrote before, too. */
__device__ __forceinline__ uint32_t gpu_load_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void gpu_store_grid(uint32_t *p, uint32_t v)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* Between two looks at what another block is to write. */
__device__ __forceinline__ void gpu_wait_block()
{
}

/* 16 bytes to shared memory, later: copies_end() ends a group of them, copies_wait<N>() waits until at most N
 * groups of this thread are under way. */
__device__ __forceinline__ void copy_16(void *shared, const void *from)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
        "l"(from)
        : "memory");
}
__device__ __forceinline__ void copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

static inline void gpu_prefetch(const void *)
{
}
static inline void gpu_prefetch_bulk(const void *, uint32_t)
{
}
float4 gpu_load_system(const float4 *p);
void gpu_store_system(float4 *p, float4 v);
uint32_t gpu_load_system(const uint32_t *p);
uint32_t gpu_acquire_system(const uint32_t *p);
void gpu_store_system(uint32_t *p, uint32_t v);
uint64_t gpu_now_ns();
static inline void gpu_wait_peer()
{
    simt::spin_outside();
}
static inline uint4 gpu_load_grid(const uint4 *p)
{
    return *p;
}
static inline uint32_t gpu_load_grid(const uint32_t *p)
{
    return *p;
}
static inline uint32_t gpu_add_release(uint32_t *p, uint32_t v)
{
    const uint32_t old = *p;
    *p = old + v;
    return old;
}
static inline uint32_t gpu_load_acquire(const uint32_t *p)
{
    return *p;
}
static inline void gpu_store_grid(uint32_t *p, uint32_t v)
{
    *p = v;
}
static inline void gpu_wait_block()
{
    simt::spin();
}
static inline void copy_16(void *shared, const void *from)
{
    memcpy(shared, from, 16);
}
static inline void copies_end()
{
}
template <int N> static inline void copies_wait()
{
}

#endif
