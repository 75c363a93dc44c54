/* What the dispatch of rows and the combination of products share: rows of several ranks, work for warps. */
#pragma once

#include <algorithm>

#include "kernels/cuda/plugin/peers.h"

#define SPREAD_WARPS     16 /* of a block at most; of a block of few rows, SPREAD_WARPS_FEW */
#define SPREAD_WARPS_FEW 4
#define SPREAD_THREADS   (32 * (SPREAD_WARPS + 1))
#define SPREAD_LOOKS     64 /* at what is on its way, before the clock is looked at */

/* Of one launch: rows [first, first + n_row) of each rank, and how many of its blocks send. */
struct spread_launch {
    int first, n_row, n_send;
};

static __device__ __forceinline__ int spread_rows(const cuda_spread &s, const spread_launch &l, int rank)
{
    return max(0, min(s.count[rank] - l.first, l.n_row));
}
/* The place among all ranks' rows. */
static __device__ __forceinline__ int spread_place(const cuda_spread &s, const spread_launch &l, int rank,
                                                   int i)
{
    return s.place[(size_t)rank * s.most + l.first + i];
}
/* The rank that has this expert; -1: nobody. */
static __device__ __forceinline__ int spread_owner(const int32_t *first, int size, int expert)
{
    if (expert < first[0] || expert >= first[size])
        return -1;
    int r = 0;
#pragma unroll 1
    while (expert >= first[r + 1])
        r++;
    return r;
}

/* Whether any rank has rows of this launch: all of them come to the same answer. */
static __device__ __forceinline__ bool spread_is_empty(const cuda_spread &s, const spread_launch &l, int size)
{
#pragma unroll 1
    for (int r = 0; r < size; r++)
        if (spread_rows(s, l, r) > 0)
            return false;
    return true;
}

/* The first blocks send and the others receive, so that what comes is worked on while the link is busy, and
 * by SMs that no stores to it hold up. This warp, among those of its kind. Where there is a clerk, it is the
 * last warp of each block: it does what has to be done besides, so that no row waits for that. */
struct spread_role {
    bool sends, is_clerk;
    int warp, n_warp;
};
static __device__ __forceinline__ spread_role spread_role_of(const spread_launch &l, int clerks)
{
    const int n = blockDim.x / 32 - clerks, block = blockIdx.x, warp = threadIdx.x / 32;
    spread_role r;
    r.sends = block < l.n_send;
    r.is_clerk = warp == n;
    r.warp = (r.sends ? block : block - l.n_send) * n + warp;
    r.n_warp = (r.sends ? l.n_send : gridDim.x - l.n_send) * n;
    return r;
}

/* Until those fours of v that are at these bits have come, all looked at together, or one of them will not.
 * from(k): who is waited for. */
template <int N, typename From>
static __device__ __forceinline__ void spread_await(float4 (&v)[N], const float4 *at, size_t stride,
                                                    uint32_t bits, const peer_memory &p, From from)
{
    for (int looks = 0;; looks++) {
        uint32_t missing = 0;
#pragma unroll
        for (int k = 0; k < N; k++)
            if (bits >> k & 1u && peer_is_empty(v[k]))
                missing |= 1u << k;
        if (!missing)
            return;
        if (looks == SPREAD_LOOKS) { /* with an eye on the clock */
            const int k = __ffs((int)missing) - 1;
            if (peer_is_empty(peer_await(at + (size_t)k * stride, p, from(k))))
                return;
            looks = 0;
        }
        gpu_wait_peer();
#pragma unroll
        for (int k = 0; k < N; k++)
            if (missing >> k & 1u)
                v[k] = gpu_load_system(at + (size_t)k * stride);
    }
}

/* NULL, or what is wrong with them. */
static inline const char *spread_check(const struct cuda_op *op, const cuda_spread *s, const int32_t *first,
                                       int size)
{
    if (s->most < 1 || s->n_all < 1 || op->n_row != s->most || op->count)
        return "rows of several ranks: as many as the most of one rank, without a count of their own";
    for (int r = 0; first && r < size; r++)
        if (first[r] < 0 || first[r + 1] < first[r])
            return "rows of several ranks: experts that are not in order";
    return nullptr;
}

/* How the work of one kind of launch is dealt out: percent of the blocks of a full one that send, and warps
 * of a block besides those that move rows. */
struct spread_form {
    int sending, clerks;
};

/* Blocks and threads of each for so many units of either kind of work, a unit a warp's. Sets l->n_send. */
struct spread_grid {
    int blocks, threads;
};
static inline spread_grid spread_grid_for(const spread_form &form, size_t n_send, size_t n_receive,
                                          const struct op_place *at, spread_launch *l)
{
    const int most = max(2, peers_blocks(at)); /* two blocks fit one SM */
    const size_t sending = (size_t)max(1, most * form.sending / 100), receiving = (size_t)most - sending;
    size_t warps = SPREAD_WARPS_FEW;
    while (warps < SPREAD_WARPS && (n_send > warps * sending || n_receive > warps * receiving))
        warps *= 2;
    l->n_send = (int)std::min((n_send + warps - 1) / warps, sending);
    return {l->n_send + (int)std::min((n_receive + warps - 1) / warps, receiving),
            32 * ((int)warps + form.clerks)};
}
