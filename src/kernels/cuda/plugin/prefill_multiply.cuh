/* A consumer's products of a tile, from the ring of stages to sums. */
#ifndef NYB_KERNELS_CUDA_PREFILL_MULTIPLY_CUH
#define NYB_KERNELS_CUDA_PREFILL_MULTIPLY_CUH

#include "kernels/cuda/plugin/prefill_async.cuh"
#include "kernels/cuda/plugin/prefill_form.cuh"
#include "kernels/cuda/plugin/unit.cuh"

/* Where a thread stands among the consumers, and where its bells begin: STAGES that ring when a stage is
 * full, then as many for empty. */
struct prefill_place {
    uint32_t smem, bells;
    int group, warp, lane;
};

struct ring_place {
    int stage, parity;
};

template <typename F> static __device__ __forceinline__ void next_stage(struct ring_place &r)
{
    if (++r.stage == F::STAGES) {
        r.stage = 0;
        r.parity ^= 1;
    }
}

/* A lane's part of a stage's units. */
template <typename F>
static __device__ __forceinline__ void load_codes(uint32_t (&word)[F::M][4], uint32_t (&scales)[F::M],
                                                  uint32_t at, int lane)
{
#pragma unroll
    for (int m = 0; m < F::M; m++) {
        const uint32_t from = at + m * 4 * CUDA_UNIT_BYTES;
        load_shared(word[m], from + 16 * lane);
        scales[m] = load_shared_half(from + CUDA_UNIT_CODES + 2 * lane);
    }
}

/* What decoding multiplies by, and the compiler does not know (unit.cuh): 4, 16 and 64. */
struct prefill_factors {
    uint32_t four, sixteen, sixty_four;
};

/* As expand() of unit.cuh. */
__device__ __forceinline__ void expand_by(uint32_t (&a)[4], const uint32_t (&word)[4], int f, uint32_t scale,
                                          const prefill_factors &by)
{
    const uint32_t all = 0x81c081c0u, w = word[f];
    const uint32_t last = choose_bits(word[f & 2], multiply_add(word[f | 1], by.four, 0), 0x06030603u);
    a[0] = times_low(w & all, scale);
    a[1] = times_high(multiply_add(w, by.sixteen, 0) & all, scale);
    a[2] = times_low(__funnelshift_l(w, w, 10) & all, scale);
    a[3] = times_high((f % 2 ? __funnelshift_l(last, last, 28) : multiply_add(last, by.sixty_four, 0)) & all,
                      scale);
}

/* The products of a tile. The wgmma of the last step stay under way while the codes of the next are decoded.
 * No branch may stand around __syncwarp here: ptxas would wait for each wgmma at once (C7513). */
template <typename F, int N>
static __device__ __forceinline__ void multiply(float (&d)[F::M][N / 2], struct ring_place &r, int n_k,
                                                const prefill_place &my, const prefill_factors &by)
{
    const uint32_t full = my.bells, empty = full + 8 * F::STAGES;
    const uint32_t part = my.group % F::DEPTH, unit = my.group / F::DEPTH * 4 * F::M + my.warp;
    const uint32_t w_at = F::DEPTH * F::PANEL_BYTES + (part * F::UNITS + unit) * CUDA_UNIT_BYTES;
    uint32_t a[2][F::TOGETHER][4], last = 0;
    uint32_t word[F::M][4], scale[F::M];
    for (int k = 0; k < n_k; k += F::DEPTH) {
        const uint32_t at = my.smem + r.stage * F::STAGE_BYTES;
        bell_wait(full + 8 * r.stage, r.parity);
        load_codes<F>(word, scale, at + w_at, my.lane);
#pragma unroll
        for (int m = 0; m < F::M; m++)
            scale[m] = scale_pair(scale[m], by.sixteen);
        const uint32_t before = last;
        last = empty + 8 * r.stage;
        next_stage<F>(r);
        const uint64_t b = panel_rows(at + part * F::PANEL_BYTES);
        constexpr int TOGETHER = F::TOGETHER;
#pragma unroll
        for (int s = 0; s < 4 * F::M / TOGETHER; s++) {
            const int f = s * TOGETHER / F::M, first = s * TOGETHER % F::M;
#pragma unroll
            for (int m = 0; m < TOGETHER; m++)
                expand_by(a[s & 1][m], word[first + m], f, scale[first + m], by);
            products_fence();
#pragma unroll
            for (int m = 0; m < TOGETHER; m++)
                wgmma<N>::run(d[first + m], a[s & 1][m], b + 2 * f, 1);
            products_begin();
            if (s == 0)
                __syncwarp();
            if (s == 0 && k > 0 && my.lane == 0)
                bell_ring(before);
        }
    }
    products_end();
#pragma unroll
    for (int m = 0; m < F::M; m++)
        products_there(d[m]);
    __syncwarp();
    if (my.lane == 0)
        bell_ring(last);
}

#endif
