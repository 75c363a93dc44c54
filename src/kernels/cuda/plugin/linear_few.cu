/* A packed product with one row of x, of which a block's registers hold all weights before x is there: q, k
 * and v, or the output, of most models.
 *
 * What is left to do then takes as long as its code takes to come (docs/SPEED.md), so there is next to none:
 * the eight columns of the matrix instruction are eight tiles. Of a unit's product only its tile's column has
 * x and the others zeros, so no sum has to be put away before the end. */
#include "kernels/cuda/plugin/linear_row.cuh"

#define EARLY 2 /* units of a warp that are expanded before x is there, too */
#define TILES 8

struct few_params {
    struct single_params product;
    struct op_ahead ahead;
};

/* The block's part of what the kernel behind needs first. */
static __device__ __forceinline__ void ask_ahead(const op_ahead &ahead)
{
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll 1
        for (size_t at = 128 * ((size_t)threadIdx.x * gridDim.x + blockIdx.x); at < ahead.bytes[i];
             at += 128 * N_THREAD * (size_t)gridDim.x)
            gpu_prefetch((const uint8_t *)ahead.from[i] + at);
}

static __global__ void __launch_bounds__(N_THREAD + SPARED(EARLY), 1)
    linear_few_kernel(const params<few_params> all)
{
    gpu_let_next();
    const single_params &a = all.a.product;
    DYNAMIC_SHARED(memory);
    SHARED(float[N_WARP], unread);
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    params_fetch(all, &unread[warp], warp);
    const single_share share = share_of(a, warp);
    const int K = a.w.K, n_unit = share.n_unit, lo = share.first, n_tile = share.n_tile, n = share.n;
    uint8_t *xs = memory, *zeros = memory + 2 * K;
    float *part = (float *)(zeros + 128);

    output out = {nullptr, 0.0f, 0.0f}; /* its scale before weights, as in linear_single.cu */
    if ((int)threadIdx.x < 16 * n_tile)
        out = output_of(a.w, lo * 16 + threadIdx.x);
    const uint8_t *own = a.w.weight + ((int64_t)lo * n_unit + warp) * CUDA_UNIT_BYTES;
    const unit_place at = {own + 16 * lane, scales_at(own, lane)};
    unit_words w[FEW_UNITS] = {};
#pragma unroll
    for (int i = 0; i < FEW_UNITS; i++)
        if (i < n)
            w[i] = load_unit(at, i);
    ask_ahead(all.a.ahead);
    if (threadIdx.x < 8)
        ((uint4 *)zeros)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    const uint32_t sixteen = 16 * gridDim.y; /* grids here are lines */
    unit_expanded early[EARLY];
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        early[i] = expand_unit(w[i], sixteen);
    gpu_wait_before();

#pragma unroll 1
    for (unsigned i = threadIdx.x; i < (unsigned)K / 8; i += N_THREAD)
        ((uint4 *)xs)[i] = __ldcg((const uint4 *)a.w.x + i);
    __syncthreads();
    float c[4] = {}, d[4] = {};
    int k = warp, column = lane / 4; /* of x; before this lane's tile it is more than 0, behind it less */
#pragma unroll
    for (int i = 0; i < FEW_UNITS; i++) {
        if (i >= n)
            break;
        if (k >= n_unit) { /* never twice: a tile has N_WARP units at least */
            k -= n_unit;
            column--;
        }
        multiply(c, d, i < EARLY ? early[i < EARLY ? i : 0] : expand_unit(w[i], sixteen),
                 (column ? zeros : xs + 128 * k) + 32 * (lane & 3));
        k += N_WARP;
    }
    /* rows g and g + 8 of tiles 2q and 2q + 1 */
    const int tile = lane % 4 * 2;
    float *to = part + tile * TILE_FLOATS + warp * 16 + lane / 4;
    if (tile < n_tile) {
        to[0] = c[0] + d[0];
        to[8] = c[2] + d[2];
    }
    if (tile + 1 < n_tile) {
        to[TILE_FLOATS] = c[1] + d[1];
        to[TILE_FLOATS + 8] = c[3] + d[3];
    }
    __syncthreads();
    output_put(out, part, threadIdx.x);
}

bool linear_few_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return units_of_warp(w, limits) <= FEW_UNITS && w->K >= 64 * N_WARP &&
           tiles_of_block(w, limits) <= TILES && !is_half(w);
}

const char *linear_few_start(const struct packed_linear *w, const struct op_place *at)
{
    const size_t bytes = row_room_bytes(w, at->limits) + 128;
    const int n_tile = (w->n_out + 15) / 16, grid = std::min(at->limits->n_sm, n_tile);
    const char *why = gpu_why(gpu_allow_shared(linear_few_kernel, bytes));
    return why ? why
               : gpu_why(gpu_launch(linear_few_kernel, (unsigned)grid, N_THREAD, bytes, at->stream,
                                    params<few_params>{{{*w, n_tile / grid, n_tile % grid}, at->ahead}}));
}
