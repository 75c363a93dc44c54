/* Attention of sequences that have one row in the step: a block for each KV head and each part of a sequence,
 * whose warps take turns with the spans (attention_span.cuh) of the part. A warp's keys and values go from
 * memory straight into the operands of the matrix instruction: keys, and then values transposed, are the
 * first operand; the query heads that share them are the eight columns. The next keys are asked for when the
 * last have been used, and values likewise, so that a warp always waits for one of them and works on the
 * other.
 *
 * Where few rows are in the step, blocks have more warps and parts are short: latency is all there is. */
#include "kernels/cuda/plugin/attention_span.cuh"

#define WARPS_FEW  8
#define WARPS_MANY 4

struct single_params {
    struct cuda_attention a;
    struct attention_parts parts;
    int n_part, long_from;
};

/* A warp's result, in shared memory. */
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

/* What a warp has of its query heads: columns 2c and 2c + 1 of each eight are this lane's. */
template <int HD, int NT> struct heads {
    uint4 q[NT][HD / 32];
    float scale[NT][2], max[NT][2], sum[NT][2]; /* sum: of this lane's keys */
    float o[NT][HD / 16][4];
};

template <int HD, int TYPE, int NT>
static __device__ __forceinline__ void ask_for_heads(heads<HD, NT> &h, const uint16_t *q, int n_head,
                                                     int lane)
{
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const uint16_t *mine = q + (size_t)min(8 * t + lane / 4, n_head - 1) * HD;
#pragma unroll
        for (int i = 0; i < HD / 32; i++)
            h.q[t][i] = *(const uint4 *)(mine + span_keys<HD, TYPE>::query_at(i, lane % 4));
    }
}

/* When they have come, and keys are on their way. */
template <int HD, int TYPE, int NT>
static __device__ __forceinline__ void begin_heads(heads<HD, NT> &h, float scale, int lane)
{
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const float by = TYPE == CUDA_KV_FP8 ? query_half<4>(h.q[t]) : 1.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            h.scale[t][i] = scale;
            if (TYPE == CUDA_KV_FP8) /* head 2c + i is that of lanes whose g is that */
                h.scale[t][i] *= __shfl_sync(ALL_LANES, by, 4 * (2 * (lane % 4) + i));
            h.max[t][i] = -INFINITY;
            h.sum[t][i] = 0.0f;
        }
#pragma unroll
        for (int b = 0; b < HD / 16; b++)
            h.o[t][b][0] = h.o[t][b][1] = h.o[t][b][2] = h.o[t][b][3] = 0.0f;
    }
}

/* Scores of a span to weights under the largest so far. n: keys that there are, the first at least. */
template <int HD, int TYPE, int NT>
static __device__ __forceinline__ void weigh(float (&s)[span<TYPE>::TILES][NT][4], heads<HD, NT> &h, int n,
                                             int lane)
{
#pragma unroll
    for (int t = 0; t < NT; t++) {
        float max[2] = {-INFINITY, -INFINITY};
        bool larger = false;
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int u = 0; u < span<TYPE>::TILES; u++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float &x = s[u][t][2 * r + i];
                    x = span<TYPE>::key_of_row(u, lane / 4) + 2 * r < n ? x * h.scale[t][i] : -INFINITY;
                    max[i] = fmaxf(max[i], x);
                }
            max[i] = fmaxf(column_max(max[i]), h.max[t][i]);
            larger |= max[i] > h.max[t][i];
        }
        if (__any_sync(ALL_LANES, larger)) /* else the factors are ones */
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float by = gpu_exp2(h.max[t][i] - max[i]);
                h.max[t][i] = max[i];
                h.sum[t][i] *= by;
#pragma unroll
                for (int b = 0; b < HD / 16; b++) {
                    h.o[t][b][i] *= by;
                    h.o[t][b][2 + i] *= by;
                }
            }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float from = TYPE == CUDA_KV_FP8 ? max[i] - FP8_WEIGHT_LOG2 : max[i];
#pragma unroll
            for (int u = 0; u < span<TYPE>::TILES; u++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float &x = s[u][t][2 * r + i];
                    x = gpu_exp2(x - from);
                    h.sum[t][i] += x;
                }
        }
    }
}

/* Every WARPS-th span of a part, this warp's first on. `block`: a lane has the number of the part's block
 * `lane`. n: keys of the part. */
template <int HD, int TYPE, int NT, int WARPS>
static __device__ __forceinline__ void walk_part(const struct cuda_kv &kv, heads<HD, NT> &h, int block,
                                                 int kv_head, int n, float scale, int warp, int lane)
{
    typedef span<TYPE> s;
    const int g = lane / 4, c = lane % 4, last = (n - 1) / CUDA_KV_BLOCK;
    const int block_of_rows = s::key_of_row(0, g) / CUDA_KV_BLOCK,
              block_of_lane = s::key_of_lane(c) / CUDA_KV_BLOCK;
    span_keys<HD, TYPE> key;
    span_values<HD, TYPE> value;
    /* a block of a span that is not there repeats the last, and counts for nothing */
    const auto region = [&](int at, int more) {
        return kv_region(kv, __shfl_sync(ALL_LANES, block, min(at * s::BLOCKS + more, last)), kv_head);
    };
    int at = warp;
    const bool any = at * s::BLOCKS <= last;
    if (any) {
        key.load(kv.k, region(at, block_of_rows), g, c);
        value.load(kv.v, region(at, block_of_lane), g, c);
    }
    begin_heads<HD, TYPE, NT>(h, scale, lane);
#pragma unroll 1
    for (bool more = any; more; at += WARPS) {
        float weight[s::TILES][NT][4] = {};
        key.template score<NT>(weight, h.q);
        more = (at + WARPS) * s::BLOCKS <= last;
        if (more)
            key.load(kv.k, region(at + WARPS, block_of_rows), g, c);
        const int left = n - at * s::KEYS;
        weigh<HD, TYPE, NT>(weight, h, left, lane);
        if (left < s::KEYS)
            value.keep(left - s::key_of_lane(c));
        uint32_t p[s::TILES][NT][2];
#pragma unroll
        for (int u = 0; u < s::TILES; u++)
#pragma unroll
            for (int t = 0; t < NT; t++) {
                p[u][t][0] = transpose_8x8(kv_pair<TYPE>(weight[u][t][0], weight[u][t][1]));
                p[u][t][1] = transpose_8x8(kv_pair<TYPE>(weight[u][t][2], weight[u][t][3]));
            }
        value.template add<NT>(h.o, p);
        if (more)
            value.load(kv.v, region(at + WARPS, block_of_lane), g, c);
    }
}

/* Before the row's own key and value are there: the others' way from memory begins. */
template <int HD, int TYPE>
static __device__ __forceinline__ void fetch_part(const struct cuda_kv &kv, int block, int kv_head, int last,
                                                  int warp, int lane)
{
    const size_t width = TYPE == CUDA_KV_FP8 ? 1 : 2, line = 128;
    const int n = (int)(CUDA_KV_BLOCK * HD * width / line);
    for (int at = warp; at <= last; at += WARPS_FEW) {
        const size_t from = kv_region(kv, __shfl_sync(ALL_LANES, block, at), kv_head) * width;
        if (lane < n) {
            gpu_prefetch(kv.k + from + line * lane);
            gpu_prefetch(kv.v + from + line * lane);
        }
    }
}

template <int HD, int NT>
static __device__ __forceinline__ void put_part(const heads<HD, NT> &h, warp_part<HD, NT> *out, int lane)
{
    const int g = lane / 4, c = lane % 4;
#pragma unroll
    for (int t = 0; t < NT; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int head = 8 * t + 2 * c + i;
            const float sum = column_sum(h.sum[t][i]);
            if (g == 0) {
                out->max[head] = h.max[t][i];
                out->sum[head] = sum;
            }
#pragma unroll
            for (int b = 0; b < HD / 16; b++)
                *(float2 *)&out->acc[head][16 * b + 2 * g] = make_float2(h.o[t][b][i], h.o[t][b][2 + i]);
        }
}

/* grid: (parts, KV heads x groups of 8 * NT query heads, rows) */
template <int HD, int TYPE, int NT, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS, (NT == 1 ? 12 : 8) / WARPS)
    single_kernel(const single_params p)
{
    DYNAMIC_SHARED(memory);
    const bool few = WARPS == WARPS_FEW;
    const struct cuda_attention &a = p.a;
    warp_part<HD, NT> *part = (warp_part<HD, NT> *)memory;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = blockIdx.x, which = blockIdx.z;
    const int of_kv = a.n_head / a.kv.n_kv_head, groups = (of_kv + 8 * NT - 1) / (8 * NT);
    const int kv_head = (int)blockIdx.y / groups, at_head = (int)blockIdx.y % groups * 8 * NT;
    const int head = kv_head * of_kv + at_head, n_head = min(8 * NT, of_kv - at_head);
    /* What no operator writes, and where the cache is, before waiting for the operator before. */
    int row = 0, n = 0, block = 0;
    if (which < min(*a.single_count, a.n_single)) {
        const struct cuda_tile tile = a.single[which];
        row = tile.row;
        const int pos = a.pos[row], keys = attention_part_keys(p.long_from, pos);
        n = min(pos + 1 - split * keys, keys); /* keys of the part, if there are any */
        if (lane * CUDA_KV_BLOCK < n)
            block = a.block_table[(size_t)tile.seq * *a.stride + split * (keys / CUDA_KV_BLOCK) + lane];
        if (few && n > 0)
            fetch_part<HD, TYPE>(a.kv, block, kv_head, (n - 1) / CUDA_KV_BLOCK, warp, lane);
    }
    gpu_wait_before();
    gpu_let_next();
    if (n <= 0)
        return;
    const float scale = a.scale * LOG2_E * (TYPE == CUDA_KV_FP8 ? a.kv.scale[0] : 1.0f);
    heads<HD, NT> h;
    ask_for_heads<HD, TYPE, NT>(h, a.q + ((size_t)row * a.n_head + head) * HD, n_head, lane);
    walk_part<HD, TYPE, NT, WARPS>(a.kv, h, block, kv_head, n, scale, warp, lane);
    put_part(h, &part[warp], lane); /* of a warp without a key: nothing, under a weight of zero */
    __syncthreads();
    for (int i = threadIdx.x; i < n_head * HD; i += 32 * WARPS) {
        const int t = i / HD, d = i % HD;
        float max = part[0].max[t], sum = 0.0f, acc = 0.0f;
#pragma unroll
        for (int w = 1; w < WARPS; w++)
            max = fmaxf(max, part[w].max[t]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float by = gpu_exp2(part[w].max[t] - max);
            sum = fmaf(by, part[w].sum[t], sum);
            acc = fmaf(by, part[w].acc[t][d], acc);
        }
        if (p.n_part == 1) {
            const float by = (TYPE == CUDA_KV_FP8 ? a.kv.scale[1] : 1.0f) / sum;
            a.y[((size_t)row * a.n_head + head) * HD + i] = float_bf16(acc * by);
            continue;
        }
        const size_t to = ((size_t)which * a.n_head + head + t) * p.n_part + split;
        p.parts.acc[to * HD + d] = acc;
        if (d == 0) {
            p.parts.max[to] = max;
            p.parts.sum[to] = sum;
        }
    }
}

template <int HD, int TYPE, int NT, int WARPS>
static const char *start(const single_params &p, int groups, cudaStream_t stream)
{
    const size_t bytes = sizeof(warp_part<HD, NT>) * WARPS;
    const dim3 grid((unsigned)p.n_part, (unsigned)(p.a.kv.n_kv_head * groups), (unsigned)p.a.n_single);
    const char *why = gpu_why(gpu_allow_shared(single_kernel<HD, TYPE, NT, WARPS>, bytes));
    return why ? why
               : gpu_why(gpu_launch(single_kernel<HD, TYPE, NT, WARPS>, grid, 32 * WARPS, bytes, stream, p));
}

template <int HD, int TYPE> static const char *start_size(const single_params &p, cudaStream_t stream)
{
    const int of_kv = p.a.n_head / p.a.kv.n_kv_head, groups = (of_kv + 15) / 16;
    const bool few = p.long_from > 0;
    if (of_kv <= 8)
        return few ? start<HD, TYPE, 1, WARPS_FEW>(p, 1, stream)
                   : start<HD, TYPE, 1, WARPS_MANY>(p, 1, stream);
    return few ? start<HD, TYPE, 2, WARPS_FEW>(p, groups, stream)
               : start<HD, TYPE, 2, WARPS_MANY>(p, groups, stream);
}

const char *attention_single_start(const struct cuda_attention *a, const struct attention_parts *parts,
                                   cudaStream_t stream)
{
    const single_params p = {*a, *parts, attention_part_count(a), attention_long_from(a)};
    const char *why = nullptr;
#define CALL(HD, TYPE) start_size<HD, TYPE>(p, stream)
    ATTENTION_SWITCH(why, a->kv, CALL)
#undef CALL
    return why || p.n_part == 1 ? why : attention_merge_start(a, parts, stream);
}
