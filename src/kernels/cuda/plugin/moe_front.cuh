/* What precedes the experts of one token, in every block of their launch: residual addition, norm, and the
 * choice of experts. The norm is everybody's own work; of the router's logits a block has some, and they
 * travel as h does (exchange.cuh). */
#pragma once

#include "kernels/cuda/plugin/exchange.cuh"
#include "kernels/cuda/plugin/norm_row.cuh"
#include "kernels/cuda/plugin/route.cuh"

struct moe_front {
    cuda_add_norm norm;
    cuda_router router; /* weights of bf16 or fp32 */
    const int32_t *count;
};

/* A block's shared memory for it, but the row and what is free until weights are asked for. */
#define FRONT_EXPERTS 128 /* four threads of the block each */
struct front_room {
    uint32_t key[FRONT_EXPERTS];
    float logit[FRONT_EXPERTS], score[FRONT_EXPERTS], weight[32], sums[2][32];
    int32_t expert[32];
};

/* ---- the router ------------------------------------------------------------------------------------ */

static __device__ __forceinline__ float4 router_four(const cuda_router &r, int e, int i)
{
    const size_t at = (size_t)e * r.K + i;
    if (r.w.type == CUDA_F32)
        return *(const float4 *)((const float *)r.w.data + at);
    const uint2 w = *(const uint2 *)((const uint16_t *)r.w.data + at);
    return make_float4(bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y));
}

/* Choices without groups. */
static inline bool front_takes(const cuda_router *r)
{
    return (r->w.type == CUDA_BF16 || r->w.type == CUDA_F32) && r->n_group <= 1 && r->top_k >= 1 &&
           r->top_k <= 32 && r->top_k <= r->n_expert && r->n_expert <= FRONT_EXPERTS;
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
        if (threadIdx.x == 0)
            put_float(words + e, logit);
    }
    row_stage(a, row, by, first_weight, xs);
    return by;
}

/* All logits as they come, and the choice: a lane of every warp has one of the experts, -1 from top_k on. By
 * the whole block: a choice at a time takes longer than to count, for each expert, those that come before it.
 */
struct front_choice {
    int expert;
    float weight;
};
static __device__ __forceinline__ front_choice front_route(const moe_front &f, const uint32_t *words,
                                                           front_room &room, int warp, int lane)
{
    const cuda_router &r = f.router;
    const bool real = OP_COUNT(f.count, 1) > 0;
    const int E = r.n_expert;
    if (warp == 0) {
        uint32_t v[FRONT_EXPERTS / 32];
#pragma unroll
        for (int j = 0; j < FRONT_EXPERTS / 32; j++)
            v[j] = gpu_load_grid(words + min(32 * j + lane, E - 1));
#pragma unroll
        for (int j = 0; j < FRONT_EXPERTS / 32; j++) {
            const int e = 32 * j + lane;
            if (e < E)
                room.logit[e] = take_float(words + e, v[j]);
        }
        __syncwarp();
        float score[FRONT_EXPERTS / 32];
        uint32_t key[FRONT_EXPERTS / 32];
        route_scores<FRONT_EXPERTS / 32>(r, room.logit, lane, score, key);
#pragma unroll
        for (int j = 0; j < FRONT_EXPERTS / 32; j++) {
            room.key[32 * j + lane] = key[j];
            room.score[32 * j + lane] = score[j];
        }
    }
    __syncthreads();
    const int e = threadIdx.x / 4, quarter = threadIdx.x % 4;
    const uint32_t own = room.key[e];
    int before = 0;
#pragma unroll
    for (int i = 0; i < FRONT_EXPERTS; i += 16) {
        const int at = i + 4 * quarter;
        const uint4 k = *(const uint4 *)(room.key + at);
        before += k.x > own || (k.x == own && at < e);
        before += k.y > own || (k.y == own && at + 1 < e);
        before += k.z > own || (k.z == own && at + 2 < e);
        before += k.w > own || (k.w == own && at + 3 < e);
    }
    before += __shfl_xor_sync(ALL_LANES, before, 1);
    before += __shfl_xor_sync(ALL_LANES, before, 2);
    if (quarter == 0 && before < r.top_k) {
        room.expert[before] = e;
        room.weight[before] = room.score[e];
    }
    __syncthreads();
    const bool has = real && lane < r.top_k;
    const float weight = route_weight(r, lane < r.top_k ? room.weight[lane] : 0.0f, lane);
    const front_choice c = {has ? room.expert[lane] : -1, has ? weight : 0.0f};
    if (has && r.load && warp == 0 && blockIdx.x == 0)
        atomicAdd((unsigned long long *)&r.load[c.expert], 1ull);
    return c;
}

/* Block 0, when every block has read what precedes: what other operators want of it. */
static __device__ __forceinline__ void front_put(const moe_front &f, const float *row, float by,
                                                 const front_room &room, front_choice c)
{
    const bool real = OP_COUNT(f.count, 1) > 0;
    if (threadIdx.x < (unsigned)f.router.top_k) {
        f.router.expert[threadIdx.x] = c.expert;
        f.router.weight[threadIdx.x] = c.weight;
    }
    if (!real)
        return;
#pragma unroll 1
    for (int e = threadIdx.x; e < f.router.n_expert; e += N_THREAD)
        f.router.logits[e] = room.logit[e];
    row_put(f.norm, row, by);
}
