/* Norm and rotation of heads and the way into the cache, of many rows: a warp has four heads of a row in
 * registers, all under way at once, where the kernel of few rows (qkv.cu) has one in shared memory. The same
 * bits as there. */
#include "kernels/cuda/plugin/head.cuh"
#include "kernels/cuda/plugin/operators.h"

#define WARPS 4
#define EACH  4 /* heads of a warp */

/* Pairs that are rotated: dimensions 32 * APART from each other, which are one lane's, or neighbours. */
enum { NEIGHBOURS = 0 };

/* A lane's dimensions are lane, lane + 32, ...: as many as of cosines and sines, at most. */
template <int PER> struct lane_tables {
    float q_norm[PER], k_norm[PER], cos[PER], sin[PER];
};

template <int PER, int APART>
static __device__ __forceinline__ void take_tables(const cuda_qkv &a, int pos, int lane, lane_tables<PER> &to)
{
    const int half = a.rotary_dim / 2;
    const size_t row = (size_t)pos * half;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const int i = lane + 32 * j, pair = min(APART ? i : i / 2, half - 1); /* beyond: not used */
        to.q_norm[j] = a.q_norm ? a.q_norm[i] : 1.0f;
        to.k_norm[j] = a.k_norm ? a.k_norm[i] : 1.0f;
        to.cos[j] = a.cos[row + pair];
        to.sin[j] = a.sin[row + pair];
    }
}

/* finish_heads (head.cuh) in registers. */
template <int PER, int APART>
static __device__ __forceinline__ void finish(const cuda_qkv &a, const lane_tables<PER> &table, bool query,
                                              bool normed, float by, float (&x)[PER], int lane)
{
    if (normed)
#pragma unroll
        for (int j = 0; j < PER; j++)
            x[j] = x[j] * by * (query ? table.q_norm[j] : table.k_norm[j]);
#pragma unroll
    for (int j = 0; j < PER / 2; j++) {
        const float u = x[j], v = x[j + APART], c = table.cos[j], s = table.sin[j];
        if (j < APART) {
            x[j] = fmaf(u, c, -v * s);
            x[j + APART] = fmaf(v, c, u * s);
        }
    }
#pragma unroll
    for (int j = 0; j < PER && APART == NEIGHBOURS; j++) {
        const float other = __shfl_xor_sync(ALL_LANES, x[j], 1), c = table.cos[j], s = table.sin[j];
        if (32 * j < a.rotary_dim) /* a multiple of 32 */
            x[j] = lane % 2 ? fmaf(x[j], c, other * s) : fmaf(x[j], c, -other * s);
    }
}

/* grid: rows' groups of EACH heads / WARPS */
template <int PER, int APART>
static __global__ void __launch_bounds__(32 * WARPS)
    qkv_rows_kernel(const cuda_qkv a, const int32_t *count, int n_row, int groups)
{
    const int lane = threadIdx.x % 32, d = 32 * PER, n_kv = a.kv.n_kv_head;
    const int mine = blockIdx.x * WARPS + threadIdx.x / 32, t = mine / groups, first = mine % groups * EACH;
    if (t >= n_row)
        return;
    /* The step's input: no operator writes it. Read before it is known how many rows count: what follows
     * waits for all of it at once. */
    const int pos = a.pos[t], slot = a.slot[t], n_real = OP_COUNT(count, n_row);
    gpu_wait_before();
    gpu_let_next();
    const int heads = a.n_head + 2 * n_kv, n = min(EACH, heads - first);
    float x[EACH][PER], by[EACH] = {};
#pragma unroll
    for (int h = 0; h < EACH; h++) {
        const int head = min(first + h, heads - 1), of_k = head - a.n_head, of_v = of_k - n_kv;
        const float *row = of_k < 0   ? a.q + ((size_t)t * a.n_head + head) * d
                           : of_v < 0 ? a.k + ((size_t)t * n_kv + of_k) * d
                                      : a.v + ((size_t)t * n_kv + of_v) * d;
#pragma unroll
        for (int j = 0; j < PER; j++)
            x[h][j] = __ldcg(row + lane + 32 * j);
    }
    if (t >= n_real)
        return;
    lane_tables<PER> table;
    take_tables<PER, APART>(a, pos, lane, table);
#pragma unroll
    for (int h = 0; h < EACH; h++)
#pragma unroll
        for (int j = 0; j < PER; j++)
            by[h] = fmaf(x[h][j], x[h][j], by[h]);
    if (a.q_norm || a.k_norm)
        warp_sums<EACH>(by);
#pragma unroll
    for (int h = 0; h < EACH; h++) {
        const int head = first + h, of_k = head - a.n_head, of_v = of_k - n_kv;
        if (h >= n)
            break;
        const bool query = of_k < 0, value = of_v >= 0, normed = query ? a.q_norm : a.k_norm;
        if (!value)
            finish<PER, APART>(a, table, query, normed, 1.0f / sqrtf(by[h] / (float)d + a.eps), x[h], lane);
        if (!query) {
            store_lanes<PER>(a.kv, !value, slot, value ? of_v : of_k, x[h], lane);
            continue;
        }
        const size_t at = ((size_t)t * a.n_head + head) * d + lane;
#pragma unroll
        for (int j = 0; j < PER; j++)
            if (a.q_float)
                a.q_float[at + 32 * j] = x[h][j];
            else
                a.q_out[at + 32 * j] = float_bf16(x[h][j]);
    }
}

bool qkv_rows_takes(const struct cuda_op *op)
{
    const struct cuda_qkv *a = &op->as.qkv;
    const int d = a->kv.head_dim, r = a->rotary_dim;
    return op->n_row > QKV_ROWS_ABOVE && (d == 64 || d == 128) && r > 0 &&
           (a->interleaved ? r % 32 == 0 : r == 64 || r == d);
}

template <int PER, int APART> static const char *start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_qkv *a = &op->as.qkv;
    const int groups = (a->n_head + 2 * a->kv.n_kv_head + EACH - 1) / EACH;
    const unsigned blocks = (unsigned)(((int64_t)groups * op->n_row + WARPS - 1) / WARPS);
    return gpu_why(gpu_launch(qkv_rows_kernel<PER, APART>, blocks, 32 * WARPS, 0, at->stream, *a, op->count,
                              op->n_row, groups));
}

const char *qkv_rows_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_qkv *a = &op->as.qkv;
    if (a->kv.head_dim == 64)
        return a->interleaved ? start<2, NEIGHBOURS>(op, at) : start<2, 1>(op, at);
    return a->interleaved        ? start<4, NEIGHBOURS>(op, at)
           : a->rotary_dim == 64 ? start<4, 1>(op, at)
                                 : start<4, 2>(op, at);
}
