/* Rows of this rank on their way to those whose experts they chose. */
#pragma once

#include "kernels/cuda/plugin/dispatch.cuh"

/* Where this lane's first four of a part, and its number of the choice, are with their owner. */
struct own_row {
    const float4 *x;
    const int32_t *expert; /* NULL: it has none */
};
static __device__ __forceinline__ own_row own_row_of(const cuda_dispatch &a, const spread_launch &l,
                                                     const piece &q, int lane)
{
    own_row own = {(const float4 *)(a.x + (size_t)(l.first + q.i) * a.n) + q.part * PART + lane, nullptr};
    if (a.expert && lane < a.n_used)
        own.expert = a.expert + (size_t)(l.first + q.i) * a.n_used + lane;
    return own;
}

static __device__ __forceinline__ int32_t ask_own(const own_row &own, const piece &q, float4 (&v)[BATCH])
{
#pragma unroll
    for (int k = 0; k < BATCH; k++)
        if (32 * k < q.left)
            v[k] = own.x[32 * k];
    return own.expert ? *own.expert : -1;
}

/* Number first + lane of the choice of row i; -1: there is none. */
static __device__ __forceinline__ int32_t own_choice(const cuda_dispatch &a, const spread_launch &l, int i,
                                                     int first, int lane)
{
    return first + lane < a.n_used ? a.expert[(size_t)(l.first + i) * a.n_used + first + lane] : -1;
}

/* Four numbers of the choice in each of the first lanes. */
static __device__ __forceinline__ float4 pack_choice(int32_t id, int lane)
{
    four_ids ids;
#pragma unroll
    for (int c = 0; c < 4; c++)
        ids.id[c] = __shfl_sync(~0u, max(id, -1), (4 * lane + c) % 32);
    return ids.four;
}

/* A rank that rows go to: its buffers, and the experts that it has. */
struct target {
    float4 *buffer;
    int rank, begin, end;
};
static __device__ __forceinline__ target target_of(const cuda_dispatch &a, const peer_memory &p, int rank)
{
    const target t = {p.buffer[rank], rank, a.first[rank], a.first[rank + 1]};
    return t;
}
/* Whether a row of this rank, whose choice begins with these numbers, goes there. */
static __device__ __forceinline__ bool goes_to(const cuda_dispatch &a, const spread_launch &l,
                                               const target &t, int i, int32_t id, int lane)
{
    bool goes = id >= t.begin && id < t.end;
#pragma unroll 1
    for (int first = CHOICE; first < a.n_used; first += CHOICE) {
        id = own_choice(a, l, i, first, lane);
        goes = goes || (id >= t.begin && id < t.end);
    }
    return __any_sync(~0u, goes);
}

static __device__ __forceinline__ void put_part(float4 *x, const piece &q, const float4 (&v)[BATCH])
{
#pragma unroll
    for (int k = 0; k < BATCH; k++)
        if (32 * k < q.left)
            gpu_store_system(x + 32 * k, v[k]);
}

/* To the others first, `t` first of them. The choice goes to everybody, with the row's first part. */
static __device__ __forceinline__ void send_part(const cuda_dispatch &a, const peer_memory &p, size_t turn_at,
                                                 const spread_launch &l, const row_layout &row, target t,
                                                 const piece &q, float4 (&v)[BATCH], int32_t id, int lane)
{
    const bool chooses = a.expert && q.part == 0;
    if (chooses) {
        const float4 choice = pack_choice(id, lane);
        if (lane < CHOICE / 4 && lane < row.id_fours)
#pragma unroll 1
            for (int r = t.rank; r != p.rank; r = rank_after(p, r))
                gpu_store_system((r == t.rank ? t.buffer : p.buffer[r]) + turn_at + q.choice_at, choice);
    }
    if (least_of(v) == (int)EMPTY_BITS) /* which is rare */
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            v[k] = peer_sendable(v[k]);
#pragma unroll 1
    for (;;) {
        if (!a.expert || goes_to(a, l, t, q.i, id, lane))
            put_part(t.rank == p.rank ? q.to : t.buffer + turn_at + q.x_at, q, v);
        if (t.rank == p.rank)
            break;
        t = target_of(a, p, rank_after(p, t.rank));
    }
    if (!chooses)
        return;
    if (lane < a.n_used)
        keep_choice(a, p, q.place, lane, id);
#pragma unroll 1
    for (int first = CHOICE; first < a.n_used; first += CHOICE) {
        id = own_choice(a, l, q.i, first, lane);
        const float4 choice = pack_choice(id, lane);
#pragma unroll 1
        for (int to = 0; to < p.size; to++)
            if (to != p.rank && lane < CHOICE / 4 && first / 4 + lane < row.id_fours)
                gpu_store_system(p.buffer[to] + turn_at + q.choice_at + first / 4, choice);
        if (first + lane < a.n_used)
            keep_choice(a, p, q.place, first + lane, id);
    }
}

/* A block that sends. Until its first stores are on their way the link is idle: what is known before the
 * launch in front has ended is worked out before, and what the next launch needs comes after them. */
static __device__ __forceinline__ void send_all(const cuda_dispatch &a, const peer_memory &p,
                                                const spread_launch &l, const row_layout &row,
                                                const spread_role &role, peer_now now)
{
    const int lane = threadIdx.x % 32, thread = blockIdx.x * blockDim.x + threadIdx.x,
              n = spread_rows(a.rows, l, p.rank) * row.n_part;
    const target next = target_of(a, p, rank_after(p, p.rank));
    int unit = role.warp;
    int32_t id = -1;
    float4 v[BATCH] = {};
    piece q = {};
    own_row own = {};
    size_t turn_at = turn_fours(p, now.turn);
    if (unit < n) {
        q = piece_of(a, p, l, row, p.rank, unit, lane);
        own = own_row_of(a, l, q, lane);
    }
    bool failed = false;
#pragma unroll 1
    for (bool first = true;; first = false) {
        if (first) /* here, so that what does not change in the loop is worked out before */
            gpu_wait_before();
        if (unit < n)
            id = ask_own(own, q, v);
        if (first) {
            failed = peer_has_failed(p);
            if (now.turn == PEER_BUFFERS) {
                peer_settle(p, &now);
                turn_at = turn_fours(p, now.turn);
            }
        }
        if (unit < n && !failed)
            send_part(a, p, turn_at, l, row, next, q, v, id, lane);
        if (first && threadIdx.x == 0) {
            peer_begin(p, &now);
            peer_pass(p, now, 0u, (uint32_t)p.size * sign_fours(row, l));
        }
        if (failed)
            return;
        unit += role.n_warp;
        if (unit >= n)
            break;
        q = piece_of(a, p, l, row, p.rank, unit, lane);
        own = own_row_of(a, l, q, lane);
    }
    if (thread < p.size)
        gpu_store_system(sign_of(p, p.buffer[thread] + turn_at, p.rank, row, l),
                         make_float4(1.0f, 1.0f, 1.0f, 1.0f));
    peer_clear(p, now.turn, (uint32_t)thread, gridDim.x * blockDim.x);
    if (l.first == 0 && a.expert)
        clear_rest(a, p.size);
    if (thread < p.size)
        peer_take(sign_of(p, p.buffer[p.rank] + turn_at, thread, row, l), p, thread);
}
