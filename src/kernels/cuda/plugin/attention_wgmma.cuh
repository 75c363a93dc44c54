/* What attention of many rows needs of Hopper besides bell.cuh: products of a warpgroup, and copies into
 * shared memory, for nvcc and for the emulator (emulate/wgmma.cc) alike.
 *
 * A matrix in shared memory lies in panels of 64 elements' width: rows of 128 bytes, of which the 16-byte
 * chunk c is at c ^ (row % 8), the panel at a multiple of 1024. Its descriptor names one k-step of 16 of it:
 * panel_step. */
#pragma once

#include "kernels/cuda/plugin/attention_number.cuh"
#include "kernels/cuda/plugin/bell.cuh"

#ifdef __CUDACC__
#include "kernels/cuda/plugin/prefill_wgmma.cuh"

template <int BYTES> __device__ __forceinline__ void shared_copy(uint32_t to, const void *from)
{
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}
__device__ __forceinline__ void shared_put(uint32_t to, uint4 v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ void shared_put(uint32_t to, uint2 v)
{
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void shared_put(uint32_t to, float v)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}
__device__ __forceinline__ float shared_float(uint32_t at)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint4 shared_vector(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
/* The products begin; at most N groups of them are left to end. */
__device__ __forceinline__ void products_begin()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> __device__ __forceinline__ void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* D[64][N] = or += A[64][16] * B[N][16]^T into fp32, of bf16 or f16. A lane's 4i to 4i + 3 of d are what
 * mma_bf16 has of columns 8i to 8i + 7, for the 16 rows of its warp; so is `a`. */
template <int TYPE, int N> struct product;
// clang-format off
#define PRODUCT(TYPE, NUMBER, N, D, A0, A1, A2, A3, B4, KEEP4, A, B, KEEP)                                       \
    template <> struct product<TYPE, N> {                                                                       \
        static __device__ __forceinline__ void run(float (&d)[D], uint64_t a, uint64_t b, int keep)              \
        {                                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #KEEP ", 0;\n"                                    \
                "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NUMBER "." NUMBER " {" WGMMA_TEXT_##D "}, "    \
                "%" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n"                                                         \
                : WGMMA_SUMS_##D : "l"(a), "l"(b), "r"(keep));                                                  \
        }                                                                                                       \
        static __device__ __forceinline__ void run(float (&d)[D], const uint32_t *a, uint64_t b, int keep)      \
        {                                                                                                       \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #KEEP4 ", 0;\n"                                   \
                "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NUMBER "." NUMBER " {" WGMMA_TEXT_##D "}, "    \
                "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B4 ", p, 1, 1, 0;\n}\n"                          \
                : WGMMA_SUMS_##D : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));              \
        }                                                                                                       \
    };
PRODUCT(CUDA_KV_BF16, "bf16", 64, 32, 32, 33, 34, 35, 36, 37, 32, 33, 34)
PRODUCT(CUDA_KV_BF16, "bf16", 128, 64, 64, 65, 66, 67, 68, 69, 64, 65, 66)
PRODUCT(CUDA_KV_FP8, "f16", 64, 32, 32, 33, 34, 35, 36, 37, 32, 33, 34)
PRODUCT(CUDA_KV_FP8, "f16", 128, 64, 64, 65, 66, 67, 68, 69, 64, 65, 66)
#undef PRODUCT
// clang-format on
#else
void wgmma_shared(float *d, int n, bool half, uint64_t a, uint64_t b, int keep);
void wgmma_registers(float *d, int n, bool half, const uint32_t *a, uint64_t b, int keep);

template <int BYTES> static inline void shared_copy(uint32_t to, const void *from)
{
    std::memcpy(shared_pointer(to, BYTES), from, BYTES);
}
template <typename T> static inline void shared_put(uint32_t to, T v)
{
    std::memcpy(shared_pointer(to, sizeof(v)), &v, sizeof(v));
}
static inline float shared_float(uint32_t at)
{
    float v;
    std::memcpy(&v, shared_pointer(at, 4), 4);
    return v;
}
static inline uint4 shared_vector(uint32_t at)
{
    uint4 v;
    std::memcpy(&v, shared_pointer(at, sizeof(v)), sizeof(v));
    return v;
}
static inline void products_begin()
{
}
template <int N> static inline void products_wait()
{
}
template <int TYPE, int N> struct product {
    static void run(float (&d)[N / 2], uint64_t a, uint64_t b, int keep)
    {
        wgmma_shared(d, N, TYPE == CUDA_KV_FP8, a, b, keep);
    }
    static void run(float (&d)[N / 2], const uint32_t *a, uint64_t b, int keep)
    {
        wgmma_registers(d, N, TYPE == CUDA_KV_FP8, a, b, keep);
    }
};
#endif

/* Of the panel at `panel`, elements 16 * step to 16 * step + 15 of its rows: eight rows are 1024 bytes. */
__device__ __forceinline__ uint64_t panel_step(uint32_t panel, int step)
{
    const uint32_t at = ((panel & 0x3ffffu) >> 4) + 2 * (uint32_t)step;
    return (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)1 << 16 | at;
}
/* Byte `chunk` * 16 of a row of a panel. */
__device__ __forceinline__ uint32_t panel_chunk(int row, int chunk)
{
    return (uint32_t)(row * 128 + (chunk ^ row % 8) * 16);
}
