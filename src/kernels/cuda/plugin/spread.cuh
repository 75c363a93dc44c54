/* What the dispatch of rows and the combination of products share: rows of several ranks, work for warps. */
#pragma once

#include "kernels/cuda/plugin/peers.h"

#define SPREAD_THREADS 512
#define SPREAD_BATCH   4                   /* fours of one lane under way at once        */
#define SPREAD_PART    (32 * SPREAD_BATCH) /* fours of a row that a warp moves in one go */

/* Of one launch: rows [first, first + n_row) of each rank. */
struct spread_launch {
    int first, n_row;
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
    while (expert >= first[r + 1])
        r++;
    return r;
}

/* Whether any rank has rows of this launch: all of them come to the same answer. */
static __device__ __forceinline__ bool spread_is_empty(const cuda_spread &s, const spread_launch &l, int size)
{
    for (int r = 0; r < size; r++)
        if (spread_rows(s, l, r) > 0)
            return false;
    return true;
}

/* The first half of a block's warps sends and the other receives, so that what comes is worked on while the
 * link is busy; who sends never waits. Of all blocks: this thread among those of its half, and how many those
 * are. */
struct spread_role {
    bool sends;
    int thread, n_thread;
};
static __device__ __forceinline__ spread_role spread_role_of()
{
    const int half = SPREAD_THREADS / 2;
    spread_role r;
    r.sends = threadIdx.x < half;
    r.thread = blockIdx.x * half + threadIdx.x % half;
    r.n_thread = gridDim.x * half;
    return r;
}

/* What has been received is emptied at once: its place is written to again three launches later. */
static __device__ __forceinline__ void spread_empty(float4 *at)
{
    const float empty = __uint_as_float(EMPTY_BITS);
    gpu_store_system(at, make_float4(empty, empty, empty, empty));
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

/* Blocks for so many threads of each half. */
static inline int spread_blocks(size_t n_thread, const struct op_place *at)
{
    const size_t blocks = (n_thread + SPREAD_THREADS / 2 - 1) / (SPREAD_THREADS / 2);
    const int most = peers_blocks(at);
    return blocks < (size_t)most ? (int)blocks : most;
}
