/* What precedes the experts of one token, in every block of their launch: the choice of experts, and residual
 * addition and norm before it unless sums over GPUs have done them. The norm is everybody's own work; of the
 * router's logits a block has some, and they travel as h does (exchange.cuh). */
#pragma once

#include "kernels/cuda/plugin/exchange.cuh"
#include "kernels/cuda/plugin/norm_row.cuh"
#include "kernels/cuda/plugin/route.cuh"

enum {
    FRONT_NONE,
    FRONT_ROUTER,
    FRONT_NORM, /* and router */
    FRONT_LEAN, /* the same in less code, of what most models have: front_is_lean */
    FRONT_SHORT /* and of short rows: front_is_short */
};
struct moe_front {
    cuda_add_norm norm; /* not looked at without it */
    cuda_router router; /* weights of bf16 or fp32 */
    const int32_t *count;
};

/* A block's shared memory for it, but the row and what is free until weights are asked for. */
#define FRONT_EXPERTS 128
#define FRONT_SCALES  (FRONT_EXPERTS + 32) /* with those that every row takes */
struct front_room {
    uint32_t key[FRONT_EXPERTS], most, least; /* of the keys */
    float logit[FRONT_EXPERTS], score[FRONT_EXPERTS], weight[32], sums[ROW_ROOM], more_sums[2][32];
    float scale[3][FRONT_SCALES]; /* gate's, up's and down's of all experts */
    int32_t expert[32];
};

/* ---- the router ------------------------------------------------------------------------------------ */

template <int FRONT> static __device__ __forceinline__ float4 router_four(const cuda_router &r, int e, int i)
{
    const size_t at = (size_t)e * r.K + i;
    if (FRONT < FRONT_LEAN && r.w.type == CUDA_F32)
        return *(const float4 *)((const float *)r.w.data + at);
    const uint2 w = *(const uint2 *)((const uint16_t *)r.w.data + at);
    return make_float4(bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y));
}

/* Choices without groups. */
static inline bool front_takes(const cuda_router *r)
{
    return (r->w.type == CUDA_BF16 || r->w.type == CUDA_F32) && r->n_group <= 1 && r->top_k >= 1 &&
           r->top_k <= r->n_expert && r->n_expert <= FRONT_EXPERTS && r->n_shared >= 0 &&
           r->top_k + r->n_shared <= 32;
}

/* A thread has eight elements of the row at most, and a block one expert. */
static inline bool front_is_lean(const cuda_router *r, int n_block)
{
    return r->w.type == CUDA_BF16 && r->K <= 8 * N_THREAD && r->n_expert <= n_block;
}

/* A thread has four, and no row takes experts as they are. */
static inline bool front_is_short(const cuda_router *r, int n_block)
{
    return front_is_lean(r, n_block) && r->K <= 4 * N_THREAD && r->n_shared == 0;
}

/* Weights that a thread needs first: of the norm, and of this block's first logit. */
struct front_weights {
    float4 norm, router;
    float scale; /* of the router's */
};

/* Before what precedes has ended: weights may be on their way. The first are named one by one, for a block
 * that comes late has no time left for a prefetch. */
template <int FRONT> static __device__ __forceinline__ front_weights front_ask(const moe_front &f)
{
    const int mine = 4 * threadIdx.x, n = f.router.K;
    front_weights w = {};
    w.scale = *f.router.w.scale;
    if (FRONT >= FRONT_NORM && mine < n) {
        w.norm = norm_four<true>(f.norm.weight, mine, n);
        w.router = router_four<FRONT>(f.router, min((int)blockIdx.x, f.router.n_expert - 1), mine);
    }
    if (FRONT == FRONT_SHORT) /* that is all */
        return w;
    if (FRONT == FRONT_LEAN) { /* and the rest of the row */
        const int rest = 4 * N_THREAD + 64 * threadIdx.x;
        if (rest < n) {
            gpu_prefetch((const uint16_t *)f.router.w.data +
                         (size_t)min((int)blockIdx.x, f.router.n_expert - 1) * n + rest);
            gpu_prefetch(f.norm.weight + rest);
            gpu_prefetch(f.norm.weight + rest + 32);
        }
        return w;
    }
    const size_t bytes = (f.router.w.type == CUDA_F32 ? 4 : 2) * (size_t)n,
                 had = FRONT == FRONT_NORM ? (f.router.w.type == CUDA_F32 ? 4 : 2) * 4 * N_THREAD
                                           : 0; /* of the first logit */
#pragma unroll 1
    for (int e = blockIdx.x; e < f.router.n_expert; e += gridDim.x)
#pragma unroll 1
        for (size_t at = 128 * (size_t)threadIdx.x + (e == (int)blockIdx.x ? had : 0); at < bytes;
             at += 128 * N_THREAD)
            gpu_prefetch(f.router.w.data + (size_t)e * bytes + at);
#pragma unroll 1
    for (int i = 4 * N_THREAD + 32 * threadIdx.x; FRONT == FRONT_NORM && i < n; i += 32 * N_THREAD)
        gpu_prefetch(f.norm.weight + i);
    return w;
}

/* Logits travel as their keys, which are never zero. */
static __device__ __forceinline__ void put_key(uint32_t *to, float v)
{
    gpu_store_grid(to, sort_key(v));
}

/* This block's logits to words, of a row that is normed already. All threads. */
static __device__ __forceinline__ void front_logits(const moe_front &f, const front_weights &asked,
                                                    uint32_t *words, front_room &room)
{
    const int n = f.router.K, mine = 4 * threadIdx.x;
    const float scale = asked.scale;
    int turn = 0;
#pragma unroll 1
    for (int e = blockIdx.x; e < f.router.n_expert; e += gridDim.x, turn ^= 1) {
        float logit = 0.0f;
#pragma unroll 2
        for (int i = mine; i < n; i += 4 * N_THREAD) {
            const float4 y = __ldcg((const float4 *)(f.router.x + i)),
                         w = router_four<FRONT_ROUTER>(f.router, e, i);
            logit = fmaf(w.x, y.x, fmaf(w.y, y.y, fmaf(w.z, y.z, fmaf(w.w, y.w, logit))));
        }
        logit = block_sum(logit, room.more_sums[turn]) * scale;
        if (threadIdx.x == 0)
            put_key(words + e, logit);
    }
}

/* The new residual to row, bf16 of its norm to xs, and this block's logits to words. Returns the factor of
 * the norm. All threads. */
template <int FRONT>
static __device__ __forceinline__ float front_norm(const moe_front &f, const front_weights &asked, float *row,
                                                   uint8_t *xs, uint32_t *words, front_room &room)
{
    const cuda_add_norm &a = f.norm;
    const int n = a.n, mine = 4 * threadIdx.x;
    const int first = min((int)blockIdx.x, f.router.n_expert - 1);
    const float scale = asked.scale;
    /* The first logit needs the norm's factor at its end only: its sum is made beside that of the squares. */
    float logit;
    const int fours = FRONT == FRONT_SHORT ? 1 : FRONT == FRONT_LEAN ? 2 : 0;
    const float by = row_norm<fours>(
        a, row, room.sums, &logit,
        [&](int i) {
            return i == mine ? asked
                             : front_weights{norm_four<true>(a.weight, i, n),
                                             router_four<FRONT>(f.router, first, i), 0.0f};
        },
        [](float4 v, const front_weights &w, float sum) {
            return fmaf(w.router.x, v.x * w.norm.x,
                        fmaf(w.router.y, v.y * w.norm.y,
                             fmaf(w.router.z, v.z * w.norm.z, fmaf(w.router.w, v.w * w.norm.w, sum))));
        });
    if (threadIdx.x == 0 && (int)blockIdx.x < f.router.n_expert)
        put_key(words + first, logit * by * scale);
    int turn = 0;
#pragma unroll 1
    for (int e = blockIdx.x + gridDim.x; FRONT < FRONT_LEAN && e < f.router.n_expert;
         e += gridDim.x, turn ^= 1) {
        logit = 0.0f;
#pragma unroll 1
        for (int i = mine; i < n; i += 4 * N_THREAD) {
            const float4 y = row_y(row, i, by, norm_four<true>(a.weight, i, n)),
                         w = router_four<FRONT>(f.router, e, i);
            logit = fmaf(w.x, y.x, fmaf(w.y, y.y, fmaf(w.z, y.z, fmaf(w.w, y.w, logit))));
        }
        logit = block_sum(logit, room.more_sums[turn]) * scale; /* whose barrier frees the other sums */
        if (threadIdx.x == 0)
            put_key(words + e, logit);
    }
    row_stage<FRONT == FRONT_SHORT>(a, row, by, asked.norm, xs);
    return by;
}

/* Whether logits are in the order of scores that are made of them alone: they are numbers, and none is so far
 * below the largest that its score might be no number of its own. */
#define FRONT_SPREAD 80.0f /* exp(-80) is a normal number */
static __device__ __forceinline__ bool front_in_order(const front_room &room)
{
    return room.least > 1u &&
           sort_number(room.most) - sort_number(room.least) < FRONT_SPREAD; /* false of infinities, too */
}

/* Logits of room.key, their scores, and keys of those; bias: this lane's, or zeros. Its code is there once,
 * and it takes no parameters of the kernel by reference, which would be copied to the stack. All lanes of a
 * warp. */
#define FRONT_LANE (FRONT_EXPERTS / 32) /* experts of a lane */
static_assert(FRONT_LANE == 4, "what a lane adds is a float4");
static __device__ __noinline__ void front_scores_of(int n_expert, bool sigmoid, bool softmax_topk,
                                                    const float *add, front_room &room, float4 bias, int lane)
{
    cuda_router r = {};
    r.n_expert = n_expert;
    r.sigmoid = sigmoid;
    r.softmax_topk = softmax_topk;
    r.bias = add;
    const float own_bias[FRONT_LANE] = {bias.x, bias.y, bias.z, bias.w};
    float score[FRONT_LANE];
    uint32_t key[FRONT_LANE];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < FRONT_LANE; j++)
        room.logit[32 * j + lane] = sort_number(room.key[32 * j + lane]);
    __syncwarp();
    route_scores<FRONT_LANE>(r, room.logit, lane, own_bias, score, key);
#pragma unroll
    for (int j = 0; j < FRONT_LANE; j++) {
        room.key[32 * j + lane] = key[j];
        room.score[32 * j + lane] = score[j];
    }
    __syncwarp();
}

static __device__ __forceinline__ void front_scores(const cuda_router &r, front_room &room, float4 bias,
                                                    int lane)
{
    front_scores_of(r.n_expert, r.sigmoid, r.softmax_topk, r.bias, room, bias, lane);
}

/* The best n by room.key to room.expert, and the largest and the smallest key. A warp counts, for each of
 * eight experts, those that come before it: a choice at a time would take longer. Of equal keys the first
 * comes first. A key of an expert that does not exist is 0. All warps, between two barriers. */
#define FRONT_OWN (FRONT_EXPERTS / N_WARP) /* experts of a warp */
static_assert(FRONT_OWN == 8, "a warp reads its own keys as two vectors");
static __device__ __forceinline__ void front_rank(front_room &room, int E, int n, int warp, int lane)
{
    const int group = warp / (32 / FRONT_OWN), first = warp * FRONT_OWN; /* its own are of one group of 32 */
    uint32_t key[FRONT_LANE];                                            /* the group's last */
#pragma unroll
    for (int j = 0; j < FRONT_LANE; j++) {
        const int of = (group + 1 + j) % FRONT_LANE;
        const uint32_t k = room.key[32 * of + lane];
        key[j] = k + (of < group && k); /* comes before an equal one */
    }
    const uint4 a = *(const uint4 *)(room.key + first), b = *(const uint4 *)(room.key + first + 4);
    const uint32_t own[FRONT_OWN] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    const uint32_t same = key[FRONT_LANE - 1], before_equal = same + (same > 0);
    const int from_first = lane - first % 32;
    uint32_t mine = 0, before = ~0u; /* of a lane that has one of them */
#pragma unroll
    for (int i = 0; i < FRONT_OWN; i++) {
        uint32_t count = count_above(0, from_first < i ? before_equal : same, own[i]);
#pragma unroll
        for (int j = 0; j < FRONT_LANE - 1; j++)
            count = count_above(count, key[j], own[i]);
        count = warp_total(count);
        before = lane == i ? count : before;
        mine = lane == i ? own[i] : mine;
    }
    if (lane >= FRONT_OWN || first + lane >= E)
        return;
    if ((int)before < n)
        room.expert[before] = first + lane;
    if (before == 0)
        room.most = mine;
    if ((int)before == E - 1)
        room.least = mine;
}

/* All logits as they come, and the choice: a lane of every warp has one of the experts, those that every row
 * takes behind top_k others, then -1. Where scores are in the order of the logits the choice does not wait
 * for them; *scored: they are there. */
static __device__ __forceinline__ int front_route(const moe_front &f, const uint32_t *words, front_room &room,
                                                  bool *scored, int warp, int lane)
{
    const cuda_router &r = f.router;
    const int E = r.n_expert,
              count = f.count ? *f.count : 1; /* comes while logits are waited for, as bias does */
    float bias[FRONT_LANE] = {};
    *scored = r.bias != nullptr;
    if (warp == 0) {
        const uint32_t *from[FRONT_LANE];
        uint32_t v[FRONT_LANE];
        route_bias<FRONT_LANE>(r, lane, bias);
#pragma unroll
        for (int j = 0; j < FRONT_LANE; j++) {
            from[j] = words + min(32 * j + lane, E - 1);
            v[j] = gpu_load_grid(from[j]);
        }
        wait_words(v, from);
#pragma unroll
        for (int j = 0; j < FRONT_LANE; j++)
            room.key[32 * j + lane] = 32 * j + lane < E ? v[j] : 0u;
    }
#pragma unroll 1
    for (bool scores = *scored;; scores = true) {
        if (scores && warp == 0)
            front_scores(r, room, make_float4(bias[0], bias[1], bias[2], bias[3]), lane);
        __syncthreads();
        front_rank(room, E, r.top_k, warp, lane);
        __syncthreads();
        *scored = scores;
        if (scores || front_in_order(room))
            break;
        __syncthreads();
    }
    const bool real = count > 0, has = real && lane < r.top_k;
    return has ? room.expert[lane] : real && lane < route_width(r) ? r.n_expert + lane - r.top_k : -1;
}

/* One block, of a choice: how often each expert is chosen. All lanes. */
static __device__ __forceinline__ void front_count(const cuda_router &r, int expert, int lane)
{
    if (r.load && lane < r.top_k && expert >= 0)
        atomicAdd((unsigned long long *)&r.load[expert], 1ull);
}

/* What the chosen experts count, to room.weight, by one warp. It takes as long as the choice, and only sums
 * of down need it. All lanes. */
static __device__ __forceinline__ void front_weigh(const moe_front &f, front_room &room, bool scored,
                                                   int expert, int lane)
{
    const cuda_router &r = f.router;
    if (!scored)
        front_scores(r, room, make_float4(0.0f, 0.0f, 0.0f, 0.0f), lane); /* and keys that nobody reads */
    const bool has = lane < r.top_k && expert >= 0;
    const float weight = route_weight(r, has ? room.score[expert] : 0.0f, lane);
    room.weight[lane] = has ? weight : expert >= 0 ? 1.0f : 0.0f;
}

/* Block 0, when every block has read what precedes: what other operators want of it. */
template <int FRONT>
static __device__ __forceinline__ void front_put(const moe_front &f, const float *row, float by,
                                                 const front_room &room, int expert)
{
    const bool real = OP_COUNT(f.count, 1) > 0;
    if ((int)threadIdx.x < route_width(f.router)) {
        f.router.expert[threadIdx.x] = expert;
        f.router.weight[threadIdx.x] = room.weight[threadIdx.x];
    }
    if (!real)
        return;
#pragma unroll 1
    for (int e = threadIdx.x; e < f.router.n_expert; e += N_THREAD)
        f.router.logits[e] = room.logit[e];
    if (FRONT >= FRONT_NORM)
        row_put(f.norm, row, by);
}
