/* Launches: from the host, how a kernel is put on a stream; in a kernel, when it begins and the next may. And
 * CUDA itself, or the emulator in its place. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__

/* Not cuda_bf16.h, cuda_fp16.h and cuda_fp8.h, which double what the compiler has to read: gpu_number.h has
 * the few conversions. */
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

/* What is read before it must not be the output of the kernel in front: weights, which nothing but pack,
 * randomize and copies write, and those never let the next kernel begin early; what a step begins with; or
 * what a kernel wrote that had ended before the one in front could let this one in. */
__device__ __forceinline__ void gpu_wait_before()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
/* The kernel behind this one may be scheduled from now on. */
__device__ __forceinline__ void gpu_let_next()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/* __syncthreads() that a block's warps may reach at different places of the code. */
__device__ __forceinline__ void gpu_sync_anywhere()
{
    asm volatile("barrier.sync 0;" ::: "memory");
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
static inline void gpu_let_next()
{
}
static inline void gpu_sync_anywhere()
{
    __syncthreads();
}
template <typename K> static inline cudaError_t gpu_load_kernel(K)
{
    return cudaSuccess;
}
static inline cudaError_t gpu_malloc_shared(void **p, size_t bytes)
{
    return simt_malloc_shared(p, bytes);
}

#endif

/* The same two of a kernel for n_row rows. Where there is one, the next kernel may be scheduled before this
 * one waits: its code and weights are on their way while others still run. With many rows most kernels would
 * take the SMs' room from them; those that gain do it themselves for any number of rows. */
__device__ __forceinline__ void gpu_wait_few(int n_row)
{
    if (n_row == 1)
        gpu_let_next();
    gpu_wait_before();
    gpu_let_next();
}

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
