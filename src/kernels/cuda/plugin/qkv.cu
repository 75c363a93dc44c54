/* Norm and rotation of heads, and the way into the cache: a warp a head. */
#include "kernels/cuda/plugin/head.cuh"
#include "kernels/cuda/plugin/operators.h"

#define WARPS 4

/* Into shared memory: heads of 128 at most, which are most, at once. */
static __device__ __forceinline__ void take_head(const float *from, int d, float *x, int lane)
{
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = lane + 32 * j < d ? __ldcg(from + lane + 32 * j) : 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (lane + 32 * j < d)
            x[lane + 32 * j] = v[j];
#pragma unroll 1
    for (int i = lane + 128; i < d; i += 32)
        x[i] = from[i];
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
    if (real) { /* weights and the step's input: no operator writes these */
        slot = a.slot[t];
        table = load_tables(a, a.pos[t], (float *)memory + WARPS * d);
    }
    __syncthreads();
    gpu_wait_few(n_row);
    if (!real || head >= a.n_head + 2 * n_kv)
        return;
    float *x = (float *)memory + warp * d;
    if (head < a.n_head) {
        const size_t at = ((size_t)t * a.n_head + head) * d;
        take_head(a.q + at, d, x, lane);
        finish_head(a, d, table, a.q_norm ? table.q_norm : nullptr, x, lane);
        for (int i = lane; i < d; i += 32)
            if (a.q_float)
                a.q_float[at + i] = x[i];
            else
                a.q_out[at + i] = float_bf16(x[i]);
        return;
    }
    head -= a.n_head;
    const bool key = head < n_kv;
    head -= key ? 0 : n_kv;
    const size_t from = ((size_t)t * n_kv + head) * d;
    take_head((key ? a.k : a.v) + from, d, x, lane);
    if (key)
        finish_head(a, d, table, a.k_norm ? table.k_norm : nullptr, x, lane);
    store_head(a.kv, key, slot, head, x, lane);
}

const char *qkv_check(const struct cuda_op *op)
{
    const struct cuda_qkv *a = &op->as.qkv;
    const char *why = kv_check(&a->kv);
    if (why)
        return why;
    if (a->n_head < 1 || a->rotary_dim < 0 || a->rotary_dim % 2 || a->rotary_dim > a->kv.head_dim ||
        op->n_row > 65535)
        return "qkv: rotated dimensions that are odd or more than a head has, or more than 65535 rows";
    return nullptr;
}

const char *qkv_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_qkv *a = &op->as.qkv;
    const char *why = qkv_check(op);
    if (why)
        return why;
    if (qkv_rows_takes(op))
        return qkv_rows_start(op, at);
    const int heads = a->n_head + 2 * a->kv.n_kv_head;
    const dim3 grid((unsigned)((heads + WARPS - 1) / WARPS), (unsigned)op->n_row);
    const size_t bytes = (size_t)(WARPS * a->kv.head_dim + table_floats(*a)) * sizeof(float);
    return gpu_why(gpu_launch(qkv_kernel, grid, 32 * WARPS, bytes, at->stream, *a, op->count, op->n_row));
}
