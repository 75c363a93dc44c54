/* Products with plain matrices of any type and size, in fp32: few rows with a warp an output, many with tiles
 * in shared memory; and which kernel a linear operator takes. */
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/plugin/cublaslt.h"
#include "kernels/cuda/plugin/dense.cuh"
#include "kernels/cuda/plugin/prefill.cuh"

#define ROWS      8 /* that a warp multiplies its row of weights with */
#define WARPS     4
#define TILE      64 /* rows and outputs of a block */
#define TILE_K    16
#define TILE_ROWS 512 /* from so many rows on */
#define VECTOR    8   /* elements of a row that a lane takes at once, where K is a multiple of that */

static __device__ __forceinline__ float x_at(const dense &a, size_t row, int k)
{
    return a.x ? bf16_float(a.x[row * a.K + k]) : a.x_float[row * a.K + k];
}

static __device__ __forceinline__ void put(const cuda_linear_part &p, int row, int o, float sum)
{
    p.out[(size_t)row * p.n_out + o] = sum * *p.w.scale + (p.bias ? p.bias[o] : 0.0f);
}

/* VECTOR elements of a row of x. */
static __device__ __forceinline__ void x_vector(const dense &a, size_t row, int k, float (&x)[VECTOR])
{
    if (a.x) {
        const uint4 v = *(const uint4 *)(a.x + row * a.K + k);
        const uint32_t pair[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            x[i] = i % 2 ? bf16_high(pair[i / 2]) : bf16_low(pair[i / 2]);
        return;
    }
    const float4 *from = (const float4 *)(a.x_float + row * a.K + k);
    const float4 u = from[0], v = from[1];
    x[0] = u.x, x[1] = u.y, x[2] = u.z, x[3] = u.w, x[4] = v.x, x[5] = v.y, x[6] = v.z, x[7] = v.w;
}

/* grid: (outputs / WARPS, rows / ROWS, parts). WIDE: K is a multiple of VECTOR. */
template <int TYPE, bool WIDE> static __global__ void __launch_bounds__(32 * WARPS) rows_kernel(const dense a)
{
    gpu_wait_before();
    gpu_let_next();
    const cuda_linear_part &p = a.part[blockIdx.z];
    const int lane = threadIdx.x % 32, o = blockIdx.x * WARPS + threadIdx.x / 32, row = blockIdx.y * ROWS;
    const int n = min(ROWS, OP_COUNT(a.count, a.n_row) - row), step = WIDE ? VECTOR : 1;
    if (o >= p.n_out || n <= 0)
        return;
    float sum[ROWS] = {};
#pragma unroll 4
    for (int k = step * lane; k < a.K; k += step * 32) {
        float w[VECTOR], x[VECTOR];
        if (WIDE)
            weight_vector<TYPE>(p.w, (size_t)o, a.K, k, w);
        else
            w[0] = weight_at<TYPE>(p.w, (size_t)o, a.K, k);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= n)
                continue;
            if (WIDE)
                x_vector(a, (size_t)(row + r), k, x);
            else
                x[0] = x_at(a, (size_t)(row + r), k);
#pragma unroll
            for (int i = 0; i < step; i++)
                sum[r] = fmaf(w[i], x[i], sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float whole = warp_sum(sum[r]);
        if (lane == 0 && r < n)
            put(p, row + r, o, whole);
    }
}

/* grid: (outputs / TILE, rows / TILE, parts), 16 x 16 threads of 4 x 4 sums each. */
template <int TYPE> static __global__ void __launch_bounds__(256) tile_kernel(const dense a)
{
    SHARED(float[TILE_K][TILE + 4], xs);
    SHARED(float[TILE_K][TILE + 4], ws);
    gpu_wait_before();
    gpu_let_next();
    const cuda_linear_part &p = a.part[blockIdx.z];
    const int row0 = blockIdx.y * TILE, o0 = blockIdx.x * TILE, n_row = OP_COUNT(a.count, a.n_row);
    if (row0 >= n_row || o0 >= p.n_out)
        return;
    const int i = threadIdx.x % 16, j = threadIdx.x / 16;
    float sum[4][4] = {};
    for (int k0 = 0; k0 < a.K; k0 += TILE_K) {
        for (int e = threadIdx.x; e < TILE * TILE_K; e += 256) {
            const int k = e % TILE_K, r = e / TILE_K, at = k0 + k;
            xs[k][r] = at < a.K && row0 + r < n_row ? x_at(a, (size_t)(row0 + r), at) : 0.0f;
            ws[k][r] = at < a.K && o0 + r < p.n_out ? weight_at<TYPE>(p.w, (size_t)(o0 + r), a.K, at) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE_K; k++) {
            const float4 x = *(const float4 *)&xs[k][4 * j], w = *(const float4 *)&ws[k][4 * i];
            const float xr[4] = {x.x, x.y, x.z, x.w}, wr[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int m = 0; m < 16; m++)
                sum[m / 4][m % 4] = fmaf(xr[m / 4], wr[m % 4], sum[m / 4][m % 4]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < 16; m++) {
        const int row = row0 + 4 * j + m / 4, o = o0 + 4 * i + m % 4;
        if (row < n_row && o < p.n_out)
            put(p, row, o, sum[m / 4][m % 4]);
    }
}

template <int TYPE> static const char *start(const dense &d, cudaStream_t stream)
{
    int widest = 0;
    for (int i = 0; i < d.n_part; i++)
        widest = d.part[i].n_out > widest ? d.part[i].n_out : widest;
    if (d.n_row >= TILE_ROWS) {
        const dim3 grid((unsigned)(widest + TILE - 1) / TILE, (unsigned)(d.n_row + TILE - 1) / TILE,
                        (unsigned)d.n_part);
        return gpu_why(gpu_launch(tile_kernel<TYPE>, grid, 256, 0, stream, d));
    }
    const dim3 grid((unsigned)(widest + WARPS - 1) / WARPS, (unsigned)(d.n_row + ROWS - 1) / ROWS,
                    (unsigned)d.n_part);
    if (d.K % VECTOR == 0)
        return gpu_why(gpu_launch(rows_kernel<TYPE, true>, grid, 32 * WARPS, 0, stream, d));
    return gpu_why(gpu_launch(rows_kernel<TYPE, false>, grid, 32 * WARPS, 0, stream, d));
}

const char *dense_start(const struct dense *d, const struct op_place *at)
{
    const char *why = nullptr;
    if (d->K < 1 || d->n_row < 1 || d->n_part < 1 || d->n_part > CUDA_PARTS_MAX || (!d->x && !d->x_float))
        return "linear: no rows or columns";
    if (d->part[0].w.type == CUDA_NVFP4 && d->K % 16)
        return "linear: rows of NVFP4 are a multiple of 16";
#define CALL(T) start<T>(*d, at->stream)
    WEIGHT_SWITCH(why, d->part[0].w.type, CALL)
#undef CALL
    return why;
}

/* ---- the operator ------------------------------------------------------------------------------------ */

/* The matrix that part `first` begins: with those that follow it in memory, up to where one does not. */
static struct packed_linear packed_from(const struct cuda_op *op, int first)
{
    const struct cuda_linear *l = &op->as.linear;
    struct packed_linear w = {};
    w.weight = l->part[first].w.data;
    w.x = l->x;
    w.n_row = op->n_row;
    w.K = l->K;
    for (int i = first; i < l->n_part; i++) {
        const struct cuda_linear_part *p = &l->part[i];
        const size_t before = (size_t)(w.n_out / 16) * (size_t)(l->K / CUDA_UNIT_K) * CUDA_UNIT_BYTES;
        if (w.n_out % 16 || p->w.data != w.weight + before)
            break;
        w.part[w.n_part++] = {p->w.scale, p->bias, p->out, w.n_out, p->n_out};
        w.n_out += p->n_out;
    }
    return w;
}

/* Where sharing out K pays: in weights up to which it does (beyond, their streams are what counts), and in
 * outputs, if there are more than 32 rows (docs/SPEED.md). */
#define SPLIT_BYTES ((size_t)24 << 20)
#define SPLIT_OUT   2560
#define RING_BYTES  ((size_t)40 << 20) /* see takes_wgmma */

static size_t packed_bytes(const struct packed_linear *w)
{
    return (size_t)(w->n_out + 15) / 16 * (size_t)(w->K / CUDA_UNIT_K) * CUDA_UNIT_BYTES;
}

/* Rows that the kernel for few with K shared out takes at once; 0: another is to be taken. */
static int split_rows(const struct packed_linear *w, const struct gpu_limits *limits)
{
    const int most = packed_bytes(w) <= SPLIT_BYTES || !linear_takes(w, limits)
                         ? linear_split_rows(w->n_out, w->K, limits)
                         : 0;
    return w->n_out <= SPLIT_OUT ? most : most < CUDA_ROWS_MAX ? most : CUDA_ROWS_MAX;
}

/* The kernel by wgmma is the fastest of those for few rows, but for up to 16 rows and so many weights that
 * the streams of the one with a ring are what counts (docs/SPEED.md). */
static bool takes_wgmma(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return linear_wgmma_takes(w, limits) &&
           (w->n_row > 16 || packed_bytes(w) <= RING_BYTES || !linear_takes(w, limits));
}

/* Rows [row, row + n_row) of all. */
static struct packed_linear packed_rows(const struct packed_linear *all, int row, int n_row)
{
    struct packed_linear w = *all;
    w.n_row = n_row;
    w.x += (size_t)row * (size_t)w.K;
    for (int i = 0; i < w.n_part; i++)
        w.part[i].out += (size_t)row * (size_t)w.part[i].n_out;
    return w;
}

/* More rows than the kernel by wgmma takes at once, in two halves: the one for many has a tile's whole K in a
 * block, which takes longer than both where K is long and outputs are few (docs/SPEED.md). */
static bool takes_halves(const struct packed_linear *w, const struct gpu_limits *limits)
{
    const struct packed_linear half = packed_rows(w, 0, (w->n_row + 1) / 2);
    return w->n_row > 2 * CUDA_ROWS_MAX && w->n_out <= w->K && takes_wgmma(&half, limits);
}

/* By the kernels for few rows, so many at a time. */
static const char *packed_few(const struct packed_linear *all, const struct op_place *at)
{
    if (linear_single_takes(all, at->limits))
        return linear_single_start(all, at);
    const bool halves = takes_halves(all, at->limits), wgmma = halves || takes_wgmma(all, at->limits);
    const int split = wgmma ? 0 : split_rows(all, at->limits);
    const int most = halves ? (all->n_row + 1) / 2 : wgmma ? all->n_row : split ? split : CUDA_ROWS_MAX;
    for (int row = 0; row < all->n_row; row += most) {
        const struct packed_linear w =
            packed_rows(all, row, all->n_row - row < most ? all->n_row - row : most);
        const char *why = wgmma   ? linear_wgmma_start(&w, at)
                          : split ? linear_split_start(&w, at)
                                  : linear_start(&w, at->limits, at->stream);
        if (why)
            return why;
    }
    return nullptr;
}

/* There are many rows, or rows too long for the shared memory of the kernels for few. */
static bool takes_many(const struct packed_linear *w, const struct gpu_limits *limits)
{
    if (!prefill_linear_takes(w, limits) || linear_single_takes(w, limits) || takes_wgmma(w, limits) ||
        takes_halves(w, limits))
        return false;
    if (w->n_row > 2 * CUDA_ROWS_MAX)
        return true;
    const int split = split_rows(w, limits);
    return w->n_row > (split ? split : CUDA_ROWS_MAX) || (!split && !linear_takes(w, limits));
}

bool linear_op_is_prefill(const struct cuda_op *op, const struct gpu_limits *limits)
{
    const struct packed_linear w = packed_from(op, 0);
    return op->as.linear.part[0].w.type == CUDA_NVFP4_PACKED && takes_many(&w, limits);
}

static const char *packed(const struct cuda_op *op, const struct op_place *at)
{
    for (int i = 0; i < op->as.linear.n_part;) {
        const struct packed_linear w = packed_from(op, i);
        const char *why = takes_many(&w, at->limits)
                              ? prefill_linear_start(&w, i == 0, at->scratch, at->limits, at->stream)
                              : packed_few(&w, at);
        if (why)
            return why;
        i += w.n_part;
    }
    return nullptr;
}

size_t linear_op_scratch(const struct cuda_op *op)
{
    const struct cuda_linear *l = &op->as.linear;
    if (l->part[0].w.type == CUDA_NVFP4_TILED)
        return lt_linear_scratch(op);
    return l->part[0].w.type == CUDA_NVFP4_PACKED ? prefill_linear_bytes(op->n_row, l->K) : 0;
}

const char *linear_op_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_linear *l = &op->as.linear;
    struct dense d = {};
    if (l->n_part < 1 || l->n_part > CUDA_PARTS_MAX)
        return "linear: 1 to 3 matrices";
    for (int i = 0; i < l->n_part; i++) {
        d.part[i] = l->part[i];
        if (l->part[i].w.type != l->part[0].w.type)
            return "linear: matrices of different types";
        if (l->part[i].n_out < 1)
            return "linear: a matrix without outputs";
    }
    if (l->part[0].w.type == CUDA_NVFP4_PACKED)
        return l->x ? packed(op, at) : "linear: packed weights take bf16 rows";
    if (l->part[0].w.type == CUDA_NVFP4_TILED)
        return lt_linear_start(op, at);
    d.n_part = l->n_part;
    d.K = l->K;
    d.x = l->x;
    d.x_float = l->x_float;
    d.count = op->count;
    d.n_row = op->n_row;
    if (dense_stream_takes(&d, at->limits))
        return dense_stream_start(&d, at);
    if (prefill_bf16_takes(&d, at->limits))
        return prefill_bf16_start(&d, at);
    if (dense_tile_takes(&d))
        return dense_tile_start(&d, at);
    return dense_start(&d, at);
}
