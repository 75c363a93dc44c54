/* The instructions of the prefill kernels that neither gpu.h nor bell.cuh has: copies of boxes, products of a
 * warpgroup, for nvcc and for the emulator (emulate/wgmma.cc, emulate/prefill.cc) alike. */
#pragma once

#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/plugin/bell.cuh"

/* wgmma is Hopper's alone; the host's pass compiles what it does not run. */
#if GPU_IS_EMULATED || defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define PREFILL_CAN_RUN 1
#else
#define PREFILL_CAN_RUN 0
#endif

#ifdef __CUDACC__
#include <cuda.h>

#include "kernels/cuda/plugin/prefill_wgmma.cuh"

/* 16 bytes to shared memory, later, in the generic proxy. */
__device__ __forceinline__ void copy_in_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/* This thread's copies so far are a group; all but its last N groups have been performed. */
template <int N> __device__ __forceinline__ void copies_in_wait()
{
    asm volatile("cp.async.commit_group;\ncp.async.wait_group %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void copies_in_end()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}
/* Packed matrices as a table of unit rows, of which boxes are copied. */
struct weight_boxes {
    CUtensorMap map;
};
/* `rows` unit rows from `row` on, of each the unit `k`, to shared memory, later, in the asynchronous
 * proxy. */
__device__ __forceinline__ void copy_in_box(uint32_t to, const weight_boxes &w, int k, int row, uint32_t bell)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::"
                 "complete_tx::bytes [%0], [%1, {%2, "
                 "%3}], [%4];" ::"r"(to),
                 "l"(&w.map), "r"(k * (CUDA_UNIT_BYTES / 4)), "r"(row), "r"(bell)
                 : "memory");
}
/* The same of what is not read again soon: it leaves the L2 before other things do. */
__device__ __forceinline__ void copy_in_box_once(uint32_t to, const weight_boxes &w, int k, int row,
                                                 uint32_t bell)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&w.map), "r"(k * (CUDA_UNIT_BYTES / 4)), "r"(row), "r"(bell), "l"(policy)
        : "memory");
}
/* Boxes will be copied soon. */
__device__ __forceinline__ void boxes_soon(const weight_boxes &w)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&w.map) : "memory");
}
/* A run from shared memory, later. This thread waits until what it copied has been read, or written. */
__device__ __forceinline__ void copy_out_run(void *to, uint32_t from, uint32_t bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], "
                 "%2;\ncp.async.bulk.commit_group;" ::"l"(to),
                 "r"(from), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void copies_out_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void copies_out_written()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* What this thread wrote to global memory, or saw written, is there for copies in the asynchronous proxy, and
 * the other way round. */
__device__ __forceinline__ void global_for_async()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
/* One more, after all that this thread wrote or saw written. */
__device__ __forceinline__ void count_up(uint32_t *p)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}
__device__ __forceinline__ uint32_t count_seen(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* 1 / v for v of 1 and more, as __frcp_rn has it but where that is subnormal.
 */
__device__ __forceinline__ float reciprocal(float v)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return v < 0x1p126f ? fmaf(r, -fmaf(v, r, -1.0f), r) : 0.0f;
}

/* All threads of `n` groups of 128 in a row, of which this is group `group`. */
__device__ __forceinline__ void groups_sync(int group, int n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(group / n + 1), "r"(128 * n) : "memory");
}

__device__ __forceinline__ void load_shared(uint32_t (&v)[4], uint32_t at)
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at));
}
__device__ __forceinline__ void load_shared(uint32_t (&v)[2], uint32_t at)
{
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at));
}
__device__ __forceinline__ void load_shared(uint32_t (&v)[1], uint32_t at)
{
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v[0]) : "r"(at) : "memory");
}
__device__ __forceinline__ uint32_t load_shared_half(uint32_t at)
{
    uint16_t v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}
__device__ __forceinline__ void store_shared(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
/* Four matrices of 8 x 8, transposed: lane l names row l % 8 of matrix l / 8.
 */
__device__ __forceinline__ void store_transposed(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, "
                 "%3, %4};" ::"r"(at),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* What follows from it is computed where it stands, not before a loop and kept: registers are short. */
template <typename T> __device__ __forceinline__ void keep_in_loop(T *&p)
{
    asm volatile("" : "+l"(p));
}
__device__ __forceinline__ void keep_in_loop(uint32_t &v)
{
    asm volatile("" : "+r"(v));
}
/* The products begin; of the groups of them so begun, all but the last are waited for. */
__device__ __forceinline__ void products_begin()
{
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
}
__device__ __forceinline__ void products_end()
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
#else
void groups_sync(int group, int n);
void store_transposed(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d);
void wgmma_registers(float *d, int n, bool half, const uint32_t *a, uint64_t b, int keep);

struct weight_boxes {
    const uint8_t *weight;
    size_t row_bytes, n_row;
    int box;
};
static inline void copy_in_box(uint32_t to, const weight_boxes &w, int k, int row, uint32_t bell)
{
    for (int i = 0; i < w.box; i++)
        if ((size_t)(row + i) < w.n_row)
            std::memcpy(shared_pointer(to + (uint32_t)i * CUDA_UNIT_BYTES, CUDA_UNIT_BYTES),
                        w.weight + (size_t)(row + i) * w.row_bytes + (size_t)k * CUDA_UNIT_BYTES,
                        CUDA_UNIT_BYTES);
        else
            std::memset(shared_pointer(to + (uint32_t)i * CUDA_UNIT_BYTES, CUDA_UNIT_BYTES), 0,
                        CUDA_UNIT_BYTES);
    bell_copied(bell, (uint32_t)w.box * CUDA_UNIT_BYTES);
}
static inline void copy_in_box_once(uint32_t to, const weight_boxes &w, int k, int row, uint32_t bell)
{
    copy_in_box(to, w, k, row, bell);
}
static inline void boxes_soon(const weight_boxes &)
{
}
template <int N> static inline void copies_in_wait()
{
}
static inline void copy_in_16(uint32_t to, const void *from)
{
    std::memcpy(shared_pointer(to, 16), from, 16);
}
static inline void copies_in_end()
{
}
static inline void copy_out_run(void *to, uint32_t from, uint32_t bytes)
{
    std::memcpy(to, shared_pointer(from, bytes), bytes);
}
static inline void copies_out_read()
{
}
static inline void copies_out_written()
{
}
static inline void global_for_async()
{
}
static inline float reciprocal(float v)
{
    return 1.0f / v;
}
static inline void count_up(uint32_t *p)
{
    ++*p;
}
static inline uint32_t count_seen(const uint32_t *p)
{
    return *p;
}
template <int N> static inline void load_shared(uint32_t (&v)[N], uint32_t at)
{
    std::memcpy(v, shared_pointer(at, sizeof(v)), sizeof(v));
}
static inline uint32_t load_shared_half(uint32_t at)
{
    uint16_t v;
    std::memcpy(&v, shared_pointer(at, 2), 2);
    return v;
}
static inline void store_shared(uint32_t at, uint32_t v)
{
    std::memcpy(shared_pointer(at, 4), &v, 4);
}
template <typename T> static inline void keep_in_loop(T &)
{
}
static inline void products_begin()
{
}
static inline void products_end()
{
}
template <int N> struct wgmma {
    static void run(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int keep)
    {
        wgmma_registers(d, N, false, a, b, keep);
    }
};
#endif

/* Of a panel (rows of 128 bytes, swizzled, at a multiple of 1024) as wgmma's B, from its first 16 columns
 * on; 16 more are 2 more. */
__device__ __forceinline__ uint64_t panel_rows(uint32_t at)
{
    return (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)1 << 16 | (at & 0x3ffff) >> 4;
}
