/* Attention: which kernels an operator takes, and the plain one for sizes that the fast ones lack. */
#include "kernels/cuda/plugin/attention.cuh"

#define WARPS 4

bool attention_has_mma(const struct cuda_kv *kv)
{
    return (kv->head_dim == 32 || kv->head_dim == 64 || kv->head_dim == 128) && kv->type != CUDA_KV_F32;
}

/* A warp's memory: q and acc [head_dim], weights of 32 keys and where those lie. */
static size_t plain_bytes(int head_dim)
{
    return WARPS * (size_t)(2 * head_dim + 64) * sizeof(float);
}

/* One row of one head: 32 keys at a time, a lane a key, then a lane a dimension. */
static __device__ void plain_row(const cuda_attention &a, int row, int seq, int head, float *memory, int lane)
{
    const int d = a.kv.head_dim, n = a.pos[row] + 1, kv_head = head / (a.n_head / a.kv.n_kv_head);
    const int32_t *table = a.block_table + (size_t)seq * *a.stride;
    const size_t at = ((size_t)row * a.n_head + head) * d;
    const bool fp8 = a.kv.type == CUDA_KV_FP8;
    const float scale = a.scale * LOG2_E * (fp8 ? a.kv.scale[0] : 1.0f);
    float *q = memory, *acc = q + d, *weight = acc + d, max = -INFINITY, sum = 0.0f;
    for (int i = lane; i < d; i += 32) {
        q[i] = a.q_float ? a.q_float[at + i] : bf16_float(a.q[at + i]);
        acc[i] = 0.0f;
    }
    __syncwarp();
    for (int k0 = 0; k0 < n; k0 += 32) {
        const int key = k0 + lane;
        float s = -INFINITY;
        if (key < n) {
            const size_t region = kv_region(a.kv, table[key / CUDA_KV_BLOCK], kv_head);
            s = 0.0f;
            for (int i = 0; i < d; i++)
                s = fmaf(q[i], kv_get(a.kv.type, a.kv.k, region + kv_key_at(d, key % CUDA_KV_BLOCK, i)), s);
            s *= scale;
        }
        const float larger = fmaxf(max, warp_max(s)), by = gpu_exp2(max - larger);
        max = larger;
        const float p = gpu_exp2(s - max);
        sum = fmaf(sum, by, warp_sum(p));
        weight[lane] = p;
        __syncwarp();
        const int m = min(32, n - k0);
        for (int i = lane; i < d; i += 32) {
            float v = acc[i] * by;
            for (int j = 0; j < m; j++) {
                const size_t region = kv_region(a.kv, table[(k0 + j) / CUDA_KV_BLOCK], kv_head);
                v = fmaf(weight[j],
                         kv_get(a.kv.type, a.kv.v, region + kv_value_at((k0 + j) % CUDA_KV_BLOCK, i)), v);
            }
            acc[i] = v;
        }
        __syncwarp();
    }
    const float by = (fp8 ? a.kv.scale[1] : 1.0f) / sum;
    for (int i = lane; i < d; i += 32)
        if (a.y_float)
            a.y_float[at + i] = acc[i] * by;
        else
            a.y[at + i] = float_bf16(acc[i] * by);
    __syncwarp();
}

/* grid: (query heads, rows of `single`, then tiles) */
static __global__ void __launch_bounds__(32 * WARPS) plain_kernel(const cuda_attention a)
{
    DYNAMIC_SHARED(memory);
    gpu_wait_before();
    gpu_let_next();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, y = blockIdx.y;
    const bool single = y < a.n_single;
    const int which = single ? y : y - a.n_single;
    if (which >= (single ? min(*a.single_count, a.n_single) : min(*a.tile_count, a.n_tile)))
        return;
    const struct cuda_tile tile = single ? a.single[which] : a.tile[which];
    for (int r = warp; r < (single ? 1 : tile.n_row); r += WARPS)
        plain_row(a, tile.row + r, tile.seq, blockIdx.x, (float *)memory + warp * (2 * a.kv.head_dim + 64),
                  lane);
}

static size_t align(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static size_t part_count(const struct cuda_attention *a)
{
    if (a->n_single < 1 || !attention_has_mma(&a->kv))
        return 0;
    return (size_t)a->n_single * (size_t)a->n_head * (size_t)attention_part_count(a);
}

/* Images lie behind them. */
static size_t parts_bytes(const struct cuda_attention *a)
{
    const size_t n = part_count(a);
    return 2 * align(n * sizeof(float)) + align(n * (size_t)a->kv.head_dim * sizeof(float));
}

size_t attention_scratch(const struct cuda_op *op, const struct gpu_limits *limits)
{
    const struct cuda_attention *a = &op->as.attention;
    return parts_bytes(a) + (attention_has_wgmma(&a->kv, limits) ? attention_image_bytes(a) : 0);
}

static const char *check(const struct cuda_attention *a)
{
    const char *why = kv_check(&a->kv);
    if (why)
        return why;
    if (a->n_head < 1 || a->n_head % a->kv.n_kv_head || a->n_single < 0 || a->n_tile < 0 || a->n_image < 0 ||
        a->n_split < 1 || a->n_single > 65535 || a->n_tile > 65535 || a->n_single + a->n_tile > 65535 ||
        a->kv.n_kv_head * (a->n_head / a->kv.n_kv_head) > 65535)
        return "attention: query heads that are no multiple of the KV heads, or more than 65535 tiles";
    if (a->kv.type != CUDA_KV_F32 && (a->q_float || a->y_float))
        return "attention: unrounded rows, and a cache that rounds";
    return nullptr;
}

static struct attention_parts parts_at(const struct cuda_attention *a, uint8_t *scratch)
{
    const size_t n = part_count(a);
    struct attention_parts parts = {};
    parts.max = (float *)scratch;
    parts.sum = (float *)(scratch + align(n * sizeof(float)));
    parts.acc = (float *)(scratch + 2 * align(n * sizeof(float)));
    return parts;
}

const char *attention_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_attention *a = &op->as.attention;
    const char *why = check(a);
    if (why)
        return why;
    if (!attention_has_mma(&a->kv)) {
        const size_t bytes = plain_bytes(a->kv.head_dim);
        const dim3 grid((unsigned)a->n_head, (unsigned)(a->n_single + a->n_tile));
        if (grid.y > 0)
            return gpu_why(gpu_launch(plain_kernel, grid, 32 * WARPS, bytes, at->stream, *a));
        return nullptr;
    }
    const struct attention_parts parts = parts_at(a, at->scratch);
    if (a->n_single > 0)
        why = attention_single_start(a, nullptr, &parts, at);
    if (!why && a->n_tile > 0)
        why = attention_has_wgmma(&a->kv, at->limits)
                  ? attention_wgmma_start(a, a->n_image > 0 ? at->scratch + parts_bytes(a) : nullptr, at)
                  : attention_tile_start(a, at->stream);
    return why;
}

/* Of as many rows, on one lane and not waiting for the other one. */
static bool are_neighbours(const struct cuda_op *op)
{
    return op[0].n_row == op[1].n_row && op[0].count == op[1].count && op[0].lane == op[1].lane &&
           !op[1].back;
}

/* Every row is one of `single`, and what the first operator makes of it is what the second takes. One row may
 * have a kernel of its own (attention_one.cu); else up to 8 rows two launches are as fast, or 1 % faster:
 * what each begins with goes on beside the end of the one before. */
bool attention_joined_takes(const struct cuda_op *op, int n_op)
{
    if (n_op < 2 || op[0].kind != CUDA_OP_QKV || op[1].kind != CUDA_OP_ATTENTION || !are_neighbours(op))
        return false;
    const struct cuda_qkv *q = &op[0].as.qkv;
    const struct cuda_attention *a = &op[1].as.attention;
    const uintptr_t rows = (uintptr_t)q->q | (uintptr_t)q->k | (uintptr_t)q->v;
    return (op[0].n_row > CUDA_JOINED_ABOVE || attention_one_takes(q, a)) && op[0].n_row == a->n_single &&
           a->n_tile == 0 && !q->q_float && !a->q_float && q->q_out == a->q && q->pos == a->pos &&
           q->n_head == a->n_head && q->kv.k == a->kv.k && q->kv.v == a->kv.v && q->kv.scale == a->kv.scale &&
           q->kv.type == a->kv.type && q->kv.n_kv_head == a->kv.n_kv_head &&
           q->kv.head_dim == a->kv.head_dim && attention_has_mma(&a->kv) && rows % 16 == 0;
}

const char *attention_joined_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_attention *a = &op[1].as.attention;
    const struct attention_parts parts = parts_at(a, at->scratch);
    const char *why = qkv_check(&op[0]);
    why = why ? why : check(a);
    if (why)
        return why;
    if (attention_one_takes(&op[0].as.qkv, a))
        return attention_one_start(&op[0].as.qkv, a, at);
    return attention_single_start(a, &op[0].as.qkv, &parts, at);
}
