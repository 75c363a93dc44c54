/* A packed product with one row of x.
 *
 * Such a launch is all latency, so nothing in it waits for what it could do without:
 *
 * - A block has a run of tiles, whose units lie side by side in memory, and its warps take turns with them. A
 *   warp has units of every tile, so the block meets once, when all have their parts of all sums: then a
 *   thread an output adds them up, in order.
 * - Weights go from memory straight into registers, AHEAD units before they are used, the first of them
 *   before what precedes has ended: weights do not change. The others are on their way into the L2 by then.
 *   Some are expanded by then, too. */
#include <algorithm>

#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/single.cuh"

#define TILE_FLOATS (N_WARP * 16 + 16) /* parts of a tile; the last 16 only keep banks apart */

struct single_params {
    struct packed_linear w;
    int n_tile, n_more; /* of a block; blocks that have one more */
};

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

/* A warp's part of a tile, and on to the next. */
static __device__ __forceinline__ void tile_end(float (&c)[4], float (&d)[4], float *&to, int lane)
{
    if (lane % 4 == 0) {
        to[0] = c[0] + d[0];
        to[8] = c[2] + d[2];
    }
    to += TILE_FLOATS;
#pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] = d[i] = 0.0f;
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

/* The block's tiles from row lo on. by: what all sums are multiplied with; first: of this thread's first
 * output. All threads. */
static __device__ __forceinline__ void finish(const packed_linear &w, const float *part, int lo, int n_tile,
                                              float by, const output &first)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < 16 * n_tile; i += N_THREAD) {
        const output o = i == (int)threadIdx.x ? first : output_of(w, lo + i);
        if (o.to)
            *o.to = sum_of_warps(part + i / 16 * TILE_FLOATS + i % 16, 16) * (o.scale * by) + o.bias;
    }
}

/* The same of gate and up: tiles of eight neurons. */
static __device__ __forceinline__ void finish_pairs(const packed_mlp &m, const float *part, int lo,
                                                    int n_tile, float gate, float up)
{
#pragma unroll 1
    for (int i = threadIdx.x; i < 8 * n_tile; i += N_THREAD) {
        const float *at = part + i / 8 * TILE_FLOATS + i % 8;
        m.h[lo / 2 + i] = float_bf16(swiglu(sum_of_warps(at, 16) * gate, sum_of_warps(at + 8, 16) * up));
    }
}

/* ---- the kernel ------------------------------------------------------------------------------------ */

/* Threads whose registers a block leaves to one of another kernel, which may run before or behind it on its
 * SM; where weights are many, those are better used for them. */
#define SPARED(early) ((early) > 0 ? 7 * 32 : 0)

/* AHEAD: of a warp's units, and EARLY of them are expanded before x is there, too. */
template <int AHEAD, int EARLY>
static __global__ void __launch_bounds__(N_THREAD + SPARED(EARLY), 1)
    linear_single_kernel(const params<single_params> all)
{
    gpu_let_next();
    const single_params &a = all.a;
    DYNAMIC_SHARED(memory);
    SHARED(float[N_WARP], unread);
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    params_fetch(all, &unread[warp], warp);
    const int K = a.w.K, n_unit = (unsigned)K / 64, block = blockIdx.x,
              lo = block * a.n_tile + min(block, a.n_more), n_tile = a.n_tile + (block < a.n_more),
              n = (unsigned)(n_tile * n_unit - warp + N_WARP - 1) / N_WARP; /* this warp's units */
    uint8_t *xs = memory;
    float *part = (float *)(xs + 2 * K);

    const uint8_t *first = a.w.weight + (int64_t)lo * n_unit * CUDA_UNIT_BYTES;
    const uint8_t *own = first + warp * CUDA_UNIT_BYTES;
    unit_place at = {own + 16 * lane, scales_at(own, lane)};
    move(at, 0);
    unit_words w[AHEAD] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < n)
            w[i] = load_unit(at, i);
    if (threadIdx.x == 0 && n > AHEAD)
        gpu_prefetch_bulk(first + AHEAD * TURN_BYTES, n_tile * n_unit * CUDA_UNIT_BYTES - AHEAD * TURN_BYTES);
    const packed_mlp &m = a.w.mlp;
    const bool pairs = m.h != nullptr;
    output first_out = {nullptr, 0.0f, 0.0f};
    float gate = 0.0f, up = 0.0f, by = 1.0f;
    if (pairs) {
        gate = *m.gate_scale * CUDA_SCALE_BACK;
        up = *m.up_scale * CUDA_SCALE_BACK;
    } else if ((int)threadIdx.x < 16 * n_tile) {
        first_out = output_of(a.w, lo * 16 + threadIdx.x);
    }
    const uint32_t sixteen = 16 * gridDim.y; /* grids here are lines */
    unit_expanded early[EARLY > 0 ? EARLY : 1];
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        early[i] = expand_unit(w[i], sixteen);
    gpu_wait_before();

    if (m.weight) /* this half of an MLP counts for a row of the id 0 */
        by = *m.id == 0 ? *m.weight : 0.0f;
#pragma unroll 2
    for (unsigned i = threadIdx.x; i < (unsigned)K / 8; i += N_THREAD)
        ((uint4 *)xs)[i] = __ldcg((const uint4 *)a.w.x + i);
    __syncthreads();
    const uint8_t *x = xs + 128 * warp + 32 * (lane & 3);
    float c[4] = {}, d[4] = {}, *to = part + warp * 16 + lane / 4;
    int unit = warp; /* of the tile */
#pragma unroll 1
    for (int base = 0; base < (EARLY > 0 ? 1 : n); base += AHEAD) { /* once where some are expanded early */
        move(at, AHEAD);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (base + i >= n)
                break;
            while (unit >= n_unit) {
                tile_end(c, d, to, lane);
                unit -= n_unit;
                x -= 128 * n_unit;
            }
            multiply(c, d, i < EARLY ? early[i < EARLY ? i : 0] : expand_unit(w[i], sixteen), x);
            if (EARLY == 0 && base + i + AHEAD < n)
                w[i] = load_unit(at, i);
            unit += N_WARP;
            x += 128 * N_WARP;
        }
    }
    /* its last tile, and those behind it that this warp has nothing of */
    while (to < part + n_tile * TILE_FLOATS)
        tile_end(c, d, to, lane);
    __syncthreads();
    if (pairs)
        finish_pairs(m, part, lo * 16, n_tile, gate, up);
    else
        finish(a.w, part, lo * 16, n_tile, by, first_out);
}

/* ---- which ----------------------------------------------------------------------------------------- */

static int tiles_of_block(const struct packed_linear *w, const struct gpu_limits *limits)
{
    const int n_tile = (w->n_out + 15) / 16, grid = std::min(limits->n_sm, n_tile);
    return (n_tile + grid - 1) / grid;
}

static size_t room_bytes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return 2 * (size_t)w->K + (size_t)tiles_of_block(w, limits) * TILE_FLOATS * sizeof(float);
}

bool linear_single_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    const size_t own = 1024; /* what the kernel has of its own */
    return w->n_row == 1 && w->n_out >= 1 && w->K >= 64 && w->K % 64 == 0 &&
           room_bytes(w, limits) + own <= limits->shared_bytes;
}

template <int AHEAD, int EARLY>
static const char *start(const struct packed_linear *w, const struct op_place *at)
{
    const auto kernel = linear_single_kernel<AHEAD, EARLY>;
    const size_t bytes = room_bytes(w, at->limits);
    const int n_tile = (w->n_out + 15) / 16, grid = std::min(at->limits->n_sm, n_tile);
    const char *why = gpu_why(gpu_allow_shared(kernel, bytes));
    return why ? why
               : gpu_why(gpu_launch(kernel, (unsigned)grid, N_THREAD, bytes, at->stream,
                                    params<single_params>{{*w, n_tile / grid, n_tile % grid}}));
}

const char *linear_single_start(const struct packed_linear *w, const struct op_place *at)
{
    const int units = (tiles_of_block(w, at->limits) * (w->K / 64) + N_WARP - 1) / N_WARP; /* of a warp */
    return units <= 4 ? start<4, 2>(w, at) : units <= 6 ? start<6, 2>(w, at) : start<8, 0>(w, at);
}
