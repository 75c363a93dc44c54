/* Hopper's barriers that count arrivals, and bulk copies that they count, with what else several kernels of
 * its own structure (warps that copy, warps that multiply) need: for nvcc and for the emulator
 * (emulate/bell.cc) alike. Shared memory goes by addresses of 32 bits. */
#pragma once

#include "kernels/cuda/plugin/gpu.h"

#ifdef __CUDACC__
__device__ __forceinline__ uint32_t shared_offset(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void bell_make(uint32_t bell, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bell), "r"(arrivals) : "memory");
}
/* After the last bell_make, before the barrier that shows them to the others. */
__device__ __forceinline__ void bells_made()
{
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bell_ring(uint32_t bell)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bell) : "memory");
}
/* Several arrivals at once. */
__device__ __forceinline__ void bell_ring_for(uint32_t bell, uint32_t n)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bell), "r"(n) : "memory");
}
/* An arrival, and the phase lasts until so many bytes of bulk copies are there. */
__device__ __forceinline__ void bell_expect(uint32_t bell, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bell), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bell_wait(uint32_t bell, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(bell),
                 "r"(parity)
                 : "memory");
}
/* Whether bell_wait would return at once. */
__device__ __forceinline__ bool bell_has_rung(uint32_t bell, uint32_t parity)
{
    uint32_t yes;
    asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n}"
                 : "=r"(yes)
                 : "r"(bell), "r"(parity)
                 : "memory");
    return yes;
}

/* A run of 16-byte aligned bytes to shared memory, later, in the asynchronous proxy. */
__device__ __forceinline__ void copy_in_run(uint32_t to, const void *from, uint32_t bytes, uint32_t bell)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bell)
        : "memory");
}
/* The same of what is not read again soon: it leaves the L2 before other things do. */
__device__ __forceinline__ void copy_in_run_once(uint32_t to, const void *from, uint32_t bytes, uint32_t bell)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bell), "l"(policy)
                 : "memory");
}
/* What this thread wrote to shared memory, or saw written, copies of its own that have ended included, is
 * there for wgmma and bulk copies. */
__device__ __forceinline__ void shared_for_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Registers of this warpgroup's threads from now on. */
template <int N> __device__ __forceinline__ void registers_fewer()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void registers_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
/* Volatile: what follows from it is not kept in registers over a loop. */
__device__ __forceinline__ int thread_anew()
{
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
/* Registers that products by wgmma read and write are as they should be. */
__device__ __forceinline__ void products_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* Not before here, says this to the compiler. */
template <int N> __device__ __forceinline__ void products_there(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
#else
uint32_t shared_offset(const void *p);
uint8_t *shared_pointer(uint32_t at, size_t bytes);
void bell_make(uint32_t bell, uint32_t arrivals);
void bell_ring(uint32_t bell);
void bell_expect(uint32_t bell, uint32_t bytes);
void bell_copied(uint32_t bell, uint32_t bytes);
void bell_wait(uint32_t bell, uint32_t parity);
bool bell_has_rung(uint32_t bell, uint32_t parity);

static inline void bells_made()
{
}
static inline void bell_ring_for(uint32_t bell, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        bell_ring(bell);
}
static inline void copy_in_run(uint32_t to, const void *from, uint32_t bytes, uint32_t bell)
{
    std::memcpy(shared_pointer(to, bytes), from, bytes);
    bell_copied(bell, bytes);
}
static inline void copy_in_run_once(uint32_t to, const void *from, uint32_t bytes, uint32_t bell)
{
    copy_in_run(to, from, bytes, bell);
}
static inline void shared_for_async()
{
}
template <int N> static inline void registers_fewer()
{
}
template <int N> static inline void registers_more()
{
}
static inline int thread_anew()
{
    return (int)threadIdx.x;
}
static inline void products_fence()
{
}
template <int N> static inline void products_there(float (&)[N])
{
}
#endif
