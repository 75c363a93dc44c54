/* A row of logits and the blocks that share it: their numbers, what they exchange, sums in the CPU's order.
 *
 * A cluster has a row. Each of its blocks has a stretch of whole SUM_BLOCKs; what they find out they write
 * into the shared memory of all of them, so that each goes on with the same numbers. */
#pragma once

#include "kernels/cuda/plugin/cluster.cuh"
#include "kernels/cuda/plugin/operators.h"

#define THREADS      512
#define WARPS        (THREADS / 32)
#define SUM_BLOCK    512 /* weights that are summed in fp32 before they join an fp64 sum */
#define SUM_LANES    16
#define SUMS_MAX     (CUDA_SAMPLE_MAX / SUM_BLOCK)
#define CLUSTER_MAX  8
#define MASS_BINS    1024        /* of a pass over masses  */
#define COUNT_BINS   2048        /* of a pass over logits  */
#define COPIES       8           /* of bins, so that lanes that count the same seldom meet */
#define LEAST_WEIGHT 0x00800000u /* 2^-126 */
#define ONE_MASS     0x1p44      /* what a weight of 1 counts: 2^19 of them fit */

/* Nothing of this may be fused: the CPU's sampler fuses nothing. */
static __device__ __forceinline__ float times(float a, float b)
{
#if GPU_IS_EMULATED
    return a * b;
#else
    return __fmul_rn(a, b);
#endif
}
static __device__ __forceinline__ float plus(float a, float b)
{
#if GPU_IS_EMULATED
    return a + b;
#else
    return __fadd_rn(a, b);
#endif
}
static __device__ __forceinline__ double times(double a, double b)
{
#if GPU_IS_EMULATED
    return a * b;
#else
    return __dmul_rn(a, b);
#endif
}
static __device__ __forceinline__ double plus(double a, double b)
{
#if GPU_IS_EMULATED
    return a + b;
#else
    return __dadd_rn(a, b);
#endif
}

/* exp((x - max) * scale), factor being scale / ln 2; 0 where that is below `least`, and for NaN. */
static __device__ __forceinline__ float weight_of(float x, float max, float factor, float least)
{
    const float t = times(plus(x, -max), factor), magic = 12582912.0f;
    const float shifted = plus(t, magic);
    const float r = plus(t, -plus(shifted, -magic));
    float p = plus(times(r, 0.000154614478f), 0.00133908668f);
    p = plus(times(p, r), 0.00961805694f);
    p = plus(times(p, r), 0.0555035695f);
    p = plus(times(p, r), 0.240226507f);
    p = plus(times(p, r), 0.693147182f);
    p = plus(times(p, r), 1.0f);
    if (!(t >= -125.0f))
        return 0.0f;
    const float w = __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
    return w >= least ? w : 0.0f;
}

/* What a block shares, and others of the cluster write to. */
struct sample_room {
    union { /* of two passes, which take turns */
        unsigned long long mass[2][MASS_BINS];
        unsigned count[2][COUNT_BINS];
        unsigned largest[CLUSTER_MAX][THREADS]; /* keys of what find_max's threads have found */
    } bin;
    double sum[SUMS_MAX];   /* of each SUM_BLOCK of weights, or of those above the cut */
    int equal[SUMS_MAX];    /* weights equal to the cut                                */
    double value[SUMS_MAX]; /* what is summed up one after the other: masses, or weights */
    union {
        double running[SUMS_MAX + 1];               /* the sum before each of them */
        unsigned long long list[CUDA_SAMPLE_TOP_K]; /* candidates: key, then the lower id first */
    } to;
    unsigned long long of_warp[WARPS], of_block[CLUSTER_MAX], found[3];
    double total;
    float max, cut;
    int index, n;
};

/* This block's share. */
struct sample_row {
    float *x; /* the row: logits, and then weights in their place */
    int n;
    int begin, end;   /* the block's columns */
    int n_sum;        /* SUM_BLOCKs of the row */
    int rank, n_rank; /* of the cluster */
    unsigned *bins;   /* [COPIES * COUNT_BINS] shared memory */
    static __device__ sample_row of(float *x, int n, int rank, int n_rank, void *bins)
    {
        const int n_sum = (n + SUM_BLOCK - 1) / SUM_BLOCK, per = (n_sum + n_rank - 1) / n_rank;
        return {x,
                n,
                min(rank * per * SUM_BLOCK, n),
                min((rank + 1) * per * SUM_BLOCK, n),
                n_sum,
                rank,
                n_rank,
                (unsigned *)bins};
    }
};

/* The sum of the values v of the threads before this one; each warp's sum is in r.of_warp then. */
static __device__ __forceinline__ unsigned long long sum_before(unsigned long long v, sample_room &r)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long sum = v;
    for (int d = 1; d < 32; d *= 2) {
        const unsigned long long other = __shfl_up_sync(ALL_LANES, sum, d);
        sum += lane >= d ? other : 0;
    }
    __syncthreads(); /* of_warp may still be read */
    if (lane == 31)
        r.of_warp[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        sum += r.of_warp[i];
    return sum - v;
}

/* The largest v of the block, in all threads; 0 and more. */
static __device__ __forceinline__ int block_largest(int v, sample_room &r)
{
    const unsigned most = warp_largest((unsigned)v);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        r.of_warp[threadIdx.x / 32] = most;
    __syncthreads();
    int all = 0;
    for (int i = 0; i < WARPS; i++)
        all = max(all, (int)r.of_warp[i]);
    return all;
}

/* Threads' values v, the first thread's first, reach `wanted` together in one thread, which says so in
 * r.found: its number, and the sum before it. None: ~0. */
static __device__ __forceinline__ void find_reach(unsigned long long v, unsigned long long wanted,
                                                  sample_room &r)
{
    if (threadIdx.x == 0)
        r.found[0] = ~0ull;
    const unsigned long long before = sum_before(v, r);
    if (before + v >= wanted && before < wanted) {
        r.found[0] = threadIdx.x;
        r.found[1] = before;
    }
    __syncthreads();
}

/* The list (n), the largest first: each thread has a pair of it. */
static __device__ __forceinline__ void sort_list(int n, sample_room &r)
{
    int size = 2;
    while (size < n)
        size *= 2;
    for (int i = n + (int)threadIdx.x; i < size; i += THREADS)
        r.to.list[i] = 0;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2)
        for (int d = run / 2; d > 0; d /= 2) {
            const int i = (int)threadIdx.x / d * 2 * d + (int)threadIdx.x % d, j = i + d;
            if (j < size) {
                const unsigned long long a = r.to.list[i], b = r.to.list[j];
                if ((a < b) == ((i & run) == 0)) {
                    r.to.list[i] = b;
                    r.to.list[j] = a;
                }
            }
            __syncthreads();
        }
}
static_assert(CUDA_SAMPLE_TOP_K <= 2 * THREADS, "a pair for each thread");

/* f(value, column) for this thread's columns of the block's stretch. Eight are asked for before the first is
 * used: what f writes would hold back what is read after it. */
template <typename F> static __device__ __forceinline__ void each_column(const sample_row &row, F f)
{
    const int AHEAD = 8;
    for (int first = row.begin + (int)threadIdx.x; first < row.end; first += AHEAD * THREADS) {
        float v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            v[j] = first + j * THREADS < row.end ? row.x[first + j * THREADS] : 0.0f;
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (first + j * THREADS < row.end)
                f(v[j], first + j * THREADS);
    }
}

/* The same in fours, where the row begins with one; the columns of a thread are others then. */
template <typename F> static __device__ __forceinline__ void each_in_fours(const sample_row &row, F f)
{
    const int AHEAD = 5;
    if ((uintptr_t)row.x % sizeof(float4) != 0) {
        each_column(row, f);
        return;
    }
    const int n_four = (row.end - row.begin) / 4;
    const float4 *four = (const float4 *)(row.x + row.begin);
    for (int first = threadIdx.x; first < n_four; first += AHEAD * THREADS) {
        float4 v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            v[j] = first + j * THREADS < n_four ? four[first + j * THREADS] : float4{};
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (first + j * THREADS < n_four) {
                const int i = row.begin + 4 * (first + j * THREADS);
                f(v[j].x, i);
                f(v[j].y, i + 1);
                f(v[j].z, i + 2);
                f(v[j].w, i + 3);
            }
    }
    const int last = row.begin + 4 * n_four + (int)threadIdx.x;
    if (last < row.end)
        f(row.x[last], last);
}
static_assert(SUM_BLOCK % 4 == 0, "a block's stretch begins with a four");

/* Larger logits have larger keys, equal ones the same; 0: not a candidate. */
static __device__ __forceinline__ unsigned key_of(float x)
{
    const unsigned bits = x == 0.0f ? 0u : __float_as_uint(x);
    return !(x > -INFINITY) ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The largest of the row, the lowest index among equals, into r.max and r.index of all blocks; NaN never is.
 * With `all`, the key of what each thread has found is in r.bin.largest of all blocks, too, and r.n is 0. */
static __device__ __forceinline__ void find_max(const sample_row &row, bool all, sample_room &r)
{
    float best = -INFINITY;
    int at = 0x7fffffff;
    each_in_fours(row, [&](float v, int i) {
        if (v > best) {
            best = v;
            at = i;
        }
    });
    for (int i = 0; all && i < row.n_rank; i++)
        cluster_at(&r, i)->bin.largest[row.rank][threadIdx.x] = key_of(best);
    const auto take = [&](float v, int j) {
        if (v > best || (v == best && j < at)) {
            best = v;
            at = j;
        }
    };
    for (int d = 16; d > 0; d /= 2) {
        const float v = __shfl_xor_sync(ALL_LANES, best, d);
        take(v, __shfl_xor_sync(ALL_LANES, at, d));
    }
    const auto packed = [&] { return (unsigned long long)__float_as_uint(best) << 32 | (unsigned)at; };
    const auto take_packed = [&](unsigned long long v) {
        take(__uint_as_float((unsigned)(v >> 32)), (int)(unsigned)v);
    };
    if (threadIdx.x % 32 == 0)
        r.of_warp[threadIdx.x / 32] = packed();
    if (threadIdx.x == 0)
        r.n = 0;
    __syncthreads();
    if ((int)threadIdx.x < row.n_rank) {
        for (int i = 0; i < WARPS; i++)
            take_packed(r.of_warp[i]);
        cluster_at(&r, (int)threadIdx.x)->of_block[row.rank] = packed();
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        for (int i = 0; i < row.n_rank; i++)
            take_packed(r.of_block[i]);
        r.max = best;
        r.index = at;
    }
    __syncthreads();
}

/* f(value, column) for the columns of SUM_BLOCK b that are this thread's, in the order of the CPU's running
 * sum `lane` of 16; up to `end`. Sixteen are asked for before the first is used. */
template <typename F>
static __device__ __forceinline__ void each_of_block(const sample_row &row, int b, int end, F f)
{
    const int AHEAD = 16, begin = b * SUM_BLOCK + (int)threadIdx.x % SUM_LANES;
#pragma unroll 1
    for (int i = begin; i < begin + SUM_BLOCK; i += AHEAD * SUM_LANES) {
        float v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            v[j] = i + j * SUM_LANES < end ? row.x[i + j * SUM_LANES] : 0.0f;
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * SUM_LANES < end)
                f(v[j], i + j * SUM_LANES);
    }
}

/* f(b, end) for the SUM_BLOCKs of this thread's half warp, by all lanes of a warp together: b is none of the
 * block's where it is not below `end`. */
template <typename F> static __device__ __forceinline__ void each_block(const sample_row &row, F f)
{
    const int end = (row.end + SUM_BLOCK - 1) / SUM_BLOCK;
    for (int first = (row.begin + SUM_BLOCK - 1) / SUM_BLOCK; first < end; first += THREADS / SUM_LANES)
        f(first + (int)threadIdx.x / SUM_LANES, end);
}

/* The sums of what of(value, column, equal) makes of the row, in all blocks' r.sum and r.equal. Blocks whose
 * sum is below `least` before are not read: nothing is made of their columns. */
template <typename F>
static __device__ __forceinline__ void sum_blocks(const sample_row &row, float least, sample_room &r, F of)
{
    const int lane = threadIdx.x % SUM_LANES;
    each_block(row, [&](int b, int end) {
        const bool is_read = b < end && (least == 0.0f || r.sum[b] >= (double)least);
        float s = 0.0f;
        int equal = 0;
        each_of_block(row, b, is_read ? row.end : 0, [&](float v, int i) { s = plus(s, of(v, i, equal)); });
        s = plus(s, __shfl_xor_sync(ALL_LANES, s, 8));
        s = plus(s, __shfl_xor_sync(ALL_LANES, s, 4));
        const double pair = plus((double)s, (double)__shfl_xor_sync(ALL_LANES, s, 2));
        const double sum = plus(pair, __shfl_xor_sync(ALL_LANES, pair, 1));
        for (int d = 8; d > 0; d /= 2)
            equal += __shfl_xor_sync(ALL_LANES, equal, d);
        if (lane < row.n_rank && b < end) {
            sample_room *to = cluster_at(&r, lane);
            to->sum[b] = sum;
            to->equal[b] = equal;
        }
    });
    cluster_sync();
}
static_assert(SUM_BLOCK % (16 * SUM_LANES) == 0, "whole steps of sixteen");

/* r.value (n) one after the other, from `from` on, or off it: r.to.running[i] is what there is before the
 * i-th, [n] the end, which is returned. By the first warp: the others do not add, they wait. */
static __device__ __forceinline__ double run_up(double from, int n, bool off, sample_room &r)
{
    __syncthreads();
    if (threadIdx.x < 32) {
        const int AHEAD = 8;
        double at = from, v[AHEAD], next[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            next[j] = r.value[j];
#pragma unroll 1
        for (int i = 0; i < n; i += AHEAD) {
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                v[j] = next[j];
                next[j] = r.value[(i + AHEAD) % SUMS_MAX + j]; /* behind the last: whatever is there */
            }
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                if (threadIdx.x == 0)
                    r.to.running[i + j] = at;
                at = plus(at, off ? -v[j] : v[j]);
            }
        }
        if (threadIdx.x == 0 && n % AHEAD == 0)
            r.to.running[n] = at;
    }
    __syncthreads();
    return r.to.running[n];
}

/* All sums of the row, into r.total: by the first warp, the others do not wait. */
static __device__ __forceinline__ void add_sums(const sample_row &row, sample_room &r)
{
    if (threadIdx.x >= 32)
        return;
    double at = 0;
#pragma unroll 8
    for (int b = 0; b < row.n_sum; b++)
        at = plus(at, r.sum[b]);
    if (threadIdx.x == 0)
        r.total = at;
}

static __device__ __forceinline__ double sum_all(const sample_row &row, sample_room &r)
{
    add_sums(row, r);
    __syncthreads();
    return r.total;
}

/* Of the row's weights those above `cut`, and the first n_equal of those equal to it: the token where their
 * mass passes `target`; by a whole block, from what all of them have found out. Where the CPU stops adding,
 * or taking off, here all sums are made, and the place is looked up in them: they only grow, or fall. */
static __device__ __forceinline__ int draw_from_row(const sample_row &row, float cut, int n_equal,
                                                    double target, sample_room &r)
{
    const int PER = SUMS_MAX / THREADS;
    int equal[PER], left[PER], sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int b = (int)threadIdx.x * PER + i;
        equal[i] = b < row.n_sum ? r.equal[b] : 0;
        sum += equal[i];
    }
    int before = (int)sum_before((unsigned)sum, r);
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int b = (int)threadIdx.x * PER + i;
        left[i] = max(n_equal - before, 0);
        before += equal[i];
        if (b < row.n_sum)
            r.value[b] = plus(r.sum[b], times((double)min(equal[i], left[i]), (double)cut));
    }
    run_up(0.0, row.n_sum, false, r);
    int mine = 0; /* the block + 1 */
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int b = (int)threadIdx.x * PER + i;
        if (b < row.n_sum && r.value[b] > 0 && r.to.running[b] <= target)
            mine = b + 1;
    }
    const int block = block_largest(mine, r) - 1;
    if (block < 0)
        return -1;
    const double from = plus(target, -r.to.running[block]);
    if ((int)threadIdx.x == block / PER)
        r.n = block % PER ? left[PER - 1] : left[0];
    __syncthreads();
    const int at = block * SUM_BLOCK + (int)threadIdx.x;
    const float w = at < row.n ? __ldcg(&row.x[at]) : -1.0f;
    const bool is_above = w > cut, is_equal = at < row.n && w == cut;
    const unsigned long long ranks = sum_before((is_above ? 1ull << 32 : 0ull) | (is_equal ? 1u : 0u), r);
    const int rank = (int)(ranks >> 32) + min((int)(unsigned)ranks, r.n);
    const bool is = is_above || (is_equal && (int)(unsigned)ranks < r.n);
    unsigned long long all = 0;
    for (int i = 0; i < WARPS; i++)
        all += r.of_warp[i];
    if (is) /* only they: the others would take off nothing */
        r.value[rank] = (double)w;
    run_up(from, (int)(all >> 32) + min((int)(unsigned)all, r.n), true, r);
    const int last = block_largest(is && r.to.running[rank] >= 0 ? (int)threadIdx.x + 1 : 0, r);
    return last ? block * SUM_BLOCK + last - 1 : -1;
}
static_assert(SUM_BLOCK == THREADS && SUMS_MAX % 8 == 0 && SUMS_MAX == 2 * THREADS,
              "a thread a weight, two sums a thread");
