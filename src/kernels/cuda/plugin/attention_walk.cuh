/* A sequence, or a part of one, by warps that take turns with its spans (attention_span.cuh): the query heads
 * of a KV head that share its keys, eight columns of the matrix instruction each. */
#pragma once

#include "kernels/cuda/plugin/attention_span.cuh"

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

/* The same of rows of floats in shared memory, `stride` each. */
template <int HD, int TYPE, int NT>
static __device__ __forceinline__ void round_heads(heads<HD, NT> &h, const float *q, int stride, int n_head,
                                                   int lane)
{
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const float *mine = q + min(8 * t + lane / 4, n_head - 1) * stride;
#pragma unroll
        for (int i = 0; i < HD / 32; i++) {
            const float *from = mine + span_keys<HD, TYPE>::query_at(i, lane % 4);
            const float4 u = *(const float4 *)from, v = *(const float4 *)(from + 4);
            h.q[t][i] = make_uint4(float_bf16_pair(u.x, u.y), float_bf16_pair(u.z, u.w),
                                   float_bf16_pair(v.x, v.y), float_bf16_pair(v.z, v.w));
        }
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

/* Weights as the second operand of the product with values. */
template <int TYPE, int NT>
static __device__ __forceinline__ void weights_to_pairs(const float (&weight)[span<TYPE>::TILES][NT][4],
                                                        uint32_t (&p)[span<TYPE>::TILES][NT][2])
{
#pragma unroll
    for (int u = 0; u < span<TYPE>::TILES; u++)
#pragma unroll
        for (int t = 0; t < NT; t++) {
            p[u][t][0] = transpose_8x8(kv_pair<TYPE>(weight[u][t][0], weight[u][t][1]));
            p[u][t][1] = transpose_8x8(kv_pair<TYPE>(weight[u][t][2], weight[u][t][3]));
        }
}

/* A warp's spans of a sequence: every `step`-th from `first` on, of the keys before `end`. A lane knows one
 * of their cache blocks: they are 32 at most. */
template <int TYPE> struct own_spans {
    int first, step, end, block;
    __device__ __forceinline__ bool any(int k) const
    {
        return (first + k * step) * span<TYPE>::KEYS < end;
    }
    /* Blocks behind the last repeat it, and count for nothing. */
    __device__ __forceinline__ void look(const int32_t *table, int lane)
    {
        const int n = span<TYPE>::BLOCKS, k = lane / n;
        block = any(k) ? table[min((first + k * step) * n + lane % n, (end - 1) / CUDA_KV_BLOCK)] : 0;
    }
    __device__ __forceinline__ size_t region(const struct cuda_kv &kv, int kv_head, int k, int more) const
    {
        return kv_region(kv, __shfl_sync(ALL_LANES, block, k * span<TYPE>::BLOCKS + more), kv_head);
    }
    /* Spans [from, to), as far as there are any, on their way into the L2. */
    template <int HD>
    __device__ __forceinline__ void fetch(const struct cuda_kv &kv, int kv_head, int from, int to,
                                          int lane) const
    {
        const size_t width = TYPE == CUDA_KV_FP8 ? 1 : 2, line = 128;
        const int n = (int)(CUDA_KV_BLOCK * HD * width / line);
#pragma unroll 1
        for (int k = from; k < to && any(k); k++)
#pragma unroll
            for (int more = 0; more < span<TYPE>::BLOCKS; more++) {
                const size_t at = region(kv, kv_head, k, more) * width;
                if (lane < n) {
                    gpu_prefetch(kv.k + at + line * lane);
                    gpu_prefetch(kv.v + at + line * lane);
                }
            }
    }
};

/* A key and a value, the last of the sequence, that the cache need not have yet: attention_fresh.cuh. */
struct fresh_last {
    const uint8_t *key, *value; /* NULL: the cache has them */
};

template <int HD, int TYPE, int NT> struct span_walk {
    typedef span<TYPE> s;
    own_spans<TYPE> own;
    span_keys<HD, TYPE> key;
    span_values<HD, TYPE> value;
    int kv_head;

    __device__ __forceinline__ void load_keys(const struct cuda_kv &kv, int k, int lane)
    {
        const int g = lane / 4;
        key.load(kv.k, own.region(kv, kv_head, k, s::key_of_row(0, g) / CUDA_KV_BLOCK), g, lane % 4);
    }
    __device__ __forceinline__ void load_values(const struct cuda_kv &kv, int k, int lane)
    {
        const int c = lane % 4;
        value.load(kv.v, own.region(kv, kv_head, k, s::key_of_lane(c) / CUDA_KV_BLOCK), lane / 4, c);
    }

    /* Asks for the first span, if there is one. */
    __device__ __forceinline__ void begin(const struct cuda_kv &kv, int lane)
    {
        if (own.any(0)) {
            load_keys(kv, 0, lane);
            load_values(kv, 0, lane);
        }
    }

    /* When the queries are there, too. */
    __device__ __forceinline__ void run(const struct cuda_kv &kv, heads<HD, NT> &h, float scale,
                                        const fresh_last &fresh, int lane)
    {
        begin_heads<HD, TYPE, NT>(h, scale, lane);
#pragma unroll 1
        for (int k = 0; own.any(k); k++) {
            const int left = own.end - (own.first + k * own.step) * s::KEYS;
            const bool is_fresh = fresh.key && left <= s::KEYS, more = own.any(k + 1);
            float weight[s::TILES][NT][4] = {};
            if (is_fresh)
                key.put(left - 1, fresh.key, lane / 4, lane % 4);
            key.template score<NT>(weight, h.q);
            if (more)
                load_keys(kv, k + 1, lane);
            weigh<HD, TYPE, NT>(weight, h, left, lane);
            if (left < s::KEYS)
                value.keep(left - s::key_of_lane(lane % 4));
            if (is_fresh)
                value.put(left - 1 - s::key_of_lane(lane % 4), fresh.value, lane / 4);
            uint32_t p[s::TILES][NT][2];
            weights_to_pairs<TYPE, NT>(weight, p);
            value.template add<NT>(h.o, p);
            if (more)
                load_values(kv, k + 1, lane);
        }
    }
};

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

/* What a block has of head t and dimensions d to d + 3, from what its warps have. */
struct four_sums {
    float max, sum;
    float4 acc;
    __device__ __forceinline__ void add(float by, float other, float4 v)
    {
        sum = fmaf(by, other, sum);
        acc.x = fmaf(by, v.x, acc.x);
        acc.y = fmaf(by, v.y, acc.y);
        acc.z = fmaf(by, v.z, acc.z);
        acc.w = fmaf(by, v.w, acc.w);
    }
};
template <int HD, int NT, int WARPS>
static __device__ __forceinline__ four_sums add_warps(const warp_part<HD, NT> *part, int t, int d)
{
    four_sums all = {};
    all.max = part[0].max[t];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        all.max = fmaxf(all.max, part[w].max[t]);
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        all.add(gpu_exp2(part[w].max[t] - all.max), part[w].sum[t], *(const float4 *)&part[w].acc[t][d]);
    return all;
}
