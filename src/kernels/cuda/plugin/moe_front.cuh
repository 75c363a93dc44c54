/* What precedes the experts of one token, in every block of their launch: residual addition, norm, and the
 * choice of experts. The norm is everybody's own work; of the router's logits a block has some, and they
 * travel as h does (moe_single.cu): complemented words, zero while they are not there. */
#pragma once

#include "kernels/cuda/plugin/norm.cuh"
#include "kernels/cuda/plugin/route.cuh"
#include "kernels/cuda/plugin/unit.cuh"

struct moe_front {
    cuda_add_norm norm;
    cuda_router router; /* weights of bf16 or fp32 */
    const int32_t *count;
};

/* A block's shared memory for it, but the row and what is free until weights are asked for. */
struct front_room {
    float logit[CUDA_EXPERTS_MAX], weight[32], sums[2][32];
    int32_t expert[32];
};

/* ---- the norm -------------------------------------------------------------------------------------- */

/* Four elements of a row of x as bf16, to where the lanes read them (stage_eight). */
static __device__ __forceinline__ void stage_four(uint8_t *row, int i, float4 y)
{
    const int quarter = i / 4;
    *(uint2 *)(row + quarter / 16 * 128 + quarter % 4 * 32 + quarter % 16 / 4 * 8) =
        make_uint2(float_bf16_pair(y.x, y.y), float_bf16_pair(y.z, y.w));
}

static __device__ __forceinline__ float4 row_y(const float *row, int i, float by, float4 w)
{
    const float4 v = *(const float4 *)(row + i);
    return make_float4(v.x * by * w.x, v.y * by * w.y, v.z * by * w.z, v.w * by * w.w);
}

/* The new residual to `row`; returns the factor of the norm. All threads; room as block_sum has it. */
static __device__ __forceinline__ float row_norm(const cuda_add_norm &a, float *row, float *room)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < a.n; i += 4 * N_THREAD) {
        float4 v = __ldcg((const float4 *)(a.residual + i));
        if (a.delta[1])
            v = norm_add(v, norm_add(__ldcg((const float4 *)(a.delta[1] + i)),
                                     __ldcg((const float4 *)(a.delta[0] + i))));
        else if (a.delta[0])
            v = norm_add(v, __ldcg((const float4 *)(a.delta[0] + i)));
        sum = norm_keep(row, i, v, sum);
    }
    return 1.0f / sqrtf(block_sum(sum, room) / (float)a.n + a.eps);
}

/* Its bf16 to xs. first_weight: this thread's first four. */
static __device__ __forceinline__ void row_stage(const cuda_add_norm &a, const float *row, float by,
                                                 float4 first_weight, uint8_t *xs)
{
    const int mine = 4 * threadIdx.x;
#pragma unroll 1
    for (int i = mine; i < a.n; i += 4 * N_THREAD)
        stage_four(xs, i, row_y(row, i, by, i == mine ? first_weight : norm_four<true>(a.weight, i, a.n)));
}

/* By one block: what the operator leaves behind. All threads. */
static __device__ __forceinline__ void row_put(const cuda_add_norm &a, const float *row, float by)
{
#pragma unroll 1
    for (int i = 4 * threadIdx.x; i < a.n; i += 4 * N_THREAD) {
        const float4 y = row_y(row, i, by, norm_four<true>(a.weight, i, a.n));
        if (a.delta[0])
            *(float4 *)(a.residual + i) = *(const float4 *)(row + i);
        if (a.y_float)
            *(float4 *)(a.y_float + i) = y;
        if (a.y)
            *(uint2 *)(a.y + i) = make_uint2(float_bf16_pair(y.x, y.y), float_bf16_pair(y.z, y.w));
    }
}

/* ---- the router ------------------------------------------------------------------------------------ */

static __device__ __forceinline__ float4 router_four(const cuda_router &r, int e, int i)
{
    const size_t at = (size_t)e * r.K + i;
    if (r.w.type == CUDA_F32)
        return *(const float4 *)((const float *)r.w.data + at);
    const uint2 w = *(const uint2 *)((const uint16_t *)r.w.data + at);
    return make_float4(bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y));
}

/* Choices without groups among so many experts that a lane of route_lanes has four. */
static inline bool front_takes(const cuda_router *r)
{
    return (r->w.type == CUDA_BF16 || r->w.type == CUDA_F32) && r->n_group <= 1 && r->top_k <= 32 &&
           r->n_expert <= 128;
}

/* Before what precedes has ended: the weights of this block's logits may be on their way. */
static __device__ __forceinline__ void front_ask(const moe_front &f)
{
    const size_t bytes = (f.router.w.type == CUDA_F32 ? 4 : 2) * (size_t)f.router.K;
#pragma unroll 1
    for (int e = blockIdx.x; e < f.router.n_expert; e += gridDim.x)
#pragma unroll 1
        for (size_t at = 128 * (size_t)threadIdx.x; at < bytes; at += 128 * N_THREAD)
            gpu_prefetch(f.router.w.data + (size_t)e * bytes + at);
#pragma unroll 1
    for (int i = 32 * threadIdx.x; i < f.norm.n; i += 32 * N_THREAD)
        gpu_prefetch(f.norm.weight + i);
}

/* The new residual to row, bf16 of its norm to xs, and this block's logits to words. Returns the factor of
 * the norm. All threads. */
static __device__ __forceinline__ float front_norm(const moe_front &f, float *row, uint8_t *xs,
                                                   uint32_t *words, front_room &room)
{
    const cuda_add_norm &a = f.norm;
    const int n = a.n, mine = 4 * threadIdx.x;
    const bool has_one = mine < n;
    const int first = min((int)blockIdx.x, f.router.n_expert - 1);
    const float4 first_weight = has_one ? norm_four<true>(a.weight, mine, n) : make_float4(0, 0, 0, 0);
    const float4 first_router = has_one ? router_four(f.router, first, mine) : make_float4(0, 0, 0, 0);
    const float by = row_norm(a, row, room.sums[0]), scale = *f.router.w.scale;
    int turn = 1;
#pragma unroll 1
    for (int e = blockIdx.x; e < f.router.n_expert; e += gridDim.x, turn ^= 1) {
        float logit = 0.0f;
#pragma unroll 1
        for (int i = mine; i < n; i += 4 * N_THREAD) {
            const bool is_first = i == mine;
            const float4 y = row_y(row, i, by, is_first ? first_weight : norm_four<true>(a.weight, i, n));
            const float4 w = is_first && e == first ? first_router : router_four(f.router, e, i);
            logit = fmaf(w.x, y.x, fmaf(w.y, y.y, fmaf(w.z, y.z, fmaf(w.w, y.w, logit))));
        }
        logit = block_sum(logit, room.sums[turn]) * scale; /* whose barrier frees the other sums */
        if (threadIdx.x == 0) {
            const uint32_t bits = __float_as_uint(logit);
            gpu_store_grid(words + e, bits == ~0u ? 0x80000000u : ~bits); /* a NaN for a NaN */
        }
    }
    row_stage(a, row, by, first_weight, xs);
    return by;
}

/* All logits as they come, and the choice, to room.expert and room.weight. One warp; a barrier is behind it.
 */
static __device__ __forceinline__ void front_route(const moe_front &f, const uint32_t *words,
                                                   front_room &room, int lane)
{
    const bool real = OP_COUNT(f.count, 1) > 0;
    const int E = f.router.n_expert;
#pragma unroll 1
    for (int base = 0; base < E; base += 4 * 32) {
        uint32_t v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = gpu_load_grid(words + min(base + 32 * j + lane, E - 1));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int e = base + 32 * j + lane;
            while (e < E && v[j] == 0) {
                gpu_wait_block();
                v[j] = gpu_load_grid(words + e);
            }
            if (e < E)
                room.logit[e] = __uint_as_float(~v[j]);
        }
    }
    __syncwarp();
    cuda_router own = f.router;
    own.expert = room.expert;
    own.weight = room.weight;
    own.load = blockIdx.x == 0 ? f.router.load : nullptr;
    if (real)
        route_lanes<4>(own, 0, room.logit, lane);
    else
        route_nothing(own, 0, lane);
}

/* Block 0, when every block has read what precedes: what other operators want of it. */
static __device__ __forceinline__ void front_put(const moe_front &f, const float *row, float by,
                                                 const front_room &room)
{
    const bool real = OP_COUNT(f.count, 1) > 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < f.router.top_k; i += N_THREAD) {
        f.router.expert[i] = room.expert[i];
        f.router.weight[i] = room.weight[i];
    }
    if (!real)
        return;
#pragma unroll 1
    for (int e = threadIdx.x; e < f.router.n_expert; e += N_THREAD)
        f.router.logits[e] = room.logit[e];
    row_put(f.norm, row, by);
}
