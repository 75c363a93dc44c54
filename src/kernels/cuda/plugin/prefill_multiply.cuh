/* A consumer's products of a tile, from the ring of stages to sums. */
#ifndef NYB_KERNELS_CUDA_PREFILL_MULTIPLY_CUH
#define NYB_KERNELS_CUDA_PREFILL_MULTIPLY_CUH

#include "kernels/cuda/plugin/prefill_finish.cuh"
#include "kernels/cuda/plugin/prefill_wgmma.cuh"
#include "kernels/cuda/plugin/unit.cuh"

struct ring_place {
    int stage, parity;
};

static __device__ __forceinline__ void arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

/* The products of a tile. The wgmma of the last step stay under way while the codes of the next are decoded.
 * No branch may stand around __syncwarp here: ptxas would wait for each wgmma at once (C7513). */
template <typename F, int N>
static __device__ __forceinline__ void multiply(float (&d)[F::M][N / 2], struct ring_place &r, int n_k,
                                                const prefill_place &my)
{
    const uint32_t full = my.smem + F::BARRIERS_AT, empty = full + 8 * F::STAGES;
    const uint32_t part = my.group % F::DEPTH, unit = my.group / F::DEPTH * 4 * F::M + my.warp;
    const uint32_t sixteen = 16 * gridDim.y; /* the grid is a line: see unit.cuh */
    uint32_t a[2][F::TOGETHER][4], last = 0;
    for (int k = 0; k < n_k; k += F::DEPTH) {
        const uint32_t at = my.smem + r.stage * F::STAGE_BYTES, x_at = at + part * F::PANEL_BYTES;
        const uint32_t w_at = at + F::DEPTH * F::PANEL_BYTES + (unit * F::DEPTH + part) * CUDA_UNIT_BYTES;
        const uint64_t b = (uint64_t)1 << 62 | (uint64_t)64 << 32 | (uint64_t)1 << 16 | (x_at & 0x3ffff) >> 4;
        uint32_t word[F::M][4], scale[F::M][2];
        barrier_wait(full + 8 * r.stage, r.parity);
#pragma unroll
        for (int m = 0; m < F::M; m++) {
            const uint32_t from = w_at + m * 4 * F::DEPTH * CUDA_UNIT_BYTES;
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                         : "=r"(word[m][0]), "=r"(word[m][1]), "=r"(word[m][2]), "=r"(word[m][3])
                         : "r"(from + 16 * my.lane));
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];\n"
                         : "=r"(scale[m][0]), "=r"(scale[m][1])
                         : "r"(from + CUDA_UNIT_CODES + my.lane / 4 * 8));
        }
        constexpr int TOGETHER = F::TOGETHER;
#pragma unroll
        for (int s = 0; s < 4 * F::M / TOGETHER; s++) {
            const int f = s * TOGETHER / F::M, first = s * TOGETHER % F::M;
#pragma unroll
            for (int m = 0; m < TOGETHER; m++)
                expand(a[s & 1][m], word[first + m][f],
                       f & 1 ? scale_pair<1>(scale[first + m][f / 2], sixteen)
                             : scale_pair<0>(scale[first + m][f / 2], sixteen),
                       sixteen);
            asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
            for (int m = 0; m < TOGETHER; m++)
                wgmma<N>::run(d[first + m], a[s & 1][m], b + 2 * f, 1);
            asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;\n" ::: "memory");
            if (s == 0)
                __syncwarp();
            if (s == 0 && k > 0 && my.lane == 0)
                arrive(last);
        }
        last = empty + 8 * r.stage;
        if (++r.stage == F::STAGES) {
            r.stage = 0;
            r.parity ^= 1;
        }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#pragma unroll
    for (int i = 0; i < N / 2; i++)
#pragma unroll
        for (int m = 0; m < F::M; m++)
            asm volatile("" : "+f"(d[m][i])::"memory");
    __syncwarp();
    if (my.lane == 0)
        arrive(last);
}

#endif
