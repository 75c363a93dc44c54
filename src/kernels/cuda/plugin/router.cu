/* The choice of experts: logits as products of fp32, then a warp a token (route.cuh). One launch where rows
 * are few (the block that ends last chooses) and where they are many (a block has all logits of its rows); in
 * between router_cluster.cu has them. */
#include "kernels/cuda/plugin/dense.cuh"
#include "kernels/cuda/plugin/router.cuh"

#define WARPS      4
#define FEW        8   /* rows of the kernel for few */
#define MANY_WARPS 8   /* of the one for many: they share out K */
#define MANY_ROWS  16  /* of a block there */
#define PASS       128 /* experts at once there */

static __global__ void __launch_bounds__(32 * WARPS)
    route_kernel(const __grid_constant__ cuda_router a, const int32_t *count, int n_row)
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

/* A warp an expert. Weights of bf16 or fp32, K a multiple of 8. The block that ends last has all logits. */
template <int TYPE>
static __global__ void __launch_bounds__(32 * WARPS)
    few_kernel(const __grid_constant__ cuda_router a, const int32_t *count, int n_row, uint32_t *arrived)
{
    SHARED(route_room[WARPS], room);
    SHARED(uint32_t, before);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, e = blockIdx.x * WARPS + warp;
    const float scale = *a.w.scale;
    const size_t row_bytes = (size_t)a.K * (TYPE == CUDA_F32 ? 4 : 2);
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

/* A block has 16 rows; its warps share out K, their sums are added in order. bf16 weights. */
static __global__ void __launch_bounds__(32 * MANY_WARPS, 1)
    many_kernel(const __grid_constant__ cuda_router a, const int32_t *count, int n_row)
{
    DYNAMIC_SHARED(memory); /* sums [warp][16][PASS + 4], then logits [16][n_expert] */
    gpu_wait_before();
    gpu_let_next();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    const int row0 = blockIdx.x * MANY_ROWS, n = OP_COUNT(count, n_row), n_step = a.K / ROUTER_STEP;
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
#pragma unroll 1
        for (int s = n_step * warp / MANY_WARPS; s < n_step * (warp + 1) / MANY_WARPS; s++)
            multiply_step<PASS / 8>(load_rows(x, s, lane), load_weights<PASS / 8>(a, first, s, lane), sum);
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
    if (a->n_expert < 1 || a->n_expert > CUDA_EXPERTS_MAX || a->top_k < 1 || a->top_k > a->n_expert)
        return "router: 1 to 512 experts, and as many chosen at most";
    if (a->n_group > 1 && (a->n_expert % a->n_group || a->top_group < 1 || a->top_group > a->n_group))
        return "router: groups of different sizes, or more chosen than there are";
    if (a->n_shared < 0 || a->n_shared > CUDA_EXPERTS_MAX - a->n_expert)
        return "router: 512 experts at most, with those that every row takes";
    if (router_rows_takes(op))
        return router_rows_start(op, at);
    if (router_cluster_takes(op, at->limits))
        return router_cluster_start(op, at);
    if (op->n_row > FEW && a->w.type == CUDA_BF16 && a->K % ROUTER_STEP == 0 &&
        many_bytes(a->n_expert) <= at->limits->shared_bytes)
        return start_many(op, at);
    if (op->n_row > FEW || a->K % 8)
        return start_any(op, at);
    if (a->w.type == CUDA_BF16)
        return start_few<CUDA_BF16>(op, at);
    return a->w.type == CUDA_F32 ? start_few<CUDA_F32>(op, at) : start_any(op, at);
}
