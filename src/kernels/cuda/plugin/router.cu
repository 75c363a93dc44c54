/* The choice of experts: logits as products of fp32, then a warp a token (route.cuh). One launch where rows
 * are few (the block that ends last chooses) and where they are many (a block has all logits of its rows). In
 * between experts are spread over blocks, so that many SMs read weights, and of those that have the same rows
 * the one that ends last chooses. */
#include <algorithm>

#include "kernels/cuda/plugin/dense.cuh"
#include "kernels/cuda/plugin/route.cuh"

#define WARPS          4
#define FEW            8   /* rows of the kernel for few */
#define SPREAD         256 /* of the one between, at most: sixteen blocks of rows */
#define SPREAD_WARPS   16  /* there: they share out K, and take a row each */
#define SPREAD_EXPERTS 16  /* of a block there */
#define MANY_WARPS     8   /* of the one for many: they share out K */
#define MANY_ROWS      16  /* of a block there */
#define PASS           128 /* experts at once there */
#define STEP           32  /* k of a step there */

static __global__ void __launch_bounds__(32 * WARPS)
    route_kernel(const cuda_router a, const int32_t *count, int n_row)
{
    SHARED(route_room[WARPS], room);
    gpu_wait_before();
    gpu_let_next();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = blockIdx.x * WARPS + warp;
    if (t >= n_row)
        return;
    if (t < OP_COUNT(count, n_row))
        route_row(a, t, a.logits + (size_t)t * a.n_expert, room[warp], lane);
    else
        route_nothing(a, t, lane);
}

/* ---- few rows -------------------------------------------------------------------------------------- */

/* A warp an expert. K is a multiple of 8. The block that ends last has all logits. */
template <int TYPE>
static __global__ void __launch_bounds__(32 * WARPS)
    few_kernel(const cuda_router a, const int32_t *count, int n_row, uint32_t *arrived)
{
    SHARED(route_room[WARPS], room);
    SHARED(uint32_t, before);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, e = blockIdx.x * WARPS + warp;
    const float scale = *a.w.scale;
    const size_t row_bytes = (size_t)a.K *
                             (TYPE == CUDA_F32                        ? 4
                              : TYPE == CUDA_BF16 || TYPE == CUDA_F16 ? 2
                                                                      : 1) /
                             (TYPE == CUDA_NVFP4 ? 2 : 1);
    if (e < a.n_expert) /* weights do not change: they may be on their way before x is there */
        for (size_t i = 128 * (size_t)lane; i < row_bytes; i += 128 * 32)
            gpu_prefetch(a.w.data + (size_t)e * row_bytes + i);
    gpu_wait_before();
    gpu_let_next();
    const int n = OP_COUNT(count, n_row);
    if (e < a.n_expert) {
        float sum[FEW] = {};
#pragma unroll 4
        for (int k = 8 * lane; k < a.K; k += 8 * 32) {
            float w[8];
            weight_vector<TYPE>(a.w, (size_t)e, a.K, k, w);
#pragma unroll
            for (int r = 0; r < FEW; r++) {
                if (r >= n)
                    continue;
                const float4 *x = (const float4 *)(a.x + (size_t)r * a.K + k);
                const float4 u = x[0], v = x[1];
                sum[r] = fmaf(w[0], u.x, fmaf(w[1], u.y, fmaf(w[2], u.z, fmaf(w[3], u.w, sum[r]))));
                sum[r] = fmaf(w[4], v.x, fmaf(w[5], v.y, fmaf(w[6], v.z, fmaf(w[7], v.w, sum[r]))));
            }
        }
#pragma unroll
        for (int r = 0; r < FEW; r++)
            if (r < n) {
                const float whole = warp_sum(sum[r]) * scale;
                if (lane == 0)
                    __stcg(&a.logits[(size_t)r * a.n_expert + e], whole);
            }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        before = atomicAdd(arrived, 1u);
    __syncthreads();
    if (before + 1 < gridDim.x)
        return;
    __threadfence();
    if (threadIdx.x == 0)
        *arrived = 0; /* for the next launch */
    for (int t = warp; t < n_row; t += WARPS) {
        if (t < n)
            route_row(a, t, a.logits + (size_t)t * a.n_expert, room[warp], lane);
        else
            route_nothing(a, t, lane);
    }
}

/* ---- many rows ------------------------------------------------------------------------------------- */

/* A number as three of bf16 whose sum it is, but for what lies 2^-27 below it: products with bf16 weights are
 * then as exact as in fp32. */
struct thirds {
    uint32_t part[3]; /* pairs */
};
static __device__ __forceinline__ thirds split(float low, float high)
{
    thirds s;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        s.part[i] = float_bf16_pair(low, high);
        low -= bf16_low(s.part[i]);
        high -= bf16_high(s.part[i]);
    }
    return s;
}

/* What a step of 32 k takes of two rows of x, g and g + 8, and of EIGHTS experts. A lane of a group of four
 * has 8 k that lie side by side, for two steps of the instruction. */
template <int EIGHTS> struct step_operands {
    float4 x[2][2];
    uint4 w[EIGHTS];
};

template <int EIGHTS>
static __device__ __forceinline__ step_operands<EIGHTS>
load_step(const cuda_router &a, const float *const (&x)[2], int first, int s, int lane)
{
    const int g = lane / 4, k = s * STEP + 8 * (lane % 4);
    step_operands<EIGHTS> o;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        o.x[h][0] = *(const float4 *)(x[h] + k);
        o.x[h][1] = *(const float4 *)(x[h] + k + 4);
    }
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) { /* experts beyond the end repeat the last */
        const int e = min(first + 8 * j + g, a.n_expert - 1);
        o.w[j] = *(const uint4 *)((const uint16_t *)a.w.data + (size_t)e * a.K + k);
    }
    return o;
}

template <int EIGHTS>
static __device__ __forceinline__ void multiply_step(const step_operands<EIGHTS> &o, float (&sum)[EIGHTS][4])
{
    thirds p[4][2]; /* of each of four pairs of k; rows g and g + 8 */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        p[0][h] = split(o.x[h][0].x, o.x[h][0].y);
        p[1][h] = split(o.x[h][0].z, o.x[h][0].w);
        p[2][h] = split(o.x[h][1].x, o.x[h][1].y);
        p[3][h] = split(o.x[h][1].z, o.x[h][1].w);
    }
#pragma unroll
    for (int i = 2; i >= 0; i--) { /* small parts first */
        const uint32_t low[4] = {p[0][0].part[i], p[0][1].part[i], p[1][0].part[i], p[1][1].part[i]};
        const uint32_t high[4] = {p[2][0].part[i], p[2][1].part[i], p[3][0].part[i], p[3][1].part[i]};
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) {
            mma_bf16(sum[j], low, o.w[j].x, o.w[j].y);
            mma_bf16(sum[j], high, o.w[j].z, o.w[j].w);
        }
    }
}

/* sum += 16 rows of x times EIGHTS * 8 experts from `first` on, steps [from, to), AHEAD of them asked for at
 * once. */
template <int EIGHTS, int AHEAD>
static __device__ __forceinline__ void sum_steps(const cuda_router &a, const float *const (&x)[2], int first,
                                                 int from, int to, float (&sum)[EIGHTS][4], int lane)
{
    for (int s = from; s < to; s += AHEAD) {
        step_operands<EIGHTS> o[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            o[i] = load_step<EIGHTS>(a, x, first, min(s + i, to - 1), lane);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (s + i < to)
                multiply_step<EIGHTS>(o[i], sum);
    }
}

/* A block has 16 rows; its warps share out K, their sums are added in order. bf16 weights. */
static __global__ void __launch_bounds__(32 * MANY_WARPS, 1)
    many_kernel(const cuda_router a, const int32_t *count, int n_row)
{
    DYNAMIC_SHARED(memory); /* sums [warp][16][PASS + 4], then logits [16][n_expert] */
    gpu_wait_before();
    gpu_let_next();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    const int row0 = blockIdx.x * MANY_ROWS, n = OP_COUNT(count, n_row), n_step = a.K / STEP;
    typedef float rows_of_sums[MANY_ROWS][PASS + 4];
    rows_of_sums *sums = (rows_of_sums *)memory;
    float *logits = (float *)(sums + MANY_WARPS);
    const float *x[2];
#pragma unroll
    for (int h = 0; h < 2; h++) /* rows beyond the end repeat the last */
        x[h] = a.x + (size_t)min(row0 + g + 8 * h, n_row - 1) * a.K;
    const float scale = *a.w.scale;
    for (int first = 0; first < a.n_expert && row0 < n; first += PASS) {
        float sum[PASS / 8][4] = {};
        sum_steps<PASS / 8, 1>(a, x, first, n_step * warp / MANY_WARPS, n_step * (warp + 1) / MANY_WARPS, sum,
                               lane);
#pragma unroll
        for (int j = 0; j < PASS / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[warp][g + i / 2 * 8][8 * j + 2 * q + i % 2] = sum[j][i];
        __syncthreads();
        for (int i = threadIdx.x; i < MANY_ROWS * PASS; i += 32 * MANY_WARPS) {
            const int r = i / PASS, e = first + i % PASS;
            float whole = 0.0f;
#pragma unroll
            for (int w = 0; w < MANY_WARPS; w++)
                whole += sums[w][r][i % PASS];
            if (e >= a.n_expert)
                continue;
            logits[r * a.n_expert + e] = whole * scale;
            if (row0 + r < n)
                a.logits[(size_t)(row0 + r) * a.n_expert + e] = whole * scale;
        }
        __syncthreads();
    }
    route_room *room = (route_room *)memory; /* the sums are done with */
    for (int r = warp; r < MANY_ROWS && row0 + r < n_row; r += MANY_WARPS) {
        if (row0 + r < n)
            route_row(a, row0 + r, logits + r * a.n_expert, room[warp], lane);
        else
            route_nothing(a, row0 + r, lane);
    }
}

/* ---- between --------------------------------------------------------------------------------------- */

/* grid: (experts / SPREAD_EXPERTS, rows / MANY_ROWS). bf16 weights. arrived: [rows / MANY_ROWS]. */
static __global__ void __launch_bounds__(32 * SPREAD_WARPS, 1)
    spread_kernel(const cuda_router a, const int32_t *count, int n_row, uint32_t *arrived)
{
    DYNAMIC_SHARED(memory); /* sums, then what groups need */
    SHARED(uint32_t, before);
    typedef float rows_of_sums[MANY_ROWS][SPREAD_EXPERTS + 4];
    rows_of_sums *sums = (rows_of_sums *)memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    const int first = blockIdx.x * SPREAD_EXPERTS, row0 = blockIdx.y * MANY_ROWS, n_step = a.K / STEP;
    const uint8_t *own = a.w.data + (size_t)first * a.K * 2;
    const size_t own_bytes = (size_t)min(SPREAD_EXPERTS, a.n_expert - first) * a.K * 2;
    for (size_t i = 128 * (size_t)threadIdx.x; i < own_bytes; i += 128 * 32 * SPREAD_WARPS)
        gpu_prefetch(own + i);
    gpu_wait_before();
    gpu_let_next();
    const int n = OP_COUNT(count, n_row);
    const float *x[2];
#pragma unroll
    for (int h = 0; h < 2; h++) /* rows beyond the end repeat the last */
        x[h] = a.x + (size_t)min(row0 + g + 8 * h, n_row - 1) * a.K;
    const float scale = *a.w.scale;
    float sum[SPREAD_EXPERTS / 8][4] = {};
    sum_steps<SPREAD_EXPERTS / 8, 4>(a, x, first, n_step * warp / SPREAD_WARPS,
                                     n_step * (warp + 1) / SPREAD_WARPS, sum, lane);
#pragma unroll
    for (int j = 0; j < SPREAD_EXPERTS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sums[warp][g + i / 2 * 8][8 * j + 2 * q + i % 2] = sum[j][i];
    __syncthreads();
    for (int i = threadIdx.x; i < MANY_ROWS * SPREAD_EXPERTS; i += 32 * SPREAD_WARPS) {
        const int r = i / SPREAD_EXPERTS, e = first + i % SPREAD_EXPERTS;
        float whole = 0.0f;
#pragma unroll
        for (int w = 0; w < SPREAD_WARPS; w++)
            whole += sums[w][r][i % SPREAD_EXPERTS];
        if (e < a.n_expert && row0 + r < n)
            __stcg(&a.logits[(size_t)(row0 + r) * a.n_expert + e], whole * scale);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        before = atomicAdd(arrived + blockIdx.y, 1u);
    __syncthreads();
    if (before + 1 < gridDim.x)
        return;
    __threadfence();
    if (threadIdx.x == 0)
        arrived[blockIdx.y] = 0; /* for the next launch */
    const int t = row0 + warp;
    if (t < n)
        route_row(a, t, a.logits + (size_t)t * a.n_expert, ((route_room *)memory)[warp], lane);
    else if (t < n_row)
        route_nothing(a, t, lane);
}
static_assert(SPREAD_WARPS == MANY_ROWS, "a warp a row");
static_assert(OP_ARRIVED_SPREAD + SPREAD / MANY_ROWS <= OP_SINGLE, "words that nothing else counts in");

static bool spread_takes(const struct cuda_op *op)
{
    const struct cuda_router *a = &op->as.router;
    return op->n_row > 1 && op->n_row <= SPREAD && a->w.type == CUDA_BF16 && a->K % STEP == 0;
}

static const char *start_spread(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_router *a = &op->as.router;
    const size_t sums = (size_t)(SPREAD_WARPS * MANY_ROWS * (SPREAD_EXPERTS + 4)) * sizeof(float);
    const bool rooms = a->n_group > 1 || a->top_k > 32 || a->n_expert > 256; /* see route_row */
    const size_t bytes = std::max(sums, rooms ? SPREAD_WARPS * sizeof(route_room) : 0);
    const dim3 grid((unsigned)(a->n_expert + SPREAD_EXPERTS - 1) / SPREAD_EXPERTS,
                    (unsigned)(op->n_row + MANY_ROWS - 1) / MANY_ROWS);
    const char *why = gpu_why(gpu_allow_shared(spread_kernel, bytes));
    return why ? why
               : gpu_why(gpu_launch(spread_kernel, grid, 32 * SPREAD_WARPS, bytes, at->stream, *a, op->count,
                                    op->n_row, at->barrier + OP_ARRIVED_SPREAD));
}

/* ---- which ----------------------------------------------------------------------------------------- */

static_assert(sizeof(route_room) <= MANY_ROWS * (PASS + 4) * sizeof(float),
              "a warp's room is where its sums were");

static size_t many_bytes(int n_expert)
{
    return (size_t)(MANY_WARPS * MANY_ROWS * (PASS + 4) + MANY_ROWS * n_expert) * sizeof(float);
}

static const char *start_many(const struct cuda_op *op, const struct op_place *at)
{
    const size_t bytes = many_bytes(op->as.router.n_expert);
    const char *why = gpu_why(gpu_allow_shared(many_kernel, bytes));
    return why ? why
               : gpu_why(gpu_launch(many_kernel, (unsigned)(op->n_row + MANY_ROWS - 1) / MANY_ROWS,
                                    32 * MANY_WARPS, bytes, at->stream, op->as.router, op->count, op->n_row));
}

template <int TYPE> static const char *start_few(const struct cuda_op *op, const struct op_place *at)
{
    return gpu_why(gpu_launch(few_kernel<TYPE>, (unsigned)(op->as.router.n_expert + WARPS - 1) / WARPS,
                              32 * WARPS, 0, at->stream, op->as.router, op->count, op->n_row,
                              at->barrier + OP_ARRIVED_ROUTER));
}

/* Logits by the kernels for any product, then the choice. */
static const char *start_any(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_router *a = &op->as.router;
    struct dense d = {};
    d.part[0].w = a->w;
    d.part[0].out = a->logits;
    d.part[0].n_out = a->n_expert;
    d.n_part = 1;
    d.K = a->K;
    d.x_float = a->x;
    d.count = op->count;
    d.n_row = op->n_row;
    const char *why = dense_start(&d, at);
    if (why)
        return why;
    return gpu_why(gpu_launch(route_kernel, (unsigned)(op->n_row + WARPS - 1) / WARPS, 32 * WARPS, 0,
                              at->stream, *a, op->count, op->n_row));
}

const char *router_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_router *a = &op->as.router;
    const char *why = nullptr;
    if (a->n_expert < 1 || a->n_expert > CUDA_EXPERTS_MAX || a->top_k < 1 || a->top_k > a->n_expert)
        return "router: 1 to 512 experts, and as many chosen at most";
    if (a->n_group > 1 && (a->n_expert % a->n_group || a->top_group < 1 || a->top_group > a->n_group))
        return "router: groups of different sizes, or more chosen than there are";
    if (spread_takes(op))
        return start_spread(op, at);
    if (op->n_row > FEW && a->w.type == CUDA_BF16 && a->K % STEP == 0 &&
        many_bytes(a->n_expert) <= at->limits->shared_bytes)
        return start_many(op, at);
    if (op->n_row > FEW || a->K % 8 || (a->w.type == CUDA_NVFP4 && a->K % 16))
        return start_any(op, at);
#define CALL(T) start_few<T>(op, at)
    WEIGHT_SWITCH(why, a->w.type, CALL)
#undef CALL
    return why;
}
