/* Clusters: blocks in a row along x that run at the same time, and see each other's shared memory. */
#pragma once

#include "kernels/cuda/plugin/bell.cuh"

#ifdef __CUDACC__

/* In clusters of n, which gridDim.x is a multiple of. */
template <typename... P, typename... A>
static inline cudaError_t gpu_launch_clusters(unsigned n, void (*kernel)(P...), dim3 grid, dim3 block,
                                              size_t shared, cudaStream_t stream, A &&...args)
{
    cudaLaunchAttribute both[2] = {};
    both[0].id = cudaLaunchAttributeClusterDimension;
    both[0].val.clusterDim.x = n;
    both[0].val.clusterDim.y = both[0].val.clusterDim.z = 1;
    both[1] = gpu_early();
    return gpu_launch_as(both, 2, kernel, grid, block, shared, stream, std::forward<A>(args)...);
}

/* Before a launch in clusters of more than eight. */
template <typename K> static inline cudaError_t gpu_allow_large_clusters(K kernel)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

/* How many clusters of n such blocks run at once, on a GPU of n_sm; 0: none. */
template <typename... P>
static inline int gpu_clusters(unsigned n, void (*kernel)(P...), dim3 block, size_t shared, int)
{
    int at_once = 0;
    cudaLaunchAttribute one = {};
    one.id = cudaLaunchAttributeClusterDimension;
    one.val.clusterDim.x = n;
    one.val.clusterDim.y = one.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = n;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.attrs = &one;
    config.numAttrs = 1;
    if (gpu_allow_shared(kernel, shared) == cudaSuccess &&
        cudaOccupancyMaxActiveClusters(&at_once, kernel, &config) == cudaSuccess)
        return at_once;
    cudaGetLastError();
    return 0;
}

/* All threads of the cluster; what they wrote before, anywhere, is there. Before a block's memory is looked
 * at for the first time, too: it may not have begun. */
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
/* The same, but that what was written before need not be there: a place in shared memory may be used again.
 */
__device__ __forceinline__ void cluster_meet()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
/* The same in two halves, for what there is to do meanwhile. */
__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* Numbers go to where `to` is in block `rank`'s shared memory, later; its bell `bell` counts their 16 bytes.
 * The block expects all of them before the cluster meets, and has them after cluster_wait_sent. */
__device__ __forceinline__ void cluster_send(uint32_t to, int rank, float4 v, uint32_t bell)
{
    asm volatile(
        "{\n.reg .b32 there, rung;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\nmapa.shared::cluster.u32 rung, %2, %1;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, "
        "[rung];\n}" ::"r"(to),
        "r"(rank), "r"(bell), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
        : "memory");
}
__device__ __forceinline__ void cluster_wait_sent(uint32_t bell)
{
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n@!done bra again;\n}" ::"r"(
            bell)
        : "memory");
}
/* What block `rank` of the cluster has where this one has `mine`, which lies in shared memory. */
template <typename T> __device__ __forceinline__ T *cluster_at(T *mine, int rank)
{
    uint64_t at;
    asm("mapa.u64 %0, %1, %2;" : "=l"(at) : "l"(mine), "r"(rank));
    return (T *)at;
}

#else

template <typename... P, typename... A>
static inline cudaError_t gpu_launch_clusters(unsigned n, void (*kernel)(P...), dim3 grid, dim3 block,
                                              size_t shared, cudaStream_t stream, A &&...args)
{
    if (gpu_only_check)
        return cudaSuccess;
    return simt::launch(__PRETTY_FUNCTION__, grid, block, shared, n, stream,
                        simt::bind(kernel, std::forward<A>(args)...));
}
template <typename K> static inline cudaError_t gpu_allow_large_clusters(K)
{
    return cudaSuccess;
}
template <typename... P> static inline int gpu_clusters(unsigned n, void (*)(P...), dim3, size_t, int n_sm)
{
    return n_sm / (int)n;
}
static inline void cluster_sync()
{
    simt::cluster_barrier();
}
static inline void cluster_meet()
{
    simt::cluster_barrier();
}
static inline void cluster_arrive()
{
}
static inline void cluster_wait()
{
    simt::cluster_barrier();
}
static inline void cluster_send(uint32_t to, int rank, float4 v, uint32_t)
{
    std::memcpy(simt::cluster_shared(shared_pointer(to, sizeof(v)), (unsigned)rank), &v, sizeof(v));
}
static inline void cluster_wait_sent(uint32_t)
{
    simt::cluster_barrier();
}
template <typename T> static inline T *cluster_at(T *mine, int rank)
{
    return (T *)simt::cluster_shared(mine, (unsigned)rank);
}

#endif
