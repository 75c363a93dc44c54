/* A layer of experts with tiled NVFP4: pairs of a row and an expert are sorted by expert, rows are quantized
 * in that order, and cuBLASLt multiplies the rows of each expert that any of them chose, one product after
 * the other. How many rows that are is known on the device only, so the host waits for it: these operators
 * cannot be recorded as a graph.
 *
 * The rows of an expert begin at a multiple of 128, as the tiles of their scales do. */
#include <algorithm>

#include "kernels/cuda/plugin/cublaslt.h"
#include "kernels/cuda/plugin/operators.h"

#define THREADS   256
#define WARPS     (THREADS / 32)
#define PAIRS_MAX (1 << 24) /* of a row and an expert */

/* ---- sorting --------------------------------------------------------------------------------------- */

/* Where the sorted rows are. */
struct sorted {
    int32_t *n_of;    /* [n_expert] rows                              */
    int32_t *pair_of; /* [sorted row] row * n_used + choice; below zero: padding */
    int32_t *expert;  /* [sorted row]                                 */
    int32_t *row_of;  /* [pair]; not written where it has no expert   */
};

static __device__ __forceinline__ bool is_of(const cuda_moe_w4a4 &a, int pair, int n_real, int e)
{
    return pair < n_real * a.n_used && a.id[pair] == e;
}

/* A block an expert. */
static __global__ void __launch_bounds__(THREADS)
    count_kernel(const cuda_moe_w4a4 a, const int32_t *count, int n_row, int32_t *n_of)
{
    SHARED(int[WARPS], of_warp);
    gpu_wait_before();
    const int e = (int)blockIdx.x, n_real = OP_COUNT(count, n_row), n_pair = n_real * a.n_used;
    int n = 0; /* of the warp */
    for (int base = 0; base < n_pair; base += THREADS)
        n += __popc(__ballot_sync(ALL_LANES, is_of(a, base + (int)threadIdx.x, n_real, e)));
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = n;
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += of_warp[w];
        n_of[e] = sum;
    }
}

/* The same blocks: pairs keep their order. */
static __global__ void __launch_bounds__(THREADS)
    place_kernel(const cuda_moe_w4a4 a, const int32_t *count, int n_row, const sorted s)
{
    SHARED(int[WARPS], of_warp);
    gpu_wait_before();
    const int e = (int)blockIdx.x, n_real = OP_COUNT(count, n_row), n_pair = n_real * a.n_used;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int first = 0, done = 0;
    for (int i = 0; i < e; i++)
        first += (int)cuda_tiled_up((size_t)s.n_of[i], CUDA_TILE_ROWS);
    for (int base = 0; base < n_pair; base += THREADS) {
        const int pair = base + (int)threadIdx.x;
        const bool mine = is_of(a, pair, n_real, e);
        const unsigned all = __ballot_sync(ALL_LANES, mine);
        if (lane == 0)
            of_warp[warp] = __popc(all);
        __syncthreads();
        int before = done + __popc(all & ((1u << lane) - 1u));
        for (int w = 0; w < WARPS; w++) {
            before += w < warp ? of_warp[w] : 0;
            done += of_warp[w];
        }
        if (mine) {
            s.pair_of[first + before] = pair;
            s.row_of[pair] = first + before;
        }
        __syncthreads(); /* of_warp is free again */
    }
    const int end = (int)cuda_tiled_up((size_t)done, CUDA_TILE_ROWS);
    for (int i = (int)threadIdx.x; i < end; i += THREADS) {
        s.expert[first + i] = e;
        if (i >= done)
            s.pair_of[first + i] = -1;
    }
}

/* out[t] = sum of weight * y over the choices of row t, in order. grid: (rows, outputs) */
static __global__ void __launch_bounds__(THREADS)
    sum_kernel(const cuda_moe_w4a4 a, const int32_t *count, int n_row, const int32_t *row_of, const float *y)
{
    gpu_wait_before();
    gpu_let_next();
    const int t = (int)blockIdx.x, o = (int)(blockIdx.y * THREADS + threadIdx.x);
    if (t >= OP_COUNT(count, n_row) || o >= a.hidden)
        return;
    float sum = 0.0f;
    for (int j = 0; j < a.n_used; j++) {
        const int pair = t * a.n_used + j, e = a.id[pair];
        if (e >= 0 && e < a.n_expert)
            sum = fmaf(a.weight[pair], y[(size_t)row_of[pair] * (size_t)a.hidden + (size_t)o], sum);
    }
    a.out[(size_t)t * (size_t)a.hidden + (size_t)o] = sum;
}

/* ---- memory ---------------------------------------------------------------------------------------- */

struct room {
    struct sorted sorted;
    struct quantized x[2], h; /* the rows for gate and for up, and what goes into down */
    float *gate, *up, *y;     /* y lies where gate and up were */
};

struct taking {
    uint8_t *base;
    size_t used;
};

static uint8_t *take(struct taking *t, size_t bytes)
{
    uint8_t *p = t->base + t->used;
    t->used += cuda_tiled_up(bytes, 256);
    return p;
}

static void take_quantized(struct taking *t, struct quantized *q, size_t rows, int K)
{
    q->codes = take(t, cuda_tiled_code_bytes(rows, (size_t)K));
    q->scales = take(t, cuda_tiled_scale_bytes(rows, (size_t)K));
}

static size_t place(const struct cuda_op *op, uint8_t *base, struct room *r)
{
    const struct cuda_moe_w4a4 *a = &op->as.moe_w4a4;
    const size_t n_pair = (size_t)op->n_row * (size_t)a->n_used, E = (size_t)a->n_expert;
    const size_t most = n_pair + (CUDA_TILE_ROWS - 1) * std::min(n_pair, E);
    const size_t rows = most / CUDA_TILE_ROWS * CUDA_TILE_ROWS, inner = (size_t)a->inner,
                 hidden = (size_t)a->hidden;
    struct taking t = {base, 0};
    r->sorted.n_of = (int32_t *)take(&t, E * sizeof(int32_t));
    r->sorted.pair_of = (int32_t *)take(&t, rows * sizeof(int32_t));
    r->sorted.expert = (int32_t *)take(&t, rows * sizeof(int32_t));
    r->sorted.row_of = (int32_t *)take(&t, n_pair * sizeof(int32_t));
    for (int i = 0; i < 2; i++)
        take_quantized(&t, &r->x[i], rows, a->hidden);
    take_quantized(&t, &r->h, rows, a->inner);
    r->gate = (float *)take(&t, rows * std::max(2 * inner, hidden) * sizeof(float));
    r->up = r->gate + rows * inner;
    r->y = r->gate;
    return t.used;
}

size_t lt_moe_scratch(const struct cuda_op *op)
{
    struct room r;
    return place(op, nullptr, &r);
}

const char *lt_moe_check(const struct cuda_op *op)
{
    const struct cuda_moe_w4a4 *a = &op->as.moe_w4a4;
    if (a->n_expert < 1 || a->n_expert > CUDA_EXPERTS_MAX)
        return "number of experts not in 1 to 512";
    if (a->hidden < 16 || a->inner < 16 || a->hidden % 16 || a->inner % 16)
        return "hidden or inner size not a multiple of 16";
    if (a->n_used < 1 || op->n_row > PAIRS_MAX / a->n_used)
        return "more than 16777216 pairs of a row and an expert";
    return nullptr;
}

/* ---- products -------------------------------------------------------------------------------------- */

/* So that shapes, which cuBLASLt is asked about once each, stay few; the rows behind are padding. */
static int rounded(int n)
{
    const int to[] = {1, 2, 4, 8, 16, 32, 48, 64, 96, CUDA_TILE_ROWS};
    for (int one : to)
        if (n <= one)
            return one;
    return (int)cuda_tiled_up((size_t)n, CUDA_TILE_ROWS);
}

/* The rows of an expert, from `first` on, with its matrix of n_out rows. */
static const char *multiply(const struct cuda_weight *w, int e, const struct quantized *x, float *d,
                            int first, int n, int n_out, int K, const struct op_place *at)
{
    const size_t k = (size_t)K, m = (size_t)n_out, row = (size_t)first;
    const struct lt_product p = {.w = w->data + (size_t)e * cuda_tiled_code_bytes(m, k),
                                 .w_scale = w->block + (size_t)e * cuda_tiled_scale_bytes(m, k),
                                 .x = x->codes + row * (cuda_tiled_row(k) / 2),
                                 .x_scale = x->scales + cuda_tiled_scale_at(row, 0, k),
                                 .alpha = w->scale + 2 * e,
                                 .d = d + row * m,
                                 .m = n_out,
                                 .n = rounded(n),
                                 .K = (int)cuda_tiled_row(k),
                                 .ld = n_out};
    return lt_product_start(at->lt, &p, at->stream);
}

static const char *multiply_all(const struct cuda_op *op, const struct room *r, bool down,
                                const struct op_place *at)
{
    const struct cuda_moe_w4a4 *a = &op->as.moe_w4a4;
    const int32_t *n_of = lt_counts(at->lt);
    const char *why = nullptr;
    for (int e = 0, first = 0; e < a->n_expert && !why; e++) {
        if (n_of[e] == 0)
            continue;
        if (down) {
            why = multiply(&a->down, e, &r->h, r->y, first, n_of[e], a->hidden, a->inner, at);
        } else {
            why = multiply(&a->gate, e, &r->x[0], r->gate, first, n_of[e], a->inner, a->hidden, at);
            why = why ? why : multiply(&a->up, e, &r->x[1], r->up, first, n_of[e], a->inner, a->hidden, at);
        }
        first += (int)cuda_tiled_up((size_t)n_of[e], CUDA_TILE_ROWS);
    }
    return why;
}

/* Sorted rows in all, once the device has counted; below zero: `why` says why not. */
static int sort(const struct cuda_op *op, const struct room *r, const struct op_place *at, const char **why)
{
    const struct cuda_moe_w4a4 *a = &op->as.moe_w4a4;
    int32_t *n_of = lt_counts(at->lt);
    const unsigned E = (unsigned)a->n_expert;
    cudaError_t e =
        gpu_launch(count_kernel, E, THREADS, 0, at->stream, *a, op->count, op->n_row, r->sorted.n_of);
    if (e == cudaSuccess)
        e = gpu_launch(place_kernel, E, THREADS, 0, at->stream, *a, op->count, op->n_row, r->sorted);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(n_of, r->sorted.n_of, E * sizeof(int32_t), cudaMemcpyDeviceToHost, at->stream);
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(at->stream);
    *why = gpu_why(e);
    if (*why)
        return -1;
    size_t rows = 0;
    for (unsigned i = 0; i < E; i++)
        rows += cuda_tiled_up((size_t)n_of[i], CUDA_TILE_ROWS);
    return (int)rows;
}

/* The rows for gate and up, or what goes into down: silu(gate) * up. */
static const char *quantize_all(const struct cuda_op *op, const struct room *r, bool down, int n_row,
                                const struct op_place *at)
{
    const struct cuda_moe_w4a4 *a = &op->as.moe_w4a4;
    struct quantize q = {};
    q.x_float = down ? r->up : a->x;
    q.gate = down ? r->gate : nullptr;
    q.source = r->sorted.pair_of;
    q.expert = r->sorted.expert;
    q.K = down ? a->inner : a->hidden;
    q.n_row = n_row;
    q.n_used = a->n_used;
    q.n_part = down ? 1 : 2;
    q.part[0] = down ? r->h : r->x[0];
    q.part[1] = r->x[1];
    q.part[0].input = (down ? a->down.scale : a->gate.scale) + 1;
    q.part[1].input = a->up.scale + 1;
    return quantize_start(&q, at->stream);
}

const char *lt_moe_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_moe_w4a4 *a = &op->as.moe_w4a4;
    struct room r;
    if (!at->lt)
        return "moe: tiled weights, and cuBLASLt is not open";
    const char *why = lt_moe_check(op);
    if (why)
        return why;
    place(op, at->scratch, &r);
    const int n_row = sort(op, &r, at, &why);
    for (int down = 0; down < 2 && n_row > 0 && !why; down++) {
        why = quantize_all(op, &r, down, n_row, at);
        why = why ? why : multiply_all(op, &r, down, at);
    }
    if (why)
        return why;
    const dim3 grid((unsigned)op->n_row, (unsigned)(a->hidden + THREADS - 1) / THREADS);
    return gpu_why(gpu_launch(sum_kernel, grid, THREADS, 0, at->stream, *a, op->count, op->n_row,
                              (const int32_t *)r.sorted.row_of, (const float *)r.y));
}
