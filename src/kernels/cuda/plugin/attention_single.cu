/* Attention of sequences that have one row in the step: a block for each KV head and each CUDA_SPLIT_KEYS
 * keys, a warp for each cache block of them. All of a warp's keys and values are asked for at once. Keys, and
 * then values transposed, are the first operand; the query heads that share them are the eight columns. */
#include "kernels/cuda/plugin/attention.cuh"

#define WARPS (CUDA_SPLIT_KEYS / CUDA_KV_BLOCK)

struct single_params {
    struct cuda_attention a;
    struct attention_parts parts;
};

/* A dimension of a head: the splits in order of position. */
static __device__ __forceinline__ void merge(const single_params &p, int which, int row, int head, int d,
                                             int n)
{
    const int hd = p.a.kv.head_dim;
    const size_t from = ((size_t)which * p.a.n_head + head) * p.a.n_split;
    float max = __ldcg(&p.parts.max[from]), sum = 0.0f, acc = 0.0f;
#pragma unroll 4
    for (int i = 1; i < n; i++)
        max = fmaxf(max, __ldcg(&p.parts.max[from + i]));
#pragma unroll 4
    for (int i = 0; i < n; i++) {
        const float by = gpu_exp2(__ldcg(&p.parts.max[from + i]) - max);
        sum = fmaf(by, __ldcg(&p.parts.sum[from + i]), sum);
        acc = fmaf(by, __ldcg(&p.parts.acc[(from + i) * hd + d]), acc);
    }
    const float by = (p.a.kv.type == CUDA_KV_FP8 ? p.a.kv.scale[1] : 1.0f) / sum;
    p.a.y[((size_t)row * p.a.n_head + head) * hd + d] = float_bf16(acc * by);
}

/* A warp's result of its cache block, in shared memory. */
template <int HD, int NT> struct warp_part {
    float max[8 * NT], sum[8 * NT];
    float acc[8 * NT][HD + 8]; /* + 8: other banks */
};

/* The largest, or the sum, of a column over the rows of an mma's result. */
static __device__ __forceinline__ float column_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 4));
    v = fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 8));
    return fmaxf(v, __shfl_xor_sync(ALL_LANES, v, 16));
}
static __device__ __forceinline__ float column_sum(float v)
{
    v += __shfl_xor_sync(ALL_LANES, v, 4);
    v += __shfl_xor_sync(ALL_LANES, v, 8);
    return v + __shfl_xor_sync(ALL_LANES, v, 16);
}

/* Of n keys (1 to 16) of a cache block. q: heads head to head + n_head - 1 of the row. */
template <int HD, int TYPE, int NT>
static __device__ __forceinline__ void walk_block(const struct cuda_kv &kv, size_t region, const uint16_t *q,
                                                  int n_head, int n, float scale,
                                                  struct warp_part<HD, NT> *out, int lane)
{
    const int g = lane / 4, c = lane % 4, first = key_of(g);
    uint4 key[HD / 32][2], value[HD / 16];
#pragma unroll
    for (int b = 0; b < HD / 32; b++) {
        key[b][0] = kv_vector<TYPE>(kv.k, region + (size_t)((b * CUDA_KV_BLOCK + first) * 32 + 8 * c));
        key[b][1] = kv_vector<TYPE>(kv.k, region + (size_t)((b * CUDA_KV_BLOCK + first + 2) * 32 + 8 * c));
    }
#pragma unroll
    for (int b = 0; b < HD / 16; b++)
        value[b] = kv_vector<TYPE>(kv.v, region + (size_t)((8 * b + g) * 32 + 8 * c));
    if (n < CUDA_KV_BLOCK)
#pragma unroll
        for (int b = 0; b < HD / 16; b++)
            value[b] = kv_keep(value[b], n - 4 * c);
#pragma unroll
    for (int t = 0; t < NT; t++) {
        float s[4] = {};
        const uint16_t *mine = q + (size_t)min(8 * t + g, n_head - 1) * HD + 8 * c;
#pragma unroll
        for (int b = 0; b < HD / 32; b++) {
            const uint4 x = *(const uint4 *)(mine + 32 * b);
            const uint32_t low[4] = {key[b][0].x, key[b][1].x, key[b][0].y, key[b][1].y};
            const uint32_t high[4] = {key[b][0].z, key[b][1].z, key[b][0].w, key[b][1].w};
            mma_bf16(s, low, x.x, x.y);
            mma_bf16(s, high, x.z, x.w);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[i] = first + i / 2 * 2 < n ? s[i] * scale : -INFINITY;
        uint32_t p[2];
        float e[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float max = column_max(fmaxf(s[i], s[2 + i]));
            e[i] = gpu_exp2(s[i] - max);
            e[2 + i] = gpu_exp2(s[2 + i] - max);
            const float sum = column_sum(e[i] + e[2 + i]);
            if (g == 0) {
                out->max[8 * t + 2 * c + i] = max;
                out->sum[8 * t + 2 * c + i] = sum;
            }
        }
        p[0] = transpose_8x8(float_bf16_pair(e[0], e[1]));
        p[1] = transpose_8x8(float_bf16_pair(e[2], e[3]));
#pragma unroll
        for (int b = 0; b < HD / 16; b++) {
            float o[4] = {};
            const uint32_t v[4] = {value[b].x, value[b].z, value[b].y, value[b].w};
            mma_bf16(o, v, p[0], p[1]);
            *(float2 *)&out->acc[8 * t + 2 * c][16 * b + 2 * g] = make_float2(o[0], o[2]);
            *(float2 *)&out->acc[8 * t + 2 * c + 1][16 * b + 2 * g] = make_float2(o[1], o[3]);
        }
    }
}

/* grid: (splits, KV heads x groups of 8 * NT query heads, rows) */
template <int HD, int TYPE, int NT>
static __global__ void __launch_bounds__(32 * WARPS) single_kernel(const single_params p)
{
    DYNAMIC_SHARED(memory);
    gpu_wait_before();
    gpu_let_next();
    const struct cuda_attention &a = p.a;
    warp_part<HD, NT> *part = (warp_part<HD, NT> *)memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = blockIdx.x, which = blockIdx.z;
    if (which >= min(*a.single_count, a.n_single))
        return;
    const struct cuda_tile tile = a.single[which];
    const int pos = a.pos[tile.row], begin = split * CUDA_SPLIT_KEYS;
    if (begin > pos)
        return;
    const int of_kv = a.n_head / a.kv.n_kv_head, groups = (of_kv + 8 * NT - 1) / (8 * NT);
    const int kv_head = (int)blockIdx.y / groups, at_head = (int)blockIdx.y % groups * 8 * NT;
    const int head = kv_head * of_kv + at_head, n_head = min(8 * NT, of_kv - at_head);
    const int n = min(pos + 1 - begin, CUDA_SPLIT_KEYS), n_warp = (n + CUDA_KV_BLOCK - 1) / CUDA_KV_BLOCK;
    if (warp < n_warp) {
        const int block = a.block_table[(size_t)tile.seq * *a.stride + begin / CUDA_KV_BLOCK + warp];
        const float scale = a.scale * LOG2_E * (TYPE == CUDA_KV_FP8 ? a.kv.scale[0] : 1.0f);
        walk_block<HD, TYPE, NT>(a.kv, kv_region(a.kv, block, kv_head),
                                 a.q + ((size_t)tile.row * a.n_head + head) * HD, n_head,
                                 min(CUDA_KV_BLOCK, n - warp * CUDA_KV_BLOCK), scale, &part[warp], lane);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n_head * HD; i += 32 * WARPS) {
        const int h = i / HD, d = i % HD;
        float max = part[0].max[h], sum = 0.0f, acc = 0.0f;
        for (int w = 1; w < n_warp; w++)
            max = fmaxf(max, part[w].max[h]);
        for (int w = 0; w < n_warp; w++) {
            const float by = gpu_exp2(part[w].max[h] - max);
            sum = fmaf(by, part[w].sum[h], sum);
            acc = fmaf(by, part[w].acc[h][d], acc);
        }
        if (a.n_split == 1) {
            const float by = (TYPE == CUDA_KV_FP8 ? a.kv.scale[1] : 1.0f) / sum;
            a.y[((size_t)tile.row * a.n_head + head) * HD + i] = float_bf16(acc * by);
            continue;
        }
        const size_t to = ((size_t)which * a.n_head + head + h) * a.n_split + split;
        p.parts.acc[to * HD + d] = acc;
        if (d == 0) {
            p.parts.max[to] = max;
            p.parts.sum[to] = sum;
        }
    }
}

/* Splits in order of position: a block for each row and head, a thread a dimension. */
static __global__ void merge_kernel(const single_params p)
{
    gpu_wait_before();
    gpu_let_next();
    const struct cuda_attention &a = p.a;
    const int which = blockIdx.y;
    if (which >= min(*a.single_count, a.n_single))
        return;
    const int row = a.single[which].row;
    merge(p, which, row, blockIdx.x, threadIdx.x, min(a.pos[row] / CUDA_SPLIT_KEYS + 1, a.n_split));
}

template <int HD, int TYPE, int NT>
static const char *start(const single_params &p, int groups, cudaStream_t stream)
{
    const size_t bytes = sizeof(warp_part<HD, NT>) * WARPS;
    const dim3 grid((unsigned)p.a.n_split, (unsigned)(p.a.kv.n_kv_head * groups), (unsigned)p.a.n_single);
    const char *why = gpu_why(gpu_allow_shared(single_kernel<HD, TYPE, NT>, bytes));
    return why ? why : gpu_why(gpu_launch(single_kernel<HD, TYPE, NT>, grid, 32 * WARPS, bytes, stream, p));
}

const char *attention_single_start(const struct cuda_attention *a, const struct attention_parts *parts,
                                   cudaStream_t stream)
{
    const int of_kv = a->n_head / a->kv.n_kv_head, groups = of_kv <= 8 ? 1 : (of_kv + 15) / 16;
    const single_params p = {*a, *parts};
    const char *why = nullptr;
#define CALL(HD, TYPE) \
    of_kv <= 8 ? start<HD, TYPE, 1>(p, groups, stream) : start<HD, TYPE, 2>(p, groups, stream)
    ATTENTION_SWITCH(why, a->kv, CALL)
#undef CALL
    if (why || a->n_split == 1)
        return why;
    const dim3 grid((unsigned)a->n_head, (unsigned)a->n_single);
    return gpu_why(gpu_launch(merge_kernel, grid, (unsigned)a->kv.head_dim, 0, stream, p));
}
