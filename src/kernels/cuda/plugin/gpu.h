/* What the operators' sources need of CUDA, for nvcc and for the emulator (emulate/simt.h) alike: launches,
 * shared memory, conversions, a few instructions, sums over warps and blocks. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <utility>

#define GPU_IS_EMULATED 0

/* This thread's launches are only checked, up to the launch itself (work.cu). */
extern thread_local bool gpu_only_check;
/* This thread's next launch follows a wait for another stream (lanes.cu): it is not scheduled early. */
extern thread_local bool gpu_after_wait;

#define SHARED(type, name)    \
    using name##_type = type; \
    __shared__ name##_type name
#define DYNAMIC_SHARED(name)                                     \
    extern __shared__ __align__(128) uint8_t gpu_dynamic_area[]; \
    uint8_t *name = gpu_dynamic_area

template <typename... P, typename... A>
static inline cudaError_t gpu_launch_as(cudaLaunchAttribute *attribute, unsigned n, void (*kernel)(P...),
                                        dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                                        A &&...args)
{
    if (gpu_only_check)
        return cudaSuccess;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attribute;
    config.numAttrs = n;
    return cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...);
}

/* A kernel may be scheduled while the one before it on the stream still runs: each begins with
 * gpu_wait_before(), which returns when that one has ended and what it wrote is visible. */
static inline cudaLaunchAttribute gpu_early()
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = gpu_after_wait ? 0 : 1;
    gpu_after_wait = false;
    return early;
}

template <typename... P, typename... A>
static inline cudaError_t gpu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                     cudaStream_t stream, A &&...args)
{
    cudaLaunchAttribute early = gpu_early();
    return gpu_launch_as(&early, 1, kernel, grid, block, shared, stream, std::forward<A>(args)...);
}

/* All blocks at once, early or not: they may wait for each other, and for no other launch. */
template <typename... P, typename... A>
static inline cudaError_t gpu_launch_together(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                              cudaStream_t stream, A &&...args)
{
    cudaLaunchAttribute both[2] = {};
    both[0].id = cudaLaunchAttributeCooperative;
    both[0].val.cooperative = 1;
    both[1] = gpu_early();
    return gpu_launch_as(both, 2, kernel, grid, block, shared, stream, std::forward<A>(args)...);
}

/* Blocks that may wait for each other and for those of other GPUs. The caller sees to it that they are few
 * enough to run all at once. */
template <typename... P, typename... A>
static inline cudaError_t gpu_launch_resident(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                              cudaStream_t stream, A &&...args)
{
    return gpu_launch(kernel, grid, block, shared, stream, std::forward<A>(args)...);
}

/* Now rather than at the first launch, which may have to wait until the GPU is idle. */
template <typename K> static inline cudaError_t gpu_load_kernel(K kernel)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel);
}

/* Memory that other processes can open. */
static inline cudaError_t gpu_malloc_shared(void **p, size_t bytes)
{
    return cudaMalloc(p, bytes);
}

/* Before a launch with more than 48 KiB of dynamic shared memory. All that a block can have, whatever this
 * launch needs: the limit is the kernel's, and another thread may be about to launch it with more. */
template <typename K> static inline cudaError_t gpu_allow_shared(K kernel, size_t bytes)
{
    int device = 0, most = 0;
    cudaFuncAttributes has = {};
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (e == cudaSuccess)
        e = cudaFuncGetAttributes(&has, kernel);
    most -= (int)has.sharedSizeBytes;
    if (e != cudaSuccess || bytes > (size_t)most)
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    return has.maxDynamicSharedSizeBytes >= most
               ? cudaSuccess
               : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

/* What a library puts on the stream, by work() -> cudaError_t: now, also while a graph is recorded. */
template <typename W> static inline cudaError_t gpu_library(cudaStream_t, W work)
{
    return work();
}

/* What is read before it must not be another kernel's output: weights, which nothing but pack, randomize and
 * copies write, and those never let the next kernel begin early. */
__device__ __forceinline__ void gpu_wait_before()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/* Into the L2, some time. */
__device__ __forceinline__ void gpu_prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
/* The kernel behind this one may be scheduled from now on. */
__device__ __forceinline__ void gpu_let_next()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
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

#else

#include "kernels/cuda/emulate/simt.h"
#include "kernels/cuda/emulate/simt_stream.h"

#define GPU_IS_EMULATED 1

/* A library cannot record: its work is kept, and done when the graph is. */
template <typename W> static inline cudaError_t gpu_library(cudaStream_t stream, W work)
{
    return simt::stream_do(stream, work);
}

static inline void gpu_wait_before()
{
}
static inline void gpu_prefetch(const void *)
{
}
static inline void gpu_let_next()
{
}
template <typename K> static inline cudaError_t gpu_load_kernel(K)
{
    return cudaSuccess;
}
static inline cudaError_t gpu_malloc_shared(void **p, size_t bytes)
{
    return simt_malloc_shared(p, bytes);
}
float4 gpu_load_system(const float4 *p);
void gpu_store_system(float4 *p, float4 v);
uint32_t gpu_load_system(const uint32_t *p);
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

#endif

/* Blocks that may wait for each other, one an SM. Where nothing else of the GPU's work waits for anything, no
 * launch but this one's predecessor, which ends, can hold an SM for long: then a cooperative launch, which
 * begins a microsecond later, is not needed. */
template <typename... P, typename... A>
static inline cudaError_t gpu_launch_meeting(bool alone, void (*kernel)(P...), dim3 grid, dim3 block,
                                             size_t shared, cudaStream_t stream, A &&...args)
{
    return alone ? gpu_launch_resident(kernel, grid, block, shared, stream, std::forward<A>(args)...)
                 : gpu_launch_together(kernel, grid, block, shared, stream, std::forward<A>(args)...);
}

/* NULL, or why the call failed. */
static inline const char *gpu_why(cudaError_t e)
{
    return e == cudaSuccess ? nullptr : cudaGetErrorString(e);
}

/* ---- numbers --------------------------------------------------------------------------------------- */

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
    return __bfloat16_as_ushort(__float2bfloat16_rn(f));
}
__device__ __forceinline__ float half_float(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}
__device__ __forceinline__ uint8_t float_e4m3(float f)
{
    return __nv_cvt_float_to_fp8(f, __NV_SATFINITE, __NV_E4M3);
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

/* ---- warps and blocks ------------------------------------------------------------------------------ */

#define ALL_LANES 0xffffffffu

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
static inline uint32_t warp_largest(uint32_t v)
{
    return simt::fold(v, [](uint32_t a, uint32_t b) { return max(a, b); });
}
static inline uint32_t warp_smallest(uint32_t v)
{
    return simt::fold(v, [](uint32_t a, uint32_t b) { return min(a, b); });
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

/* ---- tensor cores ---------------------------------------------------------------------------------- */

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
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
uint32_t transpose_8x8(uint32_t pair);
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
