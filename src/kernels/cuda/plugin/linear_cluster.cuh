/* What the packed products share that share out K over the blocks of a cluster: how many clusters run at
 * once, and what becomes of finished sums. */
#pragma once

#include <algorithm>

#include "kernels/cuda/plugin/cluster_counts.cuh"
#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/unit.cuh"

#define CLUSTER_MAX 8 /* blocks, that every GPU takes */
#define ROWS_MAX    64

/* ---- finished sums ---------------------------------------------------------------------------------- */

/* The parts' scales, or gate's and up's. */
struct sum_scales {
    float of[CUDA_PARTS_MAX];
};

template <bool PAIRS> static __device__ __forceinline__ sum_scales load_scales(const struct packed_linear &w)
{
    sum_scales s = {};
#pragma unroll
    for (int i = 0; i < CUDA_PARTS_MAX; i++) {
        const float *at = PAIRS          ? (i == 0   ? w.mlp.gate_scale
                                            : i == 1 ? w.mlp.up_scale
                                                     : nullptr)
                          : i < w.n_part ? w.part[i].scale
                                         : nullptr;
        if (at)
            s.of[i] = *at * CUDA_SCALE_BACK;
    }
    return s;
}

/* Four sums of a tile, of a lane's two rows of x and two rows of the matrix. */
template <bool PAIRS>
static __device__ __forceinline__ void finish(const struct packed_linear &w, const sum_scales &scales,
                                              int tile, int row, int g, const float (&c)[4])
{
    if (PAIRS) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (row + i < w.n_row)
                w.mlp.h[(size_t)(row + i) * (w.n_out / 2) + tile * 8 + g] =
                    float_bf16(swiglu(c[i] * scales.of[0], c[2 + i] * scales.of[1]));
        return;
    }
    const int which = packed_part_of(w, tile * 16);
    const struct packed_part &p = w.part[which];
    const float scale = which == 0 ? scales.of[0] : which == 1 ? scales.of[1] : scales.of[2];
    const int out = tile * 16 + g - p.first;
    float bias[2] = {}, by[2] = {}; /* asked for at once */
    bool taken[2] = {};
    if (p.bias)
#pragma unroll
        for (int i = 0; i < 2; i++)
            bias[i] = p.bias[min(out + 8 * i, p.n_out - 1)];
    if (w.mlp.weight)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = min(row + i, w.n_row - 1);
            taken[i] = w.mlp.id[r] == 0;
            by[i] = w.mlp.weight[r];
        }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = row + i % 2, o = out + i / 2 * 8;
        if (r >= w.n_row || o >= p.n_out)
            continue;
        const float v = c[i] * scale + bias[i / 2];
        p.out[(size_t)r * p.n_out + o] = !w.mlp.weight ? v : taken[i % 2] ? v * by[i % 2] : 0.0f;
    }
}
static_assert(CUDA_PARTS_MAX == 3, "scales of parts");

/* ---- clusters --------------------------------------------------------------------------------------- */
