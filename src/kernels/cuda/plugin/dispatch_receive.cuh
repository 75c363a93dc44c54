/* Rows of the other ranks, as they come. */
#pragma once

#include "kernels/cuda/plugin/dispatch.cuh"

/* What a row does not have is zero, and so never missing. */
static __device__ __forceinline__ float4 ask_sent(const float4 *buffer, const piece &q, bool chooses,
                                                  float4 (&v)[BATCH])
{
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < BATCH; k++)
        v[k] = 32 * k < q.left ? gpu_load_system(buffer + q.x_at + 32 * k) : zero;
    return chooses ? gpu_load_system(buffer + q.choice_at) : zero;
}

/* A four of a choice, `first` numbers behind its begin, of which the first one has been asked for; -1 where
 * there is none. */
static __device__ __forceinline__ four_ids choice_four(const peer_memory &p, const row_layout &row,
                                                       const float4 *at, int from, int first, float4 four,
                                                       int lane)
{
    four_ids ids;
    ids.id[0] = ids.id[1] = ids.id[2] = ids.id[3] = -1;
    if (lane < CHOICE / 4 && first / 4 + lane < row.id_fours)
        ids.four = first == 0 ? four : peer_take(at + first / 4, p, from);
    return ids;
}

/* Whether a row of rank `from` is needed here, by its choice. */
static __device__ __forceinline__ bool is_needed(const cuda_dispatch &a, const peer_memory &p,
                                                 const row_layout &row, const float4 *at, int from,
                                                 float4 four, int lane)
{
    const int begin = a.first[p.rank], end = a.first[p.rank + 1];
    bool needed = false;
#pragma unroll 1
    for (int first = 0; first < a.n_used; first += CHOICE) {
        const four_ids ids = choice_four(p, row, at, from, first, four, lane);
#pragma unroll
        for (int c = 0; c < 4; c++)
            needed = needed || (ids.id[c] >= begin && ids.id[c] < end);
    }
    return __any_sync(~0u, needed);
}

static __device__ __forceinline__ void keep_choices(const cuda_dispatch &a, const peer_memory &p,
                                                    const row_layout &row, const float4 *at, int from,
                                                    int place, float4 four, int lane)
{
#pragma unroll 1
    for (int first = 0; first < a.n_used; first += CHOICE) {
        const four_ids ids = choice_four(p, row, at, from, first, four, lane);
        int id = -1;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int one = __shfl_sync(~0u, ids.id[c], lane / 4);
            id = lane % 4 == c ? one : id;
        }
        if (first + lane < a.n_used)
            keep_choice(a, p, place, first + lane, id);
    }
}

/* Waits for the part itself and for the choice, which come at the same time: a part that is there is needed,
 * and put down before anything is made of its choice. The choice is kept with the row's first part. */
static __device__ __forceinline__ void take_part(const cuda_dispatch &a, const peer_memory &p, float4 *buffer,
                                                 const row_layout &row, int from, const piece &q,
                                                 float4 (&v)[BATCH], float4 four, int lane)
{
    const int empty = (int)EMPTY_BITS;
    const float4 *choice = buffer + q.choice_at;
    float4 *x = buffer + q.x_at;
    bool known = !a.expert, done = false;
#pragma unroll 1
    for (int looks = 0;; looks++) {
        int least[BATCH], all = 0;
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            least[k] = least_of(v[k]);
            all = min(all, least[k]);
        }
        if (!done && !__any_sync(~0u, all == empty)) {
            done = true;
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                if (32 * k < q.left)
                    q.to[32 * k] = v[k];
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                if (32 * k < q.left)
                    peer_empty(x + 32 * k);
        }
        const bool choosing = least_of(four) == empty;
        if (!known && !__any_sync(~0u, choosing)) {
            known = true;
            if (q.part == 0)
                keep_choices(a, p, row, choice, from, q.place, four, lane);
            if (!done)
                done = !is_needed(a, p, row, choice, from, four, lane);
        }
        if (done && (known || q.part > 0))
            break;
        gpu_wait_peer();
        if (looks == SPREAD_LOOKS) { /* with an eye on the clock */
            looks = 0;
            int missing = 0;
#pragma unroll
            for (int k = BATCH - 1; k >= 0; k--)
                missing = least[k] == empty ? k : missing;
            if (choosing || (known && !done && all == empty))
                peer_await(choosing ? choice : x + 32 * missing, p, from);
            if (__any_sync(~0u, peer_has_failed(p))) { /* what has not come has chosen nobody */
                const float nobody = __uint_as_float(~0u);
                if (choosing)
                    four = make_float4(nobody, nobody, nobody, nobody);
                done = true;
                continue;
            }
        }
        if (choosing)
            four = gpu_load_system(choice);
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (least[k] == empty)
                v[k] = gpu_load_system(x + 32 * k);
    }
}

/* A block that receives. */
static __device__ __forceinline__ void receive_all(const cuda_dispatch &a, const peer_memory &p,
                                                   const spread_launch &l, const row_layout &row,
                                                   const spread_role &role, peer_now now)
{
    const int lane = threadIdx.x % 32, thread = blockIdx.x * blockDim.x + threadIdx.x;
    const bool chooses = a.expert && lane < CHOICE / 4 && lane < row.id_fours;
    int from = rank_after(p, p.rank), unit = role.warp,
        n = p.size > 1 ? spread_rows(a.rows, l, from) * row.n_part : 0;
    float4 v[BATCH];
    piece q = {};
    if (unit < n)
        q = piece_of(a, p, l, row, from, unit, lane);
    float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    gpu_wait_before();
    peer_settle(p, &now);
    float4 *buffer = peer_buffer(p, p.rank, now.turn);
    if (unit < n)
        four = ask_sent(buffer, q, chooses, v);
    if (threadIdx.x == 0)
        peer_begin(p, &now);
    const bool failed = peer_has_failed(p);
    if (threadIdx.x == 0)
        peer_pass(p, now, 0u, (uint32_t)p.size * sign_fours(row, l));
    if (failed)
        return;
    peer_clear(p, now.turn, (uint32_t)thread, gridDim.x * blockDim.x);
    if (l.first == 0 && a.expert)
        clear_rest(a, p.size);
#pragma unroll 1
    for (int d = 1; d < p.size; d++) {
#pragma unroll 1
        for (; unit < n; unit += role.n_warp) {
            if (d > 1 || unit > role.warp) {
                q = piece_of(a, p, l, row, from, unit, lane);
                four = ask_sent(buffer, q, chooses, v);
            }
            take_part(a, p, buffer, row, from, q, v, four, lane);
        }
        from = rank_after(p, from);
        n = spread_rows(a.rows, l, from) * row.n_part;
        unit = role.warp;
    }
}
