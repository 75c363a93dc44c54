/* What blocks that send rows to experts and blocks that receive them know alike. */
#pragma once

#include "kernels/cuda/plugin/spread.cuh"

#define BATCH  4            /* fours of one lane under way at once        */
#define PART   (32 * BATCH) /* fours of a row that a warp moves in one go */
#define CHOICE 32           /* numbers of a choice that a warp looks at at once, one a lane */

/* A choice in a buffer. */
union four_ids {
    float4 four;
    int32_t id[4];
};

/* Fours of a row's choice and of its numbers, and its parts. */
struct row_layout {
    int id_fours, x_fours, n_part;
};

static __host__ __device__ __forceinline__ row_layout layout_of(const cuda_dispatch &a)
{
    row_layout l;
    l.id_fours = a.expert ? (a.n_used + 3) / 4 : 0;
    l.x_fours = a.n / 8;
    l.n_part = (l.x_fours + PART - 1) / PART;
    return l;
}

/* Of rank `from`, in the area for all together: its sign, then the choices of its rows. */
static __device__ __forceinline__ uint32_t sign_fours(const row_layout &row, const spread_launch &l)
{
    return 1u + (uint32_t)(l.n_row * row.id_fours);
}
static __device__ __forceinline__ float4 *sign_of(const peer_memory &p, float4 *buffer, int from,
                                                  const row_layout &row, const spread_launch &l)
{
    return peer_whole(p, buffer) + (size_t)from * sign_fours(row, l);
}

/* A choice as this rank's expert, counted. */
static __device__ __forceinline__ void keep_choice(const cuda_dispatch &a, const peer_memory &p, int place,
                                                   int j, int expert)
{
    const bool here = expert >= a.first[p.rank] && expert < a.first[p.rank + 1];
    a.local[(size_t)place * a.n_used + j] = here ? expert - a.first[p.rank] : -1;
    if (a.load && expert >= 0 && expert < a.first[p.size])
        atomicAdd((unsigned long long *)&a.load[expert], 1ull);
}

/* Places behind all real rows are of no expert. */
static __device__ __forceinline__ void clear_rest(const cuda_dispatch &a, int size)
{
    int n = 0;
#pragma unroll 1
    for (int r = 0; r < size; r++)
        n += a.rows.count[r];
    const size_t end = (size_t)a.rows.n_all * a.n_used;
#pragma unroll 1
    for (size_t i = (size_t)n * a.n_used + blockIdx.x * blockDim.x + threadIdx.x; i < end;
         i += (size_t)gridDim.x * blockDim.x)
        a.local[i] = -1;
}

/* What a warp moves: a part of a row, and its choice. Where they lie in buffers, in fours behind a buffer's
 * begin: this lane's first of the part, and of the choice. */
struct piece {
    size_t x_at, choice_at;
    float4 *to;               /* the part's place among all ranks' rows */
    int i, part, place, left; /* fours of the row, from this lane's first on */
};

/* Places are there before the launch in front of this one begins (cuda_ops.h). */
static __device__ __forceinline__ piece piece_of(const cuda_dispatch &a, const peer_memory &p,
                                                 const spread_launch &l, const row_layout &row, int rank,
                                                 int unit, int lane)
{
    piece q;
    q.i = unit / row.n_part;
    q.part = unit - q.i * row.n_part;
    const int begin = q.part * PART + lane;
    q.left = row.x_fours - begin;
    q.x_at = (size_t)rank * p.slot + (size_t)q.i * row.x_fours + begin;
    q.choice_at =
        (size_t)p.size * p.slot + (size_t)rank * sign_fours(row, l) + 1 + (size_t)q.i * row.id_fours + lane;
    q.place = spread_place(a.rows, l, rank, q.i);
    q.to = (float4 *)(a.x_all + (size_t)q.place * a.n) + begin;
    return q;
}

static __device__ __forceinline__ size_t turn_fours(const peer_memory &p, uint32_t turn)
{
    return (size_t)turn * (2 * p.size * p.slot);
}

/* EMPTY_BITS is the smallest integer. */
static __device__ __forceinline__ int least_of(float4 v)
{
    return min(min((int)__float_as_uint(v.x), (int)__float_as_uint(v.y)),
               min((int)__float_as_uint(v.z), (int)__float_as_uint(v.w)));
}

/* Of all of a part. */
static __device__ __forceinline__ int least_of(const float4 (&v)[BATCH])
{
    int least = 0;
#pragma unroll
    for (int k = 0; k < BATCH; k++)
        least = min(least, least_of(v[k]));
    return least;
}

static __device__ __forceinline__ int rank_after(const peer_memory &p, int rank)
{
    return rank + 1 < p.size ? rank + 1 : 0;
}
