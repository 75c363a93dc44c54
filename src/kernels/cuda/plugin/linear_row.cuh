/* What products of one row have in common: weights that go from memory straight into registers, a warp's
 * units taking turns with those of the block's others, and parts of sums by warp and tile. */
#pragma once

#include <algorithm>

#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/single.cuh"

#define TILE_FLOATS (N_WARP * 16 + 16) /* parts of a tile; the last 16 only keep banks apart */

struct single_params {
    struct packed_linear w;
    int n_tile, n_more; /* of a block; blocks that have one more */
};

/* What of the product is this block's and this warp's. */
struct single_share {
    int n_unit;        /* of a tile */
    int first, n_tile; /* tiles of the block */
    int n;             /* units of the warp: every N_WARPth of the block's */
};

static __device__ __forceinline__ single_share share_of(const single_params &a, int warp)
{
    const int n_unit = (unsigned)a.w.K / 64, block = blockIdx.x, n_tile = a.n_tile + (block < a.n_more);
    return {n_unit, block * a.n_tile + min(block, a.n_more), n_tile,
            (int)((unsigned)(n_tile * n_unit - warp + N_WARP - 1) / N_WARP)};
}

/* ---- weights --------------------------------------------------------------------------------------- */

#define TURN_BYTES (N_WARP * CUDA_UNIT_BYTES) /* from a warp's unit to its next */

struct unit_words {
    uint4 code;
    uint32_t scales;
};

/* Lane by lane: codes and scales of the warp's first unit. */
struct unit_place {
    const uint8_t *code, *scale;
};

/* On by so many. The compiler would rather work out each place anew than keep it. */
static __device__ __forceinline__ void move(unit_place &at, int turns)
{
    at.code += turns * TURN_BYTES;
    at.scale += turns * TURN_BYTES;
#ifdef __CUDACC__
    asm volatile("" : "+l"(at.code), "+l"(at.scale));
#endif
}

static __device__ __forceinline__ unit_words load_unit(const unit_place &at, int turn)
{
    return {__ldcs((const uint4 *)(at.code + turn * TURN_BYTES)),
            __ldcs((const uint16_t *)(at.scale + turn * TURN_BYTES))};
}

/* The unit as the matrix instruction's first operands. */
struct unit_expanded {
    uint32_t e[4][4];
};

static __device__ __forceinline__ unit_expanded expand_unit(const unit_words &w, uint32_t sixteen)
{
    unit_expanded u;
    expand_unit(u.e, w.code, w.scales, sixteen);
    return u;
}

/* c + d += unit * x: two sums, as products of one wait for each other. */
static __device__ __forceinline__ void multiply(float (&c)[4], float (&d)[4], const unit_expanded &u,
                                                const uint8_t *x)
{
    const uint4 low = *(const uint4 *)x, high = *(const uint4 *)(x + 16);
    mma_bf16(c, u.e[0], low.x, low.y);
    mma_bf16(d, u.e[1], low.z, low.w);
    mma_bf16(c, u.e[2], high.x, high.y);
    mma_bf16(d, u.e[3], high.z, high.w);
}

/* ---- sums ------------------------------------------------------------------------------------------ */

/* Of N_WARP numbers, step floats apart. */
static __device__ __forceinline__ float sum_of_warps(const float *v, int step)
{
    float sum[4] = {v[0], v[step], v[2 * step], v[3 * step]};
#pragma unroll
    for (int i = 4; i < N_WARP; i++)
        sum[i % 4] += v[i * step];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* What one output needs besides its sum. */
struct output {
    float *to; /* NULL: there is none */
    float scale, bias;
};

static __device__ __forceinline__ output output_of(const packed_linear &w, int row)
{
    const int which = packed_part_of(w, row / 16 * 16);
    const packed_part &p = w.part[which];
    const int out = row - p.first;
    if (out >= p.n_out)
        return {nullptr, 0.0f, 0.0f};
    return {p.out + out, *p.scale * CUDA_SCALE_BACK, p.bias ? p.bias[out] : 0.0f};
}

/* The block's output i, of which `o` is, from the parts of its sum. */
static __device__ __forceinline__ void output_put(const output &o, const float *part, int i)
{
    if (o.to)
        *o.to = sum_of_warps(part + i / 16 * TILE_FLOATS + i % 16, 16) * o.scale + o.bias;
}

/* Tiles of a block at most. */
static inline int tiles_of_block(const struct packed_linear *w, const struct gpu_limits *limits)
{
    const int n_tile = (w->n_out + 15) / 16, grid = std::min(limits->n_sm, n_tile);
    return (n_tile + grid - 1) / grid;
}

/* Units of a warp at most. */
#define FEW_UNITS 6 /* what its registers hold of them beside another kernel's block */
static inline int units_of_warp(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return (tiles_of_block(w, limits) * (w->K / 64) + N_WARP - 1) / N_WARP;
}

static inline bool is_half(const struct packed_linear *w)
{
    return w->mlp.h || w->mlp.weight;
}

/* The kernel for products whose weights all fit the registers: most of a layer's (linear_few.cu). */
bool linear_few_takes(const struct packed_linear *w, const struct gpu_limits *limits);
const char *linear_few_start(const struct packed_linear *w, const struct op_place *at);

static inline size_t row_room_bytes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return 2 * (size_t)w->K + (size_t)tiles_of_block(w, limits) * TILE_FLOATS * sizeof(float);
}

/* Threads whose registers a block leaves to one of another kernel, which may run before or behind it on its
 * SM; where weights are many, those are better used for them. */
#define SPARED(early) ((early) > 0 ? 7 * 32 : 0)
