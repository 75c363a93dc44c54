/* Norm and rotation of heads, and the way into the cache: a warp a head. */
#include "kernels/cuda/plugin/kv.cuh"
#include "kernels/cuda/plugin/operators.h"

#define WARPS 4

/* What the heads of a block need besides themselves, in shared memory. */
struct tables {
    float *q_norm, *k_norm; /* [head_dim]       */
    float *cos, *sin;       /* [rotary_dim / 2] */
};

static __host__ __device__ __forceinline__ int table_floats(const cuda_qkv &a)
{
    return 2 * a.kv.head_dim + a.rotary_dim;
}

static __device__ __forceinline__ tables load_tables(const cuda_qkv &a, int pos, float *room)
{
    const int d = a.kv.head_dim, half = a.rotary_dim / 2;
    const tables to = {room, room + d, room + 2 * d, room + 2 * d + half};
    for (int i = threadIdx.x; i < d; i += 32 * WARPS) {
        if (a.q_norm)
            to.q_norm[i] = a.q_norm[i];
        if (a.k_norm)
            to.k_norm[i] = a.k_norm[i];
    }
    for (int i = threadIdx.x; i < half; i += 32 * WARPS) {
        to.cos[i] = a.cos[(size_t)pos * half + i];
        to.sin[i] = a.sin[(size_t)pos * half + i];
    }
    return to;
}

/* A head, normed where `norm` is not NULL and rotated, in shared memory: [head_dim]. */
static __device__ __forceinline__ void finish_head(const cuda_qkv &a, const tables &table, const float *from,
                                                   const float *norm, float *x, int lane)
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
        const float c = table.cos[i], s = table.sin[i];
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
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = a.kv.head_dim;
    const int t = blockIdx.y, n_kv = a.kv.n_kv_head;
    int head = blockIdx.x * WARPS + warp, slot = 0;
    const bool real = t < OP_COUNT(count, n_row);
    tables table = {};
    float inverse[2] = {1.0f, 1.0f};
    if (real) { /* weights and the step's input: no operator writes these */
        slot = a.slot[t];
        table = load_tables(a, a.pos[t], (float *)memory + WARPS * d);
        if (a.kv.type == CUDA_KV_FP8) {
            inverse[0] = 1.0f / a.kv.scale[0];
            inverse[1] = 1.0f / a.kv.scale[1];
        }
    }
    __syncthreads();
    gpu_wait_before();
    gpu_let_next();
    if (!real || head >= a.n_head + 2 * n_kv)
        return;
    float *x = (float *)memory + warp * d;
    if (head < a.n_head) {
        const size_t at = ((size_t)t * a.n_head + head) * d;
        finish_head(a, table, a.q + at, a.q_norm ? table.q_norm : nullptr, x, lane);
        for (int i = lane; i < d; i += 32)
            if (a.q_float)
                a.q_float[at + i] = x[i];
            else
                a.q_out[at + i] = float_bf16(x[i]);
        return;
    }
    head -= a.n_head;
    const int j = slot % CUDA_KV_BLOCK;
    const bool key = head < n_kv;
    head -= key ? 0 : n_kv;
    const size_t from = ((size_t)t * n_kv + head) * d;
    const size_t region = kv_region(a.kv, slot / CUDA_KV_BLOCK, head);
    if (key)
        finish_head(a, table, a.k + from, a.k_norm ? table.k_norm : nullptr, x, lane);
    for (int i = lane; i < d; i += 32) {
        if (key)
            kv_put(a.kv.type, a.kv.k, region + kv_key_at(d, j, i), x[i], inverse[0]);
        else
            kv_put(a.kv.type, a.kv.v, region + kv_value_at(j, i), a.v[from + i], inverse[1]);
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
    const size_t bytes = (size_t)(WARPS * a->kv.head_dim + table_floats(*a)) * sizeof(float);
    return gpu_why(gpu_launch(qkv_kernel, grid, 32 * WARPS, bytes, at->stream, *a, op->count, op->n_row));
}
