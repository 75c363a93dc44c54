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
#include "kernels/cuda/plugin/linear_row.cuh"

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

/* The block's tiles from row lo on. by: what all sums are multiplied with; first: of this thread's first
 * output, which is its only one where PLAIN. All threads. */
template <bool PLAIN>
static __device__ __forceinline__ void finish(const packed_linear &w, const float *part, int lo, int n_tile,
                                              float by, const output &first)
{
    if (PLAIN)
        output_put(first, part, threadIdx.x);
#pragma unroll 1
    for (int i = threadIdx.x; !PLAIN && i < 16 * n_tile; i += N_THREAD) {
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

/* AHEAD: of a warp's units, and EARLY of them are expanded before x is there, too. PLAIN: not half of an MLP,
 * and a thread has one output at most; it takes less code, and so few registers that the norm before it,
 * which is one block, leaves room for one of these. */
template <int AHEAD, int EARLY, bool PLAIN>
static __global__ void __launch_bounds__(N_THREAD + SPARED(EARLY), 1)
    linear_single_kernel(const params<single_params> all)
{
    gpu_let_next();
    const single_params &a = all.a;
    DYNAMIC_SHARED(memory);
    SHARED(float[N_WARP], unread);
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    params_fetch(all, &unread[warp], warp);
    const single_share share = share_of(a, warp);
    const int K = a.w.K, n_unit = share.n_unit, lo = share.first, n_tile = share.n_tile, n = share.n;
    uint8_t *xs = memory;
    float *part = (float *)(xs + 2 * K);

    /* Scales before weights, behind which a block that begins late would wait for them. */
    const packed_mlp &m = a.w.mlp;
    const bool pairs = !PLAIN && m.h != nullptr;
    output first_out = {nullptr, 0.0f, 0.0f};
    float gate = 0.0f, up = 0.0f, by = 1.0f;
    if (pairs) {
        gate = *m.gate_scale * CUDA_SCALE_BACK;
        up = *m.up_scale * CUDA_SCALE_BACK;
    } else if ((int)threadIdx.x < 16 * n_tile) {
        first_out = output_of(a.w, lo * 16 + threadIdx.x);
    }
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
    const uint32_t sixteen = 16 * gridDim.y; /* grids here are lines */
    unit_expanded early[EARLY > 0 ? EARLY : 1];
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        early[i] = expand_unit(w[i], sixteen);
    gpu_wait_before();

    if (!PLAIN && m.weight) /* this half of an MLP counts for a row of the id 0 */
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
        finish<PLAIN>(a.w, part, lo * 16, n_tile, by, first_out);
}

/* ---- which ----------------------------------------------------------------------------------------- */

bool linear_single_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    const size_t own = 1024; /* what the kernel has of its own */
    return w->n_row == 1 && w->n_out >= 1 && w->K >= 64 && w->K % 64 == 0 &&
           row_room_bytes(w, limits) + own <= limits->shared_bytes;
}

template <int AHEAD, int EARLY, bool PLAIN>
static const char *start(const struct packed_linear *w, const struct op_place *at)
{
    const auto kernel = linear_single_kernel<AHEAD, EARLY, PLAIN>;
    const size_t bytes = row_room_bytes(w, at->limits);
    const int n_tile = (w->n_out + 15) / 16, grid = std::min(at->limits->n_sm, n_tile);
    const char *why = gpu_why(gpu_allow_shared(kernel, bytes));
    return why ? why
               : gpu_why(gpu_launch(kernel, (unsigned)grid, N_THREAD, bytes, at->stream,
                                    params<single_params>{{*w, n_tile / grid, n_tile % grid}}));
}

const char *linear_single_start(const struct packed_linear *w, const struct op_place *at)
{
    if (linear_few_takes(w, at->limits))
        return linear_few_start(w, at);
    const bool plain = !is_half(w) && 16 * tiles_of_block(w, at->limits) <= N_THREAD;
    return plain                                       ? start<8, 0, true>(w, at)
           : units_of_warp(w, at->limits) <= FEW_UNITS ? start<FEW_UNITS, 2, false>(w, at)
                                                       : start<8, 0, false>(w, at);
}
