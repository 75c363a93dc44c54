/* A layer of experts with weights of any type and size: a warp an output, h in the scratch. */
#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/weight.cuh"

#define WARPS 4

template <int TYPE>
static __device__ __forceinline__ float dot(const cuda_weight &w, size_t row, const uint16_t *x, int K,
                                            int lane)
{
    float sum = 0.0f;
    if (K % 8) {
        for (int k = lane; k < K; k += 32)
            sum = fmaf(weight_at<TYPE>(w, row, K, k), bf16_float(x[k]), sum);
        return warp_sum(sum);
    }
#pragma unroll 4
    for (int k = 8 * lane; k < K; k += 8 * 32) {
        const uint4 v = *(const uint4 *)(x + k);
        const uint32_t pair[4] = {v.x, v.y, v.z, v.w};
        float of_row[8];
        weight_vector<TYPE>(w, row, K, k, of_row);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(of_row[i], i % 2 ? bf16_high(pair[i / 2]) : bf16_low(pair[i / 2]), sum);
    }
    return warp_sum(sum);
}

/* grid: (slots, inner / WARPS) */
template <int TYPE>
static __global__ void __launch_bounds__(32 * WARPS)
    up_kernel(const cuda_moe_plain a, const int32_t *count, int n_row, uint16_t *h)
{
    gpu_wait_before();
    gpu_let_next();
    const int lane = threadIdx.x % 32, i = blockIdx.y * WARPS + threadIdx.x / 32, slot = blockIdx.x;
    const int t = slot / a.n_used, e = a.id[slot];
    if (t >= OP_COUNT(count, n_row) || i >= a.inner || e < 0 || e >= a.n_expert)
        return;
    const uint16_t *x = a.x + (size_t)t * a.hidden;
    const size_t row = (size_t)e * a.inner + i;
    float gate = dot<TYPE>(a.gate, row, x, a.hidden, lane) * a.gate.scale[e];
    float up = dot<TYPE>(a.up, row, x, a.hidden, lane) * a.up.scale[e];
    gate += a.gate_bias ? a.gate_bias[row] : 0.0f;
    up += a.up_bias ? a.up_bias[row] : 0.0f;
    if (lane == 0)
        h[(size_t)slot * a.inner + i] = float_bf16(gate / (1.0f + __expf(-gate)) * up);
}

/* grid: (rows, hidden / WARPS) */
template <int TYPE>
static __global__ void __launch_bounds__(32 * WARPS)
    down_kernel(const cuda_moe_plain a, const int32_t *count, int n_row, const uint16_t *h)
{
    gpu_wait_before();
    gpu_let_next();
    const int lane = threadIdx.x % 32, o = blockIdx.y * WARPS + threadIdx.x / 32, t = blockIdx.x;
    if (t >= OP_COUNT(count, n_row) || o >= a.hidden)
        return;
    float sum = 0.0f;
    for (int j = 0; j < a.n_used; j++) {
        const int slot = t * a.n_used + j, e = a.id[slot];
        if (e < 0 || e >= a.n_expert)
            continue;
        const size_t row = (size_t)e * a.hidden + o;
        float y = dot<TYPE>(a.down, row, h + (size_t)slot * a.inner, a.inner, lane) * a.down.scale[e];
        y += a.down_bias ? a.down_bias[row] : 0.0f;
        if (!a.each)
            sum = fmaf(a.weight[slot], y, sum);
        else if (lane == 0)
            a.each[(size_t)slot * a.hidden + o] = y;
    }
    if (lane == 0 && !a.each)
        a.out[(size_t)t * a.hidden + o] = sum;
}

size_t moe_plain_scratch(const struct cuda_op *op)
{
    const struct cuda_moe_plain *a = &op->as.moe_plain;
    return (size_t)op->n_row * (size_t)a->n_used * (size_t)a->inner * sizeof(uint16_t);
}

template <int TYPE> static const char *start(const struct cuda_op *op, const struct op_place *at)
{
    const cuda_moe_plain &a = op->as.moe_plain;
    const dim3 up((unsigned)(op->n_row * a.n_used), (unsigned)(a.inner + WARPS - 1) / WARPS);
    const dim3 down((unsigned)op->n_row, (unsigned)(a.hidden + WARPS - 1) / WARPS);
    uint16_t *h = (uint16_t *)at->scratch;
    const char *why =
        gpu_why(gpu_launch(up_kernel<TYPE>, up, 32 * WARPS, 0, at->stream, a, op->count, op->n_row, h));
    return why ? why
               : gpu_why(gpu_launch(down_kernel<TYPE>, down, 32 * WARPS, 0, at->stream, a, op->count,
                                    op->n_row, h));
}

const char *moe_plain_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_moe_plain *a = &op->as.moe_plain;
    const char *why = nullptr;
    if (a->n_used < 1 || a->n_expert < 1 || a->hidden < 1 || a->inner < 1 || a->hidden > 65535 ||
        a->inner > 65535 || op->n_row > (1 << 30) / a->n_used)
        return "moe: no experts, or sizes above 65535";
    if (a->gate.type != a->up.type || a->gate.type != a->down.type)
        return "moe: matrices of different types";
    if (a->gate.type == CUDA_NVFP4 && (a->hidden % 16 || a->inner % 16))
        return "moe: rows of NVFP4 are a multiple of 16";
#define CALL(T) start<T>(op, at)
    WEIGHT_SWITCH(why, a->gate.type, CALL)
#undef CALL
    return why;
}
