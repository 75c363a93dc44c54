/* CUDA's language on a CPU, as far as the plug-in's operators use it: the same sources, compiled as C++, run
 * where there is no GPU, so that tests, sanitizers and debuggers reach them.
 *
 * A block's threads are fibers of one system thread, switched only where they wait: at a barrier, at a warp's
 * exchange, in a spin. Which runs first alternates from launch to launch, so that what depends on the order
 * shows as two different results. Shared memory is poisoned before each block; a barrier that some threads do
 * not reach and an exchange that some lanes do not reach end the launch with an error that names them.
 *
 * Blocks run one after another; those of gpu_launch_together and gpu_launch_resident run side by side and may
 * wait for each other. A warp's exchanges take all 32 lanes. A launch runs on the system thread that makes
 * it: those of several threads, and of several processes, run at once, as several GPUs do, and may wait for
 * each other where they spin with gpu_wait_peer. What they share must be read and written with the functions
 * for that (gpu_load_system and its like): all else is atomic only within a launch. */
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "kernels/cuda/emulate/simt_runtime.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

/* ---- types ----------------------------------------------------------------------------------------- */

struct alignas(8) int2 {
    int x, y;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) ulonglong2 {
    unsigned long long x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline int2 make_int2(int x, int y)
{
    return {x, y};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

/* ---- where a thread is ----------------------------------------------------------------------------- */

namespace simt
{

/* What the running fiber sees of itself. */
struct place {
    dim3 thread, block, block_dim, grid_dim;
    unsigned lane;
};
extern __thread const place *here __attribute__((tls_model("initial-exec")));

enum exchange_kind { SHUFFLE, BALLOT, MATCH, SYNC };

void barrier();
int barrier_count(int is); /* of how many threads `is` is not 0 */
/* Gives `bytes` to the warp's other lanes and returns what all of them gave, [32][EXCHANGE_BYTES], until this
 * lane's next exchange. */
constexpr size_t EXCHANGE_BYTES = 32;
const uint8_t (*exchange(exchange_kind kind, const void *value, size_t bytes))[EXCHANGE_BYTES];
/* A spinning thread lets the others run. */
void spin();
/* The same for one that spins for another launch. */
void spin_outside();
uint8_t *dynamic_shared();
/* One block's variable, the same for all its threads; `key` is an address of its own. */
void *shared_variable(const void *key, size_t bytes, size_t alignment);

/* What another block of the cluster has where this one has `mine`; `rank`: of the cluster. */
void *cluster_shared(const void *mine, unsigned rank);
/* All threads of the cluster. */
void cluster_barrier();

/* `cluster` blocks in a row run at the same time, 0: all of them. */
cudaError_t launch(const char *name, dim3 grid, dim3 block, size_t shared, unsigned cluster,
                   cudaStream_t stream, std::function<void()> kernel);

template <typename T> static inline T lane_value(unsigned mask, T v, unsigned from)
{
    T out;
    static_assert(sizeof(T) <= EXCHANGE_BYTES, "more than an exchange carries");
    (void)mask;
    const uint8_t(*all)[EXCHANGE_BYTES] = exchange(SHUFFLE, &v, sizeof(T));
    std::memcpy(&out, all[from & 31], sizeof(T));
    return out;
}

/* What log2(32) shuffles with the lane 16, 8, 4, 2 and 1 away make of v and a function whose arguments can be
 * swapped. */
template <typename T, typename F> static inline T fold(T v, F both)
{
    T of[32];
    const uint8_t(*all)[EXCHANGE_BYTES] = exchange(SHUFFLE, &v, sizeof(T));
    for (unsigned i = 0; i < 32; i++)
        std::memcpy(&of[i], all[i], sizeof(T));
    for (unsigned n = 16; n > 0; n /= 2)
        for (unsigned i = 0; i < n; i++)
            of[i] = both(of[i], of[i + n]);
    return of[0];
}

} // namespace simt

#define threadIdx (simt::here->thread)
#define blockIdx  (simt::here->block)
#define blockDim  (simt::here->block_dim)
#define gridDim   (simt::here->grid_dim)

/* `SHARED(float[32], sums);` is a variable of the block, DYNAMIC_SHARED(p) a pointer to what the launch asks
 * for. */
#define SHARED(type, name)            \
    static const char name##_key = 0; \
    using name##_type = type;         \
    name##_type &name =               \
        *(name##_type *)simt::shared_variable(&name##_key, sizeof(name##_type), alignof(name##_type))
#define DYNAMIC_SHARED(name) uint8_t *name = simt::dynamic_shared()

/* As plugin/gpu.h has it. */
extern thread_local bool gpu_only_check;

/* ---- launches -------------------------------------------------------------------------------------- */

namespace simt
{
template <typename... P, typename... A>
static inline std::function<void()> bind(void (*kernel)(P...), A &&...args)
{
    std::tuple<std::decay_t<P>...> values{static_cast<P>(args)...};
    return [kernel, values] { std::apply(kernel, values); };
}
} // namespace simt

template <typename... P, typename... A>
static inline cudaError_t gpu_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                     cudaStream_t stream, A &&...args)
{
    if (gpu_only_check)
        return cudaSuccess;
    return simt::launch(__PRETTY_FUNCTION__, grid, block, shared, 1, stream,
                        simt::bind(kernel, std::forward<A>(args)...));
}

template <typename... P, typename... A>
static inline cudaError_t gpu_launch_together(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                              cudaStream_t stream, A &&...args)
{
    if (gpu_only_check)
        return cudaSuccess;
    return simt::launch(__PRETTY_FUNCTION__, grid, block, shared, 0, stream,
                        simt::bind(kernel, std::forward<A>(args)...));
}

template <typename... P, typename... A>
static inline cudaError_t gpu_launch_resident(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                              cudaStream_t stream, A &&...args)
{
    return gpu_launch_together(kernel, grid, block, shared, stream, std::forward<A>(args)...);
}

template <typename K> static inline cudaError_t gpu_allow_shared(K, size_t)
{
    return cudaSuccess;
}

#define __expf expf /* the C library has that name */

/* ---- built-in functions ---------------------------------------------------------------------------- */

static inline void __syncthreads()
{
    simt::barrier();
}
static inline int __syncthreads_count(int is)
{
    return simt::barrier_count(is);
}
static inline void __syncwarp(unsigned = ~0u)
{
    simt::exchange(simt::SYNC, nullptr, 0);
}
static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}
static inline void __threadfence_system()
{
}
static inline void __nanosleep(unsigned)
{
    simt::spin();
}

template <typename T> static inline T __shfl_sync(unsigned mask, T v, int from, int width = 32)
{
    const unsigned lane = simt::here->lane, w = (unsigned)width;
    return simt::lane_value(mask, v, (lane & ~(w - 1)) | ((unsigned)from & (w - 1)));
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int bits)
{
    return simt::lane_value(mask, v, simt::here->lane ^ (unsigned)bits);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned by)
{
    const unsigned lane = simt::here->lane;
    return simt::lane_value(mask, v, lane + by > 31 ? lane : lane + by);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned by)
{
    const unsigned lane = simt::here->lane;
    return simt::lane_value(mask, v, lane < by ? lane : lane - by);
}
static inline unsigned __ballot_sync(unsigned, int yes)
{
    const uint8_t(*all)[simt::EXCHANGE_BYTES] = simt::exchange(simt::BALLOT, &yes, sizeof(yes));
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; i++) {
        int one;
        std::memcpy(&one, all[i], sizeof(one));
        bits |= one ? 1u << i : 0u;
    }
    return bits;
}
static inline int __any_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) != 0;
}
static inline int __all_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) == ~0u;
}
template <typename T> static inline unsigned __match_any_sync(unsigned, T v)
{
    const uint8_t(*all)[simt::EXCHANGE_BYTES] = simt::exchange(simt::MATCH, &v, sizeof(v));
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; i++)
        bits |= std::memcmp(all[i], &v, sizeof(v)) == 0 ? 1u << i : 0u;
    return bits;
}

/* One fiber runs at a time: plain arithmetic is atomic. */
template <typename T, typename V> static inline T atomicAdd(T *p, V v)
{
    const T old = *p;
    *p = (T)(old + v);
    return old;
}
template <typename T, typename V> static inline T atomicOr(T *p, V v)
{
    const T old = *p;
    *p = (T)(old | v);
    return old;
}
template <typename T, typename V> static inline T atomicMax(T *p, V v)
{
    const T old = *p;
    *p = std::max(old, (T)v);
    return old;
}
template <typename T, typename V> static inline T atomicExch(T *p, V v)
{
    const T old = *p;
    *p = (T)v;
    return old;
}

static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}
static inline unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}
static inline unsigned max(unsigned a, unsigned b)
{
    return a > b ? a : b;
}
static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}

static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by)
{
    return by & 31 ? high << (by & 31) | low >> (32 - (by & 31)) : high;
}
/* Each nibble of `which` names a byte of b a; without signs. */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned which)
{
    const uint64_t both = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (unsigned i = 0; i < 4; i++)
        out |= (unsigned)(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}

static inline unsigned __float_as_uint(float f)
{
    unsigned u;
    std::memcpy(&u, &f, 4);
    return u;
}
static inline float __uint_as_float(unsigned u)
{
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
template <typename T> static inline void __stcg(T *p, T v)
{
    *p = v;
}
