/* SwiGLU, and the largest of each row. */
#include "kernels/cuda/plugin/cluster.cuh"
#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/gpu.h"

#define SWIGLU_THREADS 256
#define ARGMAX_THREADS 1024
#define ARGMAX_BLOCKS  8 /* of a row, at most */

static __global__ void swiglu_kernel(const cuda_swiglu a, const int32_t *count, int n_row)
{
    gpu_wait_before();
    gpu_let_next();
    const int t = blockIdx.y;
    if (t >= OP_COUNT(count, n_row))
        return;
    for (int i = blockIdx.x * SWIGLU_THREADS + threadIdx.x; i < a.n; i += gridDim.x * SWIGLU_THREADS) {
        const size_t at = (size_t)t * a.n + i;
        const float gate = a.gate[at];
        if (a.h_float)
            a.h_float[at] = gate / (1.0f + expf(-gate)) * a.up[at];
        else
            a.h[at] = float_bf16(gate / (1.0f + __expf(-gate)) * a.up[at]);
    }
}

const char *swiglu_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_swiglu *a = &op->as.swiglu;
    if (a->n < 1 || op->n_row > 65535)
        return "swiglu: no columns, or more than 65535 rows";
    const dim3 grid((unsigned)(a->n + SWIGLU_THREADS - 1) / SWIGLU_THREADS, (unsigned)op->n_row);
    return gpu_why(gpu_launch(swiglu_kernel, grid, SWIGLU_THREADS, 0, at->stream, *a, op->count, op->n_row));
}

/* Larger wins, the lower index among equals; NaN never does. No number: index -1. */
struct best {
    float value;
    int index;
};

static __device__ __forceinline__ best better(best a, best b)
{
    if (a.index < 0 || (b.index >= 0 && (b.value > a.value || (b.value == a.value && b.index < a.index))))
        return b;
    return a;
}

static __device__ __forceinline__ void look_at(best &mine, float v, int i)
{
    if (v == v && (mine.index < 0 || v > mine.value))
        mine = {v, i};
}

static __device__ __forceinline__ best best_of_warp(best mine)
{
    for (int d = 16; d > 0; d /= 2) {
        const best other = {__shfl_xor_sync(ALL_LANES, mine.value, d),
                            __shfl_xor_sync(ALL_LANES, mine.index, d)};
        mine = better(mine, other);
    }
    return mine;
}

/* grid: (blocks of a row's cluster, rows) */
static __global__ void __launch_bounds__(ARGMAX_THREADS)
    argmax_kernel(const cuda_argmax a, const int32_t *count, int n_row)
{
    SHARED(best[32], of_warp);
    SHARED(best[ARGMAX_BLOCKS], of_block);
    cluster_arrive(); /* all blocks of the cluster have begun */
    gpu_wait_before();
    gpu_let_next();
    const int t = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = blockIdx.x * ARGMAX_THREADS + threadIdx.x, step = gridDim.x * ARGMAX_THREADS;
    const float *x = a.x + (size_t)t * a.n;
    const bool real = t < OP_COUNT(count, n_row), fours = a.n % 4 == 0;
    best mine = {0.0f, -1};
    if (real && fours)
#pragma unroll 4
        for (int i = first; i < a.n / 4; i += step) {
            const float4 v = ((const float4 *)x)[i];
            look_at(mine, v.x, 4 * i);
            look_at(mine, v.y, 4 * i + 1);
            look_at(mine, v.z, 4 * i + 2);
            look_at(mine, v.w, 4 * i + 3);
        }
    else if (real)
#pragma unroll 4
        for (int i = first; i < a.n; i += step)
            look_at(mine, x[i], i);
    mine = best_of_warp(mine);
    if (lane == 0)
        of_warp[warp] = mine;
    __syncthreads();
    if (warp == 0)
        mine = best_of_warp(of_warp[lane]);
    cluster_wait();
    if (threadIdx.x == 0)
        cluster_at(of_block, 0)[blockIdx.x] = mine;
    cluster_sync();
    if (threadIdx.x > 0 || blockIdx.x > 0 || !real)
        return;
    for (int i = 1; i < (int)gridDim.x; i++)
        mine = better(mine, of_block[i]);
    a.id[t] = max(mine.index, 0);
}

const char *argmax_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_argmax *a = &op->as.argmax;
    if (a->n < 1)
        return "argmax: no columns";
    int blocks = ARGMAX_BLOCKS;
    while (blocks > 1 && (int64_t)op->n_row * blocks > at->limits->n_sm)
        blocks /= 2;
    return gpu_why(gpu_launch_clusters((unsigned)blocks, argmax_kernel,
                                       dim3((unsigned)blocks, (unsigned)op->n_row), ARGMAX_THREADS, 0,
                                       at->stream, *a, op->count, op->n_row));
}
