/* SwiGLU, and the largest of each row. */
#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/gpu.h"

#define SWIGLU_THREADS 256
#define ARGMAX_THREADS 1024

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

static __global__ void __launch_bounds__(ARGMAX_THREADS)
    argmax_kernel(const cuda_argmax a, const int32_t *count, int n_row)
{
    SHARED(best[32], of_warp);
    gpu_wait_before();
    gpu_let_next();
    const int t = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (t >= OP_COUNT(count, n_row))
        return;
    const float *x = a.x + (size_t)t * a.n;
    best mine = {0.0f, -1};
#pragma unroll 8
    for (int i = threadIdx.x; i < a.n; i += ARGMAX_THREADS) {
        const float v = x[i];
        if (v == v && (mine.index < 0 || v > mine.value))
            mine = {v, i};
    }
    for (int d = 16; d > 0; d /= 2) {
        const best other = {__shfl_xor_sync(ALL_LANES, mine.value, d),
                            __shfl_xor_sync(ALL_LANES, mine.index, d)};
        mine = better(mine, other);
    }
    if (lane == 0)
        of_warp[warp] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < ARGMAX_THREADS / 32; i++)
            mine = better(mine, of_warp[i]);
        a.id[t] = max(mine.index, 0);
    }
}

const char *argmax_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_argmax *a = &op->as.argmax;
    if (a->n < 1)
        return "argmax: no columns";
    return gpu_why(
        gpu_launch(argmax_kernel, op->n_row, ARGMAX_THREADS, 0, at->stream, *a, op->count, op->n_row));
}
