/* The choice of experts for one token by one warp, from its logits. The order of every comparison is that of
 * the CPU's router: ties go to the lowest index, NaN is worse than any number.
 *
 * Without groups a lane holds the experts lane, lane + 32, ... in registers, and a choice is two reductions:
 * of the values as integers that sort like them, and of the indices that have the largest. With groups, or
 * more choices than lanes, all of it lies in shared memory. */
#pragma once

#include "kernels/cuda/plugin/operators.h"

/* ---- what is written ------------------------------------------------------------------------------- */

/* Experts of a row, with those that it takes as they are. */
static __device__ __forceinline__ int route_width(const cuda_router &a)
{
    return a.top_k + a.n_shared;
}

/* Those, behind a row's choices, or none in a row that does not count. All lanes. */
static __device__ __forceinline__ void route_shared(const cuda_router &a, int t, bool real, int lane)
{
    const size_t at = (size_t)t * route_width(a) + a.top_k;
#pragma unroll 1
    for (int i = lane; i < a.n_shared; i += 32) {
        a.expert[at + i] = real ? a.n_expert + i : -1;
        a.weight[at + i] = real ? 1.0f : 0.0f;
    }
}

/* A row that does not count. */
static __device__ __forceinline__ void route_nothing(const cuda_router &a, int t, int lane)
{
#pragma unroll 1
    for (int i = lane; i < route_width(a); i += 32) {
        a.expert[(size_t)t * route_width(a) + i] = -1;
        a.weight[(size_t)t * route_width(a) + i] = 0.0f;
    }
}

/* ---- in shared memory ------------------------------------------------------------------------------ */

/* A warp's memory. */
struct route_room {
    float score[CUDA_EXPERTS_MAX], choice[CUDA_EXPERTS_MAX], group[CUDA_EXPERTS_MAX];
    uint8_t taken[CUDA_EXPERTS_MAX], taken_group[CUDA_EXPERTS_MAX];
};

static __device__ __forceinline__ bool better(float a, float b)
{
    return a > b || (b != b && a == a);
}

/* The best of x[0..n) that is not taken, the lowest index among equals, in every lane. */
static __device__ int best_of(const float *x, const uint8_t *taken, int n, int lane)
{
    int index = -1;
    float value = 0.0f;
    for (int i = lane; i < n; i += 32)
        if (!taken[i] && (index < 0 || better(x[i], value))) {
            index = i;
            value = x[i];
        }
    for (int d = 16; d > 0; d /= 2) {
        const float v = __shfl_xor_sync(ALL_LANES, value, d);
        const int i = __shfl_xor_sync(ALL_LANES, index, d);
        if (i >= 0 && (index < 0 || better(v, value) || (!better(value, v) && i < index))) {
            index = i;
            value = v;
        }
    }
    return index;
}

static __device__ int take_best(const float *x, uint8_t *taken, int n, int lane)
{
    const int index = best_of(x, taken, n, lane);
    __syncwarp();
    if (lane == 0)
        taken[index] = 1;
    __syncwarp();
    return index;
}

/* NaN where any is. */
static __device__ float warp_max_nan(float v)
{
    for (int d = 16; d > 0; d /= 2) {
        const float o = __shfl_xor_sync(ALL_LANES, v, d);
        v = o > v || o != o ? o : v;
    }
    return v;
}

static __device__ void softmax(const float *x, float *out, int n, int lane)
{
    float max = -INFINITY, sum = 0.0f;
    for (int i = lane; i < n; i += 32)
        max = x[i] > max || x[i] != x[i] ? x[i] : max;
    max = warp_max_nan(max);
    for (int i = lane; i < n; i += 32) {
        const float e = expf(x[i] - max);
        out[i] = e;
        sum += e;
    }
    sum = warp_sum(sum);
    for (int i = lane; i < n; i += 32)
        out[i] /= sum;
}

/* A group counts as much as its two best together; experts of the groups that lose compete with 0. */
static __device__ void mask_groups(const cuda_router &a, route_room &r, int lane)
{
    const int size = a.n_expert / a.n_group;
    for (int g = 0; g < a.n_group; g++) {
        const float *x = r.choice + g * size;
        float sum = x[take_best(x, r.taken + g * size, size, lane)];
        if (size > 1)
            sum += x[take_best(x, r.taken + g * size, size, lane)];
        if (lane == 0)
            r.group[g] = sum;
    }
    __syncwarp();
    for (int i = 0; i < a.top_group; i++)
        take_best(r.group, r.taken_group, a.n_group, lane);
    for (int e = lane; e < a.n_expert; e += 32) {
        if (!r.taken_group[e / size])
            r.choice[e] = 0.0f;
        r.taken[e] = 0;
    }
    __syncwarp();
}

static __device__ void weigh(const cuda_router &a, const route_room &r, const int32_t *expert, float *weight,
                             int lane)
{
    float sum = 0.0f, by = 1.0f;
    for (int i = 0; i < a.top_k; i++) /* in order, in every lane */
        sum += r.score[expert[i]];
    if (a.normalize)
        by = a.norm_add ? sum + a.norm_min : sum < a.norm_min ? a.norm_min : sum;
    for (int i = lane; i < a.top_k; i += 32)
        weight[i] = r.score[expert[i]] / by * a.scaling;
}

/* The rare way: its code is there once. */
static __device__ __noinline__ void route_groups(const cuda_router &a, int t, const float *logit,
                                                 route_room &r, int lane)
{
    int32_t *expert = a.expert + (size_t)t * route_width(a);
    __syncwarp(); /* the row before may have been the same warp's */
    for (int e = lane; e < a.n_expert; e += 32) {
        r.score[e] = a.sigmoid && !a.softmax_topk ? 1.0f / (1.0f + expf(-logit[e])) : logit[e];
        r.taken[e] = r.taken_group[e] = 0;
    }
    __syncwarp();
    if (!a.softmax_topk && !a.sigmoid)
        softmax(r.score, r.score, a.n_expert, lane);
    __syncwarp();
    for (int e = lane; e < a.n_expert; e += 32)
        r.choice[e] = a.bias ? r.score[e] + a.bias[e] : r.score[e];
    __syncwarp();
    if (a.n_group > 1)
        mask_groups(a, r, lane);
    for (int i = 0; i < a.top_k; i++) {
        const int e = take_best(r.choice, r.taken, a.n_expert, lane);
        if (lane == 0)
            expert[i] = e;
        if (lane == 0 && a.load)
            atomicAdd((unsigned long long *)&a.load[e], 1ull);
    }
    __syncwarp();
    if (a.softmax_topk) { /* the chosen logits, softened among themselves */
        for (int i = lane; i < a.top_k; i += 32)
            r.choice[i] = logit[expert[i]];
        __syncwarp();
        softmax(r.choice, r.choice, a.top_k, lane);
        __syncwarp();
        for (int i = lane; i < a.top_k; i += 32)
            r.score[expert[i]] = r.choice[i];
        __syncwarp();
    }
    weigh(a, r, expert, a.weight + (size_t)t * route_width(a), lane);
}

/* ---- in registers ---------------------------------------------------------------------------------- */

/* Sorts like the numbers, zeros of both signs alike; NaN is 1, below all of them; 0 is for what is taken. */
static __device__ __forceinline__ uint32_t sort_key(float v)
{
    const uint32_t bits = __float_as_uint(v + 0.0f);
    return v != v ? 1u : bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The number of a key that is not 0 or 1. */
static __device__ __forceinline__ float sort_number(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* What is added to a lane's scores for the choice, if anything is. */
template <int V>
static __device__ __forceinline__ void route_bias(const cuda_router &a, int lane, float (&bias)[V])
{
#pragma unroll
    for (int j = 0; j < V; j++)
        bias[j] = a.bias && lane + 32 * j < a.n_expert ? a.bias[lane + 32 * j] : 0.0f;
}

/* Scores of a lane's V experts, and keys by which they are chosen; 0 for those that do not exist. logit:
 * global or shared memory. All lanes. */
template <int V>
static __device__ __forceinline__ void route_scores(const cuda_router &a, const float *logit, int lane,
                                                    const float (&bias)[V], float (&score)[V],
                                                    uint32_t (&key)[V])
{
    float max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int j = 0; j < V; j++) {
        const int e = lane + 32 * j;
        score[j] = e < a.n_expert ? logit[e] : -INFINITY;
        max = score[j] > max || score[j] != score[j] ? score[j] : max;
    }
    if (!a.softmax_topk && a.sigmoid) {
#pragma unroll
        for (int j = 0; j < V; j++)
            score[j] = 1.0f / (1.0f + expf(-score[j]));
    } else if (!a.softmax_topk) {
        max = warp_max_nan(max);
#pragma unroll
        for (int j = 0; j < V; j++) {
            score[j] = lane + 32 * j < a.n_expert ? expf(score[j] - max) : 0.0f;
            sum += score[j];
        }
        sum = warp_sum(sum);
#pragma unroll
        for (int j = 0; j < V; j++)
            score[j] /= sum;
    }
#pragma unroll
    for (int j = 0; j < V; j++) {
        const int e = lane + 32 * j;
        key[j] = e < a.n_expert ? sort_key(a.bias ? score[j] + bias[j] : score[j]) : 0u;
    }
}

/* What the expert that lane i has chosen counts, from its score; lanes from top_k on have none. All lanes. */
static __device__ __forceinline__ float route_weight(const cuda_router &a, float weight, int lane)
{
    if (a.softmax_topk) { /* the chosen logits, softened among themselves */
        const float max = warp_max_nan(lane < a.top_k ? weight : -INFINITY);
        weight = lane < a.top_k ? expf(weight - max) : 0.0f;
        weight /= warp_sum(weight);
    }
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < a.top_k; i++)
        sum += __shfl_sync(ALL_LANES, weight, i);
    if (a.normalize)
        weight /= a.norm_add ? sum + a.norm_min : sum < a.norm_min ? a.norm_min : sum;
    return weight * a.scaling;
}

/* V experts a lane. top_k at most 32: lane i ends with choice i. logit: global or shared memory. */
template <int V>
static __device__ __forceinline__ void route_lanes(const cuda_router &a, int t, const float *logit, int lane)
{
    float bias[V], score[V];
    uint32_t key[V];
    route_bias<V>(a, lane, bias);
    route_scores<V>(a, logit, lane, bias, score, key);
    int chosen = 0;
    float weight = 0.0f;
#pragma unroll 1
    for (int i = 0; i < a.top_k; i++) {
        uint32_t best = 0;
        int at = 0;
        float value = 0.0f;
#pragma unroll
        for (int j = 0; j < V; j++)
            if (key[j] > best) {
                best = key[j];
                at = j;
                value = score[j];
            }
        const uint32_t largest = warp_largest(best);
        const int e = (int)warp_smallest(best == largest ? (uint32_t)(lane + 32 * at) : ~0u);
        value = __shfl_sync(ALL_LANES, value, e % 32);
#pragma unroll
        for (int j = 0; j < V; j++)
            key[j] = e == lane + 32 * j ? 0u : key[j];
        chosen = lane == i ? e : chosen;
        weight = lane == i ? value : weight;
    }
    weight = route_weight(a, weight, lane);
    if (lane >= a.top_k)
        return;
    a.expert[(size_t)t * route_width(a) + lane] = chosen;
    a.weight[(size_t)t * route_width(a) + lane] = weight;
    if (a.load)
        atomicAdd((unsigned long long *)&a.load[chosen], 1ull);
}

/* One row, in the way that fits. All lanes; `room` is the warp's own. */
static __device__ __forceinline__ void route_row(const cuda_router &a, int t, const float *logit,
                                                 route_room &room, int lane)
{
    route_shared(a, t, true, lane);
    if (a.n_group > 1 || a.top_k > 32 || a.n_expert > 256)
        route_groups(a, t, logit, room, lane);
    else if (a.n_expert <= 64)
        route_lanes<2>(a, t, logit, lane);
    else if (a.n_expert <= 128)
        route_lanes<4>(a, t, logit, lane);
    else
        route_lanes<8>(a, t, logit, lane);
}
