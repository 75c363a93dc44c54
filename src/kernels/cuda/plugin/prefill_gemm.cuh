/* The grouped W4A16 product of prefill: D^T = W * X^T for tiles of one expert's rows, wgmma with W from
 * registers.
 *
 * A block has a producer warpgroup, which copies a stage (256 rows of W and N tokens, both 64 deep) ahead,
 * and two consumer warpgroups of 128 rows of W each. A consumer turns the codes of one k-step into bf16 while
 * the tensor cores work on the step before. Wide in W's rows, not in tokens: weights cost 0.56 bytes,
 * tokens 2.
 *
 * X, the values between the two products, and Y lie in "panels": [width / 64][row capacity][64] bf16, each
 * row of 128 bytes with its 16-byte chunk c at c ^ (row % 8): what wgmma's 128-byte swizzle reads, so a tile
 * of tokens is one contiguous copy. In X and H each 16 values stand in the order 0 1 4 5 8 9 12 13 2 3 6 7 10
 * 11 14 15, in which the packed weights meet them (cuda_layout.h). An expert's rows begin at a multiple of 8.
 */
#ifndef NYB_KERNELS_CUDA_PREFILL_GEMM_CUH
#define NYB_KERNELS_CUDA_PREFILL_GEMM_CUH

#include <stdint.h>

#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/plugin/internal.h"
#include "kernels/cuda/plugin/prefill_wgmma.cuh"

#define PREFILL_THREADS  384
#define PREFILL_N_MAX    128
#define PREFILL_STAGES   7
#define PREFILL_UNITS    16 /* of 16 rows: the rows of a block's tile */
#define PREFILL_W_BYTES  (PREFILL_UNITS * CUDA_UNIT_BYTES)
#define PREFILL_COPIERS  96 /* threads that copy weights, 16 bytes each so many times a stage */
#define PREFILL_PARTS    (PREFILL_W_BYTES / 16 / PREFILL_COPIERS)
#define PREFILL_X_BYTES  (PREFILL_N_MAX * 128)
#define PREFILL_BARRIERS (PREFILL_STAGES * (PREFILL_W_BYTES + PREFILL_X_BYTES) + 2 * PREFILL_X_BYTES)
#define PREFILL_SMEM     (1024 + PREFILL_BARRIERS + 2 * 8 * PREFILL_STAGES)

/* Rows [row, row + n) of the panels are of one expert; n at most PREFILL_N_MAX. */
struct prefill_tile {
    int expert, row, n;
};

struct prefill_gemm {
    const uint8_t *weight; /* [n_expert] packed */
    size_t expert_bytes;
    const float *scale, *scale_2; /* [n_expert]; gate and up, or down and null */
    const uint16_t *x;            /* panels [K / 64][capacity] */
    uint16_t *out;                /* panels [width / 64][capacity] */
    const struct prefill_tile *tile;
    const int *n_tile;
    int n_unit, n_k, n_out; /* units of W's rows, K / 64, width of out / 64 */
    size_t capacity;
    struct packed_linear linear; /* a dense product: to its parts instead of panels */
};

/* What becomes of the sums. */
enum prefill_mode { PREFILL_GATE_UP, PREFILL_DOWN, PREFILL_LINEAR };

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    asm volatile(
        "{\n.reg .pred p;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}\n" ::"r"(
            bar),
        "r"(parity)
        : "memory");
}

static __device__ __forceinline__ void copy_in(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}

/* N of the instructions for a tile of n tokens. */
static __device__ __forceinline__ int tile_width(int n)
{
    return (n + 15) & ~15;
}

/* Why no access to a stage meets another. racecheck sees neither what cp.async.mbarrier.arrive.noinc orders
 * nor the asynchronous proxy, and reports the copies of weights.
 *
 * Filled before used: a phase of `full` has 1 + PREFILL_COPIERS arrivals. A copier's arrive.noinc counts when
 * all of its cp.async before it have been performed; thread 0 arrives with the bytes of its bulk copy, and
 * the phase lasts until those are there. A consumer's try_wait that sees the phase end acquires both. It
 * reads weights with ld.shared, in the generic proxy in which cp.async (not bulk) writes; tokens are written
 * and read in the asynchronous proxy alone (bulk copy, wgmma). So neither needs a proxy fence.
 *
 * Used before filled again: a phase of `empty` has an arrival of each of the eight consumer warps. Lane 0
 * makes it after wgmma.wait_group has retired the wgmma that read the stage, and after __syncwarp, before
 * which all lanes have used what they loaded. Producers wait for that phase before they copy.
 *
 * The output buffers: st.shared, then each writer's fence.proxy.async, bar.sync, and one thread's bulk store;
 * written again only after that thread's wait_group.read and another bar.sync. */

/* Four warps: the first copies tokens, the others weights. A unit's 576 bytes are too little for a bulk copy
 * each: sixteen of them a stage came at one in a hundred clocks. */
static __device__ __forceinline__ void produce(const struct prefill_gemm &p, uint32_t smem)
{
    const int n_m = (p.n_unit + PREFILL_UNITS - 1) / PREFILL_UNITS, n_item = *p.n_tile * n_m;
    const uint32_t full = smem + PREFILL_BARRIERS, empty = full + 8 * PREFILL_STAGES,
                   row = p.n_k * CUDA_UNIT_BYTES;
    const int part = (int)threadIdx.x - 32;
    uint32_t from[PREFILL_PARTS];
#pragma unroll
    for (int i = 0; i < PREFILL_PARTS; i++) {
        const int at = part + i * PREFILL_COPIERS;
        from[i] = at / (CUDA_UNIT_BYTES / 16) * row + at % (CUDA_UNIT_BYTES / 16) * 16;
    }
    int stage = 0, parity = 1;
    for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
        const struct prefill_tile t = p.tile[item / n_m];
        const int unit = item % n_m * PREFILL_UNITS;
        const uint32_t x_bytes = tile_width(t.n) * 128, w_end = (p.n_unit - unit) * row;
        const uint8_t *w = p.weight + t.expert * p.expert_bytes + (size_t)unit * row;
        const uint16_t *x = p.x + (size_t)t.row * 64;
        for (int k = 0; k < p.n_k; k++) {
            const uint32_t x_at = smem + stage * (PREFILL_W_BYTES + PREFILL_X_BYTES), bar = full + 8 * stage;
            barrier_wait(empty + 8 * stage, parity);
            if (threadIdx.x == 0) {
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar),
                             "r"(x_bytes)
                             : "memory");
                copy_in(x_at, x, x_bytes, bar);
            } else if (part >= 0) {
                const uint32_t to = x_at + PREFILL_X_BYTES + part * 16;
#pragma unroll
                for (int i = 0; i < PREFILL_PARTS; i++)
                    if (from[i] < w_end)
                        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;\n" ::"r"(
                                         to + i * PREFILL_COPIERS * 16),
                                     "l"(w + from[i])
                                     : "memory");
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(bar) : "memory");
            }
            w += CUDA_UNIT_BYTES;
            x += p.capacity * 64;
            if (++stage == PREFILL_STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
    asm volatile("cp.async.wait_all;\n" ::: "memory");
}

static __device__ __forceinline__ uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;\n" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/* Eight codes of a lane to the four registers of its A fragment, scaled; `scales` has row g's code at byte 2
 * * half and row g + 8's after it. See cuda_layout.h. */
static __device__ __forceinline__ void decode(uint32_t (&a)[4], uint32_t word, uint32_t scales, int half)
{
    const uint32_t s0 = __byte_perm(scales, 0, half ? 0x4242 : 0x4040) * 16 + 0x70007000;
    const uint32_t s1 = __byte_perm(scales, 0, half ? 0x4343 : 0x4141) * 16 + 0x70007000;
    a[0] = times(word & 0x81c081c0, s0);
    a[1] = times(__funnelshift_l(word, word, 4) & 0x81c081c0, s1);
    a[2] = times(__funnelshift_l(word, word, 10) & 0x81c081c0, s0);
    a[3] = times(
        (__funnelshift_l(word, word, 6) & 0x80c080c0) | (__funnelshift_l(word, word, 14) & 0x01000100), s1);
}

struct ring {
    uint32_t smem;
    int stage, parity;
};

/* The products of a tile. Two wgmma of the last step stay in flight while the next step's codes are decoded.
 */
template <int N>
static __device__ __forceinline__ void multiply(float (&d)[2][N / 2], struct ring &r, int n_k, int group,
                                                int warp, int lane)
{
    const uint32_t full = r.smem + PREFILL_BARRIERS, empty = full + 8 * PREFILL_STAGES;
    uint32_t a[2][2][4], last = 0;
    for (int k = 0; k < n_k; k++) {
        const uint32_t x_at = r.smem + r.stage * (PREFILL_W_BYTES + PREFILL_X_BYTES);
        const uint32_t w_at = x_at + PREFILL_X_BYTES + (group * 8 + warp) * CUDA_UNIT_BYTES;
        const uint64_t b = (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)1 << 16 | (x_at & 0x3ffff) >> 4;
        uint32_t word[2][4], scale[2][2];
        barrier_wait(full + 8 * r.stage, r.parity);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const uint32_t at = w_at + m * 4 * CUDA_UNIT_BYTES;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                         : "=r"(word[m][0]), "=r"(word[m][1]), "=r"(word[m][2]), "=r"(word[m][3])
                         : "r"(at + 16 * lane));
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n"
                         : "=r"(scale[m][0]), "=r"(scale[m][1])
                         : "r"(at + CUDA_UNIT_CODES + lane / 4 * 8));
        }
#pragma unroll
        for (int f = 0; f < 4; f++) {
            decode(a[f & 1][0], word[0][f], scale[0][f / 2], f & 1);
            decode(a[f & 1][1], word[1][f], scale[1][f / 2], f & 1);
            asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
            wgmma<N>::run(d[0], a[f & 1][0], b + 2 * f, 1);
            wgmma<N>::run(d[1], a[f & 1][1], b + 2 * f, 1);
            asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;\n" ::: "memory");
            if (f == 0)
                __syncwarp();
            if (f == 0 && k > 0 && lane == 0)
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(last) : "memory");
        }
        last = empty + 8 * r.stage;
        if (++r.stage == PREFILL_STAGES) {
            r.stage = 0;
            r.parity ^= 1;
        }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        asm volatile("" : "+f"(d[0][i]), "+f"(d[1][i])::"memory");
    __syncwarp();
    if (lane == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(last) : "memory");
}

static __device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

static __device__ __forceinline__ float silu_times(float g, float u)
{
    return g * u * __frcp_rn(1.0f + __expf(-g));
}

static __device__ __forceinline__ void group_sync(int group)
{
    asm volatile("bar.sync %0, 128;\n" ::"r"(group + 1) : "memory");
}

/* The group's buffer is free again. */
static __device__ __forceinline__ void buffer_wait(int group, bool first)
{
    if (first)
        asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
    group_sync(group);
}

/* One panel's rows from the buffer to global memory. */
static __device__ __forceinline__ void buffer_out(const struct prefill_gemm &p, const struct prefill_tile &t,
                                                  int panel, uint32_t buffer, int group, bool first)
{
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    group_sync(group);
    if (!first || panel >= p.n_out)
        return;
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;\n" ::"l"(
            p.out + ((size_t)panel * p.capacity + t.row) * 64),
        "r"(buffer), "r"(((t.n + 7) & ~7) * 128)
        : "memory");
}

/* Gate in rows g, up in rows g + 8: 64 values between the products, in the order in which `down` meets them.
 */
template <int N>
static __device__ __forceinline__ void finish_gate_up(float (&d)[2][N / 2], const struct prefill_gemm &p,
                                                      const struct prefill_tile &t, int panel,
                                                      uint32_t buffer, int group, int warp, int lane)
{
    const float gate = p.scale[t.expert] * CUDA_SCALE_BACK, up = p.scale_2[t.expert] * CUDA_SCALE_BACK;
    const bool first = warp == 0 && lane == 0;
    const int pair = warp % 2 * 4 + lane % 4;
    buffer_wait(group, first);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int chunk = (4 * m + warp / 2 * 2 + pair % 2) ^ lane / 4;
        const uint32_t at = buffer + lane / 4 * 128 + chunk * 16 + pair / 2 * 4;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const float *c = &d[m][4 * j];
            uint32_t h = pack(silu_times(c[0] * gate, c[2] * up), silu_times(c[1] * gate, c[3] * up));
            asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;\n" : "+r"(h));
            asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(at + j * 1024), "r"(h) : "memory");
        }
    }
    buffer_out(p, t, panel, buffer, group, first);
}

/* Two panels of Y, one after the other. */
template <int N>
static __device__ __forceinline__ void finish_down(float (&d)[2][N / 2], const struct prefill_gemm &p,
                                                   const struct prefill_tile &t, int panel, uint32_t buffer,
                                                   int group, int warp, int lane)
{
    const float s = p.scale[t.expert] * CUDA_SCALE_BACK;
    const bool first = warp == 0 && lane == 0;
    const int chunk = (2 * warp + lane / 8 % 2) ^ lane % 8;
    const uint32_t at = buffer + (lane / 16 * 8 + lane % 8) * 128 + chunk * 16;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        buffer_wait(group, first);
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            const float *c = &d[m][8 * j];
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                             at + j * 2048),
                         "r"(pack(c[0] * s, c[1] * s)), "r"(pack(c[2] * s, c[3] * s)),
                         "r"(pack(c[4] * s, c[5] * s)), "r"(pack(c[6] * s, c[7] * s))
                         : "memory");
        }
        buffer_out(p, t, panel + m, buffer, group, first);
    }
}

/* A dense product's: rows of W from unit `unit` on, straight to memory. */
template <int N>
static __device__ __forceinline__ void finish_linear(float (&d)[2][N / 2], const struct prefill_gemm &p,
                                                     const struct prefill_tile &t, int unit, int lane)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const int first = (unit + 4 * m) * CUDA_UNIT_ROWS;
        const struct packed_part &part = p.linear.part[packed_part_of(p.linear, first)];
        const float s = *part.scale * CUDA_SCALE_BACK;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int o = first + 8 * h + lane / 4 - part.first;
            if (o >= part.n_out)
                continue;
            const float bias = part.bias ? part.bias[o] : 0.0f;
            float *to = part.out + (size_t)t.row * part.n_out + o;
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
                const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
                if (row < t.n)
                    to[(size_t)row * part.n_out] = d[m][i / 2 * 4 + 2 * h + i % 2] * s + bias;
            }
        }
    }
}

template <int N, prefill_mode MODE>
static __device__ __forceinline__ void consume_tile(const struct prefill_gemm &p,
                                                    const struct prefill_tile &t, int m, struct ring &r)
{
    int thread;
    /* Volatile: what follows from it is not kept in registers from tile to tile for all the cases. */
    asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
    const int group = thread / 128 - 1, warp = thread % 128 / 32, lane = thread % 32;
    const uint32_t buffer =
        r.smem + PREFILL_STAGES * (PREFILL_W_BYTES + PREFILL_X_BYTES) + group * PREFILL_X_BYTES;
    float d[2][N / 2] = {}; /* left undefined, all the cases' registers would be live throughout */
    multiply<N>(d, r, p.n_k, group, warp, lane);
    if (MODE == PREFILL_GATE_UP)
        finish_gate_up<N>(d, p, t, 2 * m + group, buffer, group, warp, lane);
    else if (MODE == PREFILL_LINEAR)
        finish_linear<N>(d, p, t, m * PREFILL_UNITS + group * 8 + warp, lane);
    else
        finish_down<N>(d, p, t, 4 * m + 2 * group, buffer, group, warp, lane);
}

template <prefill_mode MODE>
static __device__ __forceinline__ void consume(const struct prefill_gemm &p, uint32_t smem)
{
    const int n_m = (p.n_unit + PREFILL_UNITS - 1) / PREFILL_UNITS, n_item = *p.n_tile * n_m;
    struct ring r = {smem, 0, 0};
    for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
        const struct prefill_tile t = p.tile[item / n_m];
        const int m = item % n_m;
        switch (tile_width(t.n)) {
#define CASE(N)                            \
    case N:                                \
        consume_tile<N, MODE>(p, t, m, r); \
        break;
            CASE(16)
            CASE(32)
            CASE(48)
            CASE(64)
            CASE(80)
            CASE(96)
            CASE(112)
            CASE(128)
#undef CASE
        }
    }
    if (threadIdx.x % 128 == 0)
        asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

template <prefill_mode MODE>
static __global__ void __launch_bounds__(PREFILL_THREADS, 1)
    prefill_gemm_kernel(const __grid_constant__ prefill_gemm p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    const uint32_t smem = (shared_address(raw) + 1023) & ~1023u;
    if (threadIdx.x < 2 * PREFILL_STAGES)
        asm volatile(
            "mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(smem + PREFILL_BARRIERS + 8 * threadIdx.x),
            "r"(threadIdx.x < PREFILL_STAGES ? 1 + PREFILL_COPIERS : 8)
            : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
        produce(p, smem);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
        consume<MODE>(p, smem);
    }
#else
    (void)p;
    __trap(); /* wgmma is Hopper's alone: prefill_start refuses others */
#endif
}

#endif
