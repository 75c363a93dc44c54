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
#define SUM_GROUP    16 /* blocks' sums that are added up before they join that of the row */
#define DRAW_GROUP   32 /* weights of a block likewise, for the walk to the one that is drawn */
#define SUMS_MAX     (CUDA_SAMPLE_MAX / SUM_BLOCK)
#define CLUSTER_MAX  16
#define MASS_BINS    1024        /* of a pass over masses  */
#define COUNT_BINS   2048        /* of a pass over logits  */
#define COPIES       8           /* of bins, so that lanes that count the same seldom meet */
#define LEAST_WEIGHT 0x00800000u /* 2^-126 */
#define MASS_BITS    44
#define ONE_MASS     0x1p44 /* what a weight of 1 counts: 2^19 of them fit */

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
    const float w = __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
    return (t >= -125.0f) & (w >= least) ? w : 0.0f; /* without a branch: several at a time */
}

/* What a block shares, and others of the cluster write to. */
struct sample_room {
    double sum[SUMS_MAX];   /* of each SUM_BLOCK of weights, or of those above the cut */
    int equal[SUMS_MAX];    /* weights equal to the cut                                */
    double value[SUMS_MAX]; /* what is summed up one after the other: masses, or weights */
    union {
        double running[SUMS_MAX + 1];               /* the sum before each of them */
        double group[SUMS_MAX / SUM_GROUP];         /* sums of some of them        */
        unsigned long long list[CUDA_SAMPLE_TOP_K]; /* candidates: key, then the lower id first */
    } to;
    unsigned long long of_warp[WARPS], of_block[CLUSTER_MAX], found[3];
    float max, cut;
    int index, n;
    union alignas(16) { /* of two passes, which take turns; at the end, as there is no more of it than a
                           cluster needs */
        unsigned long long mass[2][MASS_BINS];
        unsigned count[2][COUNT_BINS];
        unsigned largest[CLUSTER_MAX][THREADS]; /* keys of what find_max's threads have found */
    } bin;
};

/* Shared memory of a block, in a cluster of so many: bins, and behind them the room. */
static inline size_t sample_bytes(int n_rank)
{
    const size_t turns = sizeof(unsigned) * 2 * COUNT_BINS, largest = sizeof(unsigned) * THREADS * n_rank;
    return COPIES * COUNT_BINS * sizeof(unsigned) + offsetof(sample_room, bin) +
           (turns > largest ? turns : largest);
}

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
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += i < warp ? r.of_warp[i] : 0;
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

#define COUNTED 256 /* entries for which counting is the shorter way to sort */

/* The list (n), the largest first. */
static __device__ __forceinline__ void sort_list(int n, sample_room &r)
{
    __syncthreads();
    if (n <= COUNTED) { /* each entry's thread counts those before it */
        const bool has = (int)threadIdx.x < n;
        const unsigned long long mine = has ? r.to.list[threadIdx.x] : 0;
        int before = 0;
        if (has)
#pragma unroll 8
            for (int i = 0; i < n; i++) {
                const unsigned long long other = r.to.list[i];
                before += other > mine || (other == mine && i < (int)threadIdx.x);
            }
        __syncthreads();
        if (has)
            r.to.list[before] = mine;
        __syncthreads();
        return;
    }
    int size = 2;
    while (size < n)
        size *= 2;
    for (int i = n + (int)threadIdx.x; i < size; i += THREADS)
        r.to.list[i] = 0;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2)
        for (int d = run / 2; d > 0; d /= 2) { /* each thread has a pair, d apart: a power of two */
            const int i = ((int)threadIdx.x & -d) * 2 + ((int)threadIdx.x & (d - 1)), j = i + d;
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

/* x[0], x[step], x[2 step], ... as far as they lie before `end`, and then `outside`. Behind a choice of two
 * ways to load, so that all are under way before the first is used: the compiler would load one when the one
 * before has been used, to keep registers free. */
template <int N>
static __device__ __forceinline__ void load_ahead(float (&v)[N], const float *x, int step, const float *end,
                                                  float outside)
{
    if (x + (N - 1) * step < end) {
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = x[j * step];
    } else {
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] = x + j * step < end ? x[j * step] : outside;
    }
}

/* f(value, column) for this thread's columns of the block's stretch. Eight are asked for before the first is
 * used: what f writes would hold back what is read after it. */
template <typename F> static __device__ __forceinline__ void each_column(const sample_row &row, F f)
{
    const int AHEAD = 8;
    for (int first = row.begin + (int)threadIdx.x; first < row.end; first += AHEAD * THREADS) {
        float v[AHEAD];
        load_ahead(v, row.x + first, THREADS, row.x + row.end, 0.0f);
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

static __device__ __forceinline__ float of_key(unsigned key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
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

/* This warp's SUM_BLOCKs: f(b). */
template <typename F> static __device__ __forceinline__ void each_block(const sample_row &row, F f)
{
    const int end = (row.end + SUM_BLOCK - 1) / SUM_BLOCK;
    for (int b = (row.begin + SUM_BLOCK - 1) / SUM_BLOCK + (int)threadIdx.x / 32; b < end; b += WARPS)
        f(b);
}

#define OF_BLOCK (SUM_BLOCK / 32) /* columns of a SUM_BLOCK that a lane has */
#define FEW      4                /* of them that are looked at side by side */

/* What f(values, column of the first) makes of this lane's columns of SUM_BLOCK b, FEW at a time and
 * SUM_LANES apart; columns that the row does not have are `outside`. The CPU's running sum s of 16 goes
 * through those of lane s and then of lane s + 16. All by the same instructions: with one row a kernel runs
 * through its code once, and has to fetch it. */
template <typename F>
static __device__ __forceinline__ void each_of_block(const sample_row &row, int b, float outside,
                                                     float (&w)[OF_BLOCK], F f)
{
    const int lane = threadIdx.x % 32;
    int i = b * SUM_BLOCK + lane / SUM_LANES * (SUM_BLOCK / 2) + lane % SUM_LANES;
    load_ahead(w, row.x + i, SUM_LANES, row.x + row.end, outside);
#pragma unroll 1
    for (int k = 0; k < OF_BLOCK; k += FEW, i += FEW * SUM_LANES) {
        float v[FEW];
#pragma unroll
        for (int j = 0; j < FEW; j++)
            v[j] = w[j];
        f(v, i);
#pragma unroll
        for (int j = 0; j < OF_BLOCK; j++)
            w[j] = j + FEW < OF_BLOCK ? w[j + FEW] : v[j + FEW - OF_BLOCK];
    }
}

/* The sums of what of(values, column, equal) makes of the row, in all blocks' r.sum and r.equal. Blocks whose
 * sum is below `least` before are not read: nothing is made of their columns; `outside` is what columns are
 * that the row does not have. What a block has for another one goes there in one piece. */
template <typename F>
static __device__ __forceinline__ void sum_blocks(const sample_row &row, float least, float outside,
                                                  sample_room &r, F of)
{
    const int lane = threadIdx.x % 32;
    each_block(row, [&](int b) {
        float w[OF_BLOCK] = {}, s = 0.0f;
        int equal = 0;
        if (least == 0.0f || r.sum[b] >= (double)least)
            each_of_block(row, b, outside, w, [&](float(&v)[FEW], int i) { of(v, i, equal); });
#pragma unroll
        for (int j = 0; j < OF_BLOCK; j++)
            s = plus(s, w[j]);
        s = __shfl_up_sync(ALL_LANES, s, SUM_LANES); /* the upper half goes on where the lower one ended */
#pragma unroll
        for (int j = 0; j < OF_BLOCK; j++)
            s = plus(s, w[j]);
        s = plus(s, __shfl_xor_sync(ALL_LANES, s, 8));
        s = plus(s, __shfl_xor_sync(ALL_LANES, s, 4));
        const double pair = plus((double)s, (double)__shfl_xor_sync(ALL_LANES, s, 2));
        const double sum = plus(pair, __shfl_xor_sync(ALL_LANES, pair, 1));
        equal = (int)warp_total((unsigned)equal);
        if (lane == SUM_LANES) {
            r.sum[b] = sum;
            r.equal[b] = equal;
        }
    });
    __syncthreads();
    const int begin = (row.begin + SUM_BLOCK - 1) / SUM_BLOCK, end = (row.end + SUM_BLOCK - 1) / SUM_BLOCK;
    for (int i = (int)threadIdx.x / 32; i < row.n_rank; i += WARPS) {
        sample_room *to = cluster_at(&r, i);
        for (int b = begin + lane; b < end && i != row.rank; b += 32) {
            to->sum[b] = r.sum[b];
            to->equal[b] = r.equal[b];
        }
    }
    cluster_sync();
}
static_assert(SUM_BLOCK == 32 * SUM_LANES, "sixteen for each lane");

/* Weights take the logits' place, and `also`(weights) is done with each few of them; their sums, too. */
template <typename F>
static __device__ __forceinline__ void weigh_row(const sample_row &row, float factor, float min_p,
                                                 sample_room &r, F also)
{
    const float max = r.max;
    sum_blocks(row, 0.0f, -INFINITY, r, [&](float(&v)[FEW], int i, int &) {
#pragma unroll
        for (int j = 0; j < FEW; j++)
            v[j] = weight_of(v[j], max, factor, min_p);
#pragma unroll
        for (int j = 0; j < FEW; j++)
            if (i + j * SUM_LANES < row.end)
                row.x[i + j * SUM_LANES] = v[j];
        also(v);
    });
}

/* Sums of G values at a time (n values in all), into r.to.group. */
template <int G> static __device__ __forceinline__ void add_groups(const double *value, int n, sample_room &r)
{
    static_assert(SUMS_MAX / G <= THREADS, "a group for each thread");
    const int begin = (int)threadIdx.x * G;
    if (begin >= n)
        return;
    double sum = 0;
#pragma unroll
    for (int i = 0; i < G; i++)
        sum = plus(sum, begin + i < n ? value[begin + i] : 0.0);
    r.to.group[threadIdx.x] = sum;
}

/* All of r.sum, in all threads. */
static __device__ __forceinline__ double sum_all(const sample_row &row, sample_room &r)
{
    add_groups<SUM_GROUP>(r.sum, row.n_sum, r);
    __syncthreads();
    double at = 0;
    for (int g = 0; g * SUM_GROUP < row.n_sum; g++)
        at = plus(at, r.to.group[g]);
    return at;
}

/* A place among masses that follow each other: its number, < 0 for none, and what is before it. */
struct sample_place {
    int at;
    double before;
};

/* The last of n masses that has something and begins at `target` or before it. */
static __device__ __forceinline__ sample_place walk(const double *mass, int n, double before, double target)
{
    sample_place p = {-1, 0.0};
#pragma unroll 4
    for (int i = 0; i < n; i++) {
        const double m = mass[i];
        if (m > 0 && before <= target)
            p = {i, before};
        before = plus(before, m);
    }
    return p;
}

/* The same of r.value (n), G of which are added up first: in all threads, each of which walks for itself. */
template <int G>
static __device__ __forceinline__ sample_place walk_groups(int n, double target, sample_room &r)
{
    __syncthreads();
    add_groups<G>(r.value, n, r);
    __syncthreads();
    sample_place p = walk(r.to.group, (n + G - 1) / G, 0.0, target);
    if (p.at < 0)
        return p;
    const int first = p.at * G;
    p = walk(r.value + first, min(G, n - first), p.before, target);
    p.at += p.at < 0 ? 0 : first;
    return p;
}

/* Of the row's weights those above `cut`, and the first n_equal of those equal to it: the token where their
 * mass passes `target`; by a whole block, from what all of them have found out. */
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
    const sample_place block = walk_groups<SUM_GROUP>(row.n_sum, target, r);
    if (block.at < 0)
        return -1;
    if ((int)threadIdx.x == block.at / PER)
        r.n = block.at % PER ? left[PER - 1] : left[0];
    const int at = block.at * SUM_BLOCK + (int)threadIdx.x;
    const float w = at < row.n ? __ldcg(&row.x[at]) : -1.0f;
    const bool is_equal = at < row.n && w == cut;
    const int rank = (int)sum_before(is_equal, r); /* meets: r.n is there, and nobody walks any more */
    r.value[threadIdx.x] = w > cut || (is_equal && rank < r.n) ? (double)w : 0.0;
    const sample_place one = walk_groups<DRAW_GROUP>(SUM_BLOCK, plus(target, -block.before), r);
    return one.at < 0 ? -1 : block.at * SUM_BLOCK + one.at;
}
static_assert(SUM_BLOCK == THREADS && SUMS_MAX == 2 * THREADS, "a thread a weight, two sums a thread");
