/* The grouped W4A16 product of prefill: D^T = W * X^T for tiles of one expert's rows, wgmma with W from
 * registers.
 *
 * A block has a producer warpgroup, which copies stages of W and X ahead, and consumer warpgroups that have
 * 64 or 128 rows of W each (prefill_form.cuh). A consumer turns the codes of one k-step into bf16 while the
 * tensor cores work on the step before. Wide in W's rows, not in tokens: weights cost 0.56 bytes, tokens 2.
 *
 * X, the values between the two products, and Y lie in "panels": [width / 64][row capacity][64] bf16, each
 * row of 128 bytes with its 16-byte chunk c at c ^ (row % 8): what wgmma's 128-byte swizzle reads, so a tile
 * of tokens is one contiguous copy. In X and H each 16 values stand in the order 0 1 4 5 8 9 12 13 2 3 6 7 10
 * 11 14 15, in which the packed weights meet them (cuda_layout.h). An expert's rows begin at a multiple of 8.
 */
#ifndef NYB_KERNELS_CUDA_PREFILL_GEMM_CUH
#define NYB_KERNELS_CUDA_PREFILL_GEMM_CUH

#include "kernels/cuda/plugin/prefill_multiply.cuh"

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
template <typename F>
static __device__ __forceinline__ void produce(const struct prefill_gemm &p, uint32_t smem)
{
    const int n_m = (p.n_unit + F::UNITS - 1) / F::UNITS, n_item = *p.n_tile * n_m;
    const uint32_t full = smem + F::BARRIERS_AT, empty = full + 8 * F::STAGES, row = p.n_k * CUDA_UNIT_BYTES;
    const int part = (int)threadIdx.x - 32, run = F::DEPTH * CUDA_UNIT_BYTES; /* bytes of a row of units */
    uint32_t from[PREFILL_PARTS];
#pragma unroll
    for (int i = 0; i < PREFILL_PARTS; i++) {
        const int at = part + i * PREFILL_COPIERS;
        from[i] = at / (run / 16) * row + at % (run / 16) * 16;
    }
    int stage = 0, parity = 1;
    for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
        const struct prefill_tile t = p.tile[item / n_m];
        const int unit = item % n_m * F::UNITS;
        const uint32_t x_bytes = tile_width(t.n) * 128, w_end = (p.n_unit - unit) * row;
        const uint8_t *w = p.weight + t.expert * p.expert_bytes + (size_t)unit * row;
        const uint16_t *x = p.x + (size_t)t.row * 64;
        for (int k = 0; k < p.n_k; k += F::DEPTH) {
            const uint32_t at = smem + stage * F::STAGE_BYTES, bar = full + 8 * stage;
            barrier_wait(empty + 8 * stage, parity);
            if (threadIdx.x == 0) {
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar),
                             "r"(x_bytes * F::DEPTH)
                             : "memory");
#pragma unroll
                for (int i = 0; i < F::DEPTH; i++)
                    copy_in(at + i * F::PANEL_BYTES, x + i * p.capacity * 64, x_bytes, bar);
            } else if (part >= 0) {
                const uint32_t to = at + F::DEPTH * F::PANEL_BYTES + part * 16;
#pragma unroll
                for (int i = 0; i < PREFILL_PARTS; i++)
                    if (from[i] < w_end)
                        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;\n" ::"r"(
                                         to + i * PREFILL_COPIERS * 16),
                                     "l"(w + from[i])
                                     : "memory");
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(bar) : "memory");
            }
            w += run;
            x += F::DEPTH * p.capacity * 64;
            if (++stage == F::STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
    asm volatile("cp.async.wait_all;\n" ::: "memory");
}

template <typename F, int N>
static __device__ __forceinline__ void consume_tile(const struct prefill_gemm &p,
                                                    const struct prefill_tile &t, int item, uint32_t smem,
                                                    struct ring_place &r)
{
    int thread;
    /* Volatile: what follows from it is not kept in registers from tile to tile for all the cases. */
    asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
    const prefill_place my = {smem, thread / 128 - 1, thread % 128 / 32, thread % 32};
    const int block = item * (F::UNITS / 4) + my.group / F::DEPTH * F::M;
    float d[F::M][N / 2] = {}; /* left undefined, all the cases' registers would be live throughout */
    multiply<F, N>(d, r, p.n_k, my);
    if (F::MODE == PREFILL_GATE_UP)
        finish_gate_up<F, N>(d, p, t, block, my);
    else if (F::MODE == PREFILL_LINEAR)
        finish_linear<F, N>(d, p, t, block, my);
    else
        finish_down<F, N>(d, p, t, block, my);
}

template <typename F>
static __device__ __forceinline__ void consume(const struct prefill_gemm &p, uint32_t smem)
{
    const int n_m = (p.n_unit + F::UNITS - 1) / F::UNITS, n_item = *p.n_tile * n_m;
    struct ring_place r = {0, 0};
    for (int item = blockIdx.x; item < n_item; item += gridDim.x) {
        const struct prefill_tile t = p.tile[item / n_m];
        const int m = item % n_m;
        switch (tile_width(t.n)) {
#define CASE(N)                                   \
    case N:                                       \
        if constexpr (N <= F::N_MAX)              \
            consume_tile<F, N>(p, t, m, smem, r); \
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

template <typename F>
static __global__ void __launch_bounds__(F::THREADS, F::BLOCKS)
    prefill_gemm_kernel(const __grid_constant__ prefill_gemm p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    const uint32_t smem = (shared_address(raw) + 1023) & ~1023u;
    if (threadIdx.x < 2 * F::STAGES)
        asm volatile(
            "mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(smem + F::BARRIERS_AT + 8 * threadIdx.x),
            "r"(threadIdx.x < F::STAGES ? 1 + PREFILL_COPIERS : 4 * F::GROUPS)
            : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n" ::: "memory");
    __syncthreads();
    gpu_wait_before();
    gpu_let_next();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(F::PRODUCER_REGISTERS));
        produce<F>(p, smem);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(F::CONSUMER_REGISTERS));
        consume<F>(p, smem);
    }
#else
    (void)p;
    __trap(); /* wgmma is Hopper's alone: prefill_start refuses others */
#endif
}

#endif
