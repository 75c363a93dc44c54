/* A part of a sequence by the warps of a block, which take turns with its spans (attention_span.cuh): the
 * query heads of a KV head that share its keys, eight columns of the matrix instruction each. */
#pragma once

#include "kernels/cuda/plugin/attention_span.cuh"

#define WARPS_FEW 8 /* where few rows are in the step */

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

/* Every WARPS-th span of a part, this warp's first on. */
template <int HD, int TYPE, int NT, int WARPS> struct part_walk {
    span_keys<HD, TYPE> key;
    span_values<HD, TYPE> value;
    int block, block_32, n, last,
        kv_head; /* a lane has the numbers of blocks `lane` and 32 + lane; n: keys */

    /* a block of a span that is not there repeats the last, and counts for nothing */
    __device__ __forceinline__ size_t region(const struct cuda_kv &kv, int at, int more) const
    {
        const int i = min(at * span<TYPE>::BLOCKS + more, last);
        int id = __shfl_sync(ALL_LANES, block, i % 32);
        if (WARPS != WARPS_FEW) { /* parts of few rows have 32 blocks at most */
            const int other = __shfl_sync(ALL_LANES, block_32, i % 32);
            id = i < 32 ? id : other;
        }
        return kv_region(kv, id, kv_head);
    }
    __device__ __forceinline__ void load_keys(const struct cuda_kv &kv, int at, int lane)
    {
        const int g = lane / 4;
        key.load(kv.k, region(kv, at, span<TYPE>::key_of_row(0, g) / CUDA_KV_BLOCK), g, lane % 4);
    }
    __device__ __forceinline__ void load_values(const struct cuda_kv &kv, int at, int lane)
    {
        const int c = lane % 4;
        value.load(kv.v, region(kv, at, span<TYPE>::key_of_lane(c) / CUDA_KV_BLOCK), lane / 4, c);
    }
    __device__ __forceinline__ bool any(int at) const
    {
        return at * span<TYPE>::BLOCKS <= last;
    }

    /* Asks for the first span, if there is one. */
    __device__ __forceinline__ void begin(const struct cuda_kv &kv, int first, int second, int kv_head_,
                                          int n_, int warp, int lane)
    {
        block = first;
        block_32 = second;
        kv_head = kv_head_;
        n = n_;
        last = (n - 1) / CUDA_KV_BLOCK;
        if (any(warp)) {
            load_keys(kv, warp, lane);
            load_values(kv, warp, lane);
        }
    }

    /* When the queries are there, too. */
    __device__ __forceinline__ void run(const struct cuda_kv &kv, heads<HD, NT> &h, float scale, int warp,
                                        int lane)
    {
        typedef span<TYPE> s;
        int at = warp;
        begin_heads<HD, TYPE, NT>(h, scale, lane);
#pragma unroll 1
        for (bool more = any(at); more; at += WARPS) {
            float weight[s::TILES][NT][4] = {};
            key.template score<NT>(weight, h.q);
            more = any(at + WARPS);
            if (more)
                load_keys(kv, at + WARPS, lane);
            const int left = n - at * s::KEYS;
            weigh<HD, TYPE, NT>(weight, h, left, lane);
            if (left < s::KEYS)
                value.keep(left - s::key_of_lane(lane % 4));
            uint32_t p[s::TILES][NT][2];
            weights_to_pairs<TYPE, NT>(weight, p);
            value.template add<NT>(h.o, p);
            if (more)
                load_values(kv, at + WARPS, lane);
        }
    }
};

/* Before the row's own key and value are there: the others' way from memory begins. */
template <int HD, int TYPE>
static __device__ __forceinline__ void fetch_part(const struct cuda_kv &kv, int block, int kv_head, int last,
                                                  int warp, int lane)
{
    const size_t width = TYPE == CUDA_KV_FP8 ? 1 : 2, line = 128;
    const int n = (int)(CUDA_KV_BLOCK * HD * width / line);
#pragma unroll 1
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

/* What a part has of head t and dimension d, from what its warps have. */
struct whole_part {
    float max, sum, acc;
};
template <int HD, int NT, int WARPS>
static __device__ __forceinline__ whole_part add_warps(const warp_part<HD, NT> *part, int t, int d)
{
    whole_part p = {};
    p.max = part[0].max[t];
#pragma unroll
    for (int w = 1; w < WARPS; w++)
        p.max = fmaxf(p.max, part[w].max[t]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const float by = gpu_exp2(part[w].max[t] - p.max);
        p.sum = fmaf(by, part[w].sum[t], p.sum);
        p.acc = fmaf(by, part[w].acc[t][d], p.acc);
    }
    return p;
}
