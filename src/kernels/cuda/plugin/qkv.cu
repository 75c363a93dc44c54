/* Norm and rotation of heads, and the way into the cache: a warp a head. */
#include "kernels/cuda/plugin/kv.cuh"
#include "kernels/cuda/plugin/operators.h"

#define WARPS 4

/* A head of row t, normed and rotated, in shared memory: [head_dim]. */
static __device__ __forceinline__ void finish_head(const cuda_qkv &a, const float *from, const float *norm,
                                                   float *x, int pos, int lane)
{
    const int d = a.kv.head_dim, half = a.rotary_dim / 2;
    float sum = 0.0f;
    for (int i = lane; i < d; i += 32) {
        x[i] = from[i];
        sum = fmaf(x[i], x[i], sum);
    }
    if (norm) {
        const float by = 1.0f / sqrtf(warp_sum(sum) / (float)d + a.eps);
        for (int i = lane; i < d; i += 32)
            x[i] = x[i] * by * norm[i];
    }
    __syncwarp();
    for (int i = lane; i < half; i += 32) {
        const int first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + half;
        const float c = a.cos[(size_t)pos * half + i], s = a.sin[(size_t)pos * half + i];
        const float u = x[first], v = x[second];
        x[first] = u * c - v * s;
        x[second] = v * c + u * s;
    }
    __syncwarp();
}

/* grid: (heads of q, k and v / WARPS, rows) */
static __global__ void __launch_bounds__(32 * WARPS)
    qkv_kernel(const cuda_qkv a, const int32_t *count, int n_row)
{
    DYNAMIC_SHARED(memory);
    gpu_wait_before();
    gpu_let_next();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = a.kv.head_dim;
    const int t = blockIdx.y, n_kv = a.kv.n_kv_head;
    int head = blockIdx.x * WARPS + warp;
    if (t >= OP_COUNT(count, n_row) || head >= a.n_head + 2 * n_kv)
        return;
    float *x = (float *)memory + warp * d;
    if (head < a.n_head) {
        const size_t at = ((size_t)t * a.n_head + head) * d;
        finish_head(a, a.q + at, a.q_norm, x, a.pos[t], lane);
        for (int i = lane; i < d; i += 32)
            if (a.q_float)
                a.q_float[at + i] = x[i];
            else
                a.q_out[at + i] = float_bf16(x[i]);
        return;
    }
    head -= a.n_head;
    const int slot = a.slot[t], j = slot % CUDA_KV_BLOCK;
    const bool key = head < n_kv;
    head -= key ? 0 : n_kv;
    const size_t from = ((size_t)t * n_kv + head) * d;
    const size_t region = kv_region(a.kv, slot / CUDA_KV_BLOCK, head);
    const float inverse = a.kv.type == CUDA_KV_FP8 ? 1.0f / a.kv.scale[key ? 0 : 1] : 1.0f;
    if (key)
        finish_head(a, a.k + from, a.k_norm, x, a.pos[t], lane);
    for (int i = lane; i < d; i += 32) {
        if (key)
            kv_put(a.kv.type, a.kv.k, region + kv_key_at(d, j, i), x[i], inverse);
        else
            kv_put(a.kv.type, a.kv.v, region + kv_value_at(j, i), a.v[from + i], inverse);
    }
}

const char *qkv_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_qkv *a = &op->as.qkv;
    const char *why = kv_check(&a->kv);
    if (why)
        return why;
    if (a->n_head < 1 || a->rotary_dim < 0 || a->rotary_dim % 2 || a->rotary_dim > a->kv.head_dim ||
        op->n_row > 65535)
        return "qkv: rotated dimensions that are odd or more than a head has, or more than 65535 rows";
    const int heads = a->n_head + 2 * a->kv.n_kv_head;
    const dim3 grid((unsigned)((heads + WARPS - 1) / WARPS), (unsigned)op->n_row);
    const size_t bytes = (size_t)(WARPS * a->kv.head_dim) * sizeof(float);
    return gpu_why(gpu_launch(qkv_kernel, grid, 32 * WARPS, bytes, at->stream, *a, op->count, op->n_row));
}
