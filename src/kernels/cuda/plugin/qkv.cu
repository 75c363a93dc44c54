/* Norm and rotation of heads, and the way into the cache: a warp a head. */
#include "kernels/cuda/plugin/head.cuh"
#include "kernels/cuda/plugin/operators.h"

#define WARPS 4

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
    const bool key = head < n_kv;
    head -= key ? 0 : n_kv;
    const size_t from = ((size_t)t * n_kv + head) * d;
    if (key)
        finish_head(a, table, a.k + from, a.k_norm ? table.k_norm : nullptr, x, lane);
    store_head(a.kv, key, slot, head, key ? x : a.v + from, lane);
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
