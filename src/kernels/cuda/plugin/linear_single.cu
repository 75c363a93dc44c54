/* A packed product with one row of x: all weights are asked for before what precedes has ended. */
#include <algorithm>

#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/single.cuh"

struct single_params {
    struct packed_linear w;
    int n_stage;
};

static __global__ void __launch_bounds__(N_THREAD, 1) linear_single_kernel(const params<single_params> all)
{
    const single_params &a = all.a;
    DYNAMIC_SHARED(memory);
    SHARED(uint64_t[N_WARP * STAGES_MAX], barriers);
    SHARED(float[N_WARP][2][32], part);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    params_fetch(all, &part[warp][0][0], warp);
    const int K = a.w.K;
    uint8_t *xs = memory + N_WARP * a.n_stage * CHUNK_BYTES;

    struct ring ring = ring_make(memory, barriers, a.n_stage, warp, lane);
    struct phase phase[N_PHASE] = {{a.w.weight, 0, K / 64, 1, (a.w.n_out + 15) / 16, 0, 0},
                                   {a.w.weight, 0, 1, 1, 1, 0, 0}}; /* the second is nothing */
    deal(phase[0], phase[0].n_tile);
    const struct piece piece = piece_of(phase, 0, warp, lane);
    const uint32_t pieces = __ballot_sync(ALL_LANES, piece.n > 0);
    ring.todo = pieces;
    ring_fill(ring, piece, lane);
    float scale[CUDA_PARTS_MAX];
#pragma unroll
    for (int i = 0; i < CUDA_PARTS_MAX; i++)
        scale[i] = i < a.w.n_part ? *a.w.part[i].scale * CUDA_SCALE_BACK : 0.0f;
    gpu_wait_before(); /* the weights do not change: they may come before x is there */
    gpu_let_next();
#pragma unroll 1
    for (int i = threadIdx.x; i < K / 8; i += N_THREAD)
        stage_eight(xs, i, __ldcg((const uint4 *)a.w.x + i));
    __syncthreads();
    run_phase(
        phase[0], piece, pieces, ring, part, warp, lane, [&](int) { return xs; },
        [&](int, struct sums c) { return c; },
        [&](int tile, struct sums c) {
            const struct packed_mlp &m = a.w.mlp;
            if (m.h) {
                if (lane % 4 == 0)
                    m.h[tile * 8 + lane / 4] = float_bf16(swiglu(c.low * (*m.gate_scale * CUDA_SCALE_BACK),
                                                                 c.high * (*m.up_scale * CUDA_SCALE_BACK)));
                return;
            }
            const int which = packed_part_of(a.w, tile * 16);
            const struct packed_part &p = a.w.part[which];
            const int out = tile * 16 + lane / 4 - p.first;
            const float s = (which == 0   ? scale[0]
                             : which == 1 ? scale[1]
                                          : scale[2]) *
                            (!m.weight    ? 1.0f
                             : *m.id == 0 ? *m.weight
                                          : 0.0f);
            if (lane % 4 == 0 && out < p.n_out)
                p.out[out] = c.low * s + (p.bias ? p.bias[out] : 0.0f);
            if (lane % 4 == 0 && out + 8 < p.n_out)
                p.out[out + 8] = c.high * s + (p.bias ? p.bias[out + 8] : 0.0f);
        });
}

/* Stages that a warp's units need, or that fit; 0: not even two. */
static int stages(const struct packed_linear *w, const struct gpu_limits *limits)
{
    const int n_tile = (w->n_out + 15) / 16, n_unit = w->K / 64;
    const int tiles = (n_tile + limits->n_sm - 1) / limits->n_sm;
    const int units = (tiles * n_unit + N_WARP - 1) / N_WARP, tiles_cut = units / n_unit + 2;
    for (int n = std::min(STAGES_MAX, std::max(2, units / CHUNK_UNITS + tiles_cut)); n >= 2; n--)
        if ((size_t)(N_WARP * n) * CHUNK_BYTES + 2 * (size_t)w->K + 8192 <= limits->shared_bytes)
            return n;
    return 0;
}

/* A warp's pieces of the largest block are few. */
static bool few_pieces(const struct packed_linear *w, const struct gpu_limits *limits)
{
    const int n_tile = (w->n_out + 15) / 16, tiles = (n_tile + limits->n_sm - 1) / limits->n_sm;
    return (tiles + N_WARP - 1) / N_WARP + 1 <= PIECES_MAX;
}

bool linear_single_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return w->n_row == 1 && w->n_out >= 1 && w->K >= 64 && w->K % 64 == 0 && few_pieces(w, limits) &&
           stages(w, limits) > 0;
}

const char *linear_single_start(const struct packed_linear *w, const struct op_place *at)
{
    const single_params a = {*w, stages(w, at->limits)};
    const size_t bytes = (size_t)(N_WARP * a.n_stage) * CHUNK_BYTES + 2 * (size_t)w->K;
    const unsigned grid = (unsigned)std::min(at->limits->n_sm, (w->n_out + 15) / 16);
    const char *why = gpu_why(gpu_allow_shared(linear_single_kernel, bytes));
    return why ? why
               : gpu_why(gpu_launch(linear_single_kernel, grid, N_THREAD, bytes, at->stream,
                                    params<single_params>{a}));
}
