/* top_k: the k largest logits, in a list that is sorted. */
#pragma once

#include "kernels/cuda/plugin/sample_nucleus.cuh"

#define FLOOR_BIT 12 /* the lowest that is looked at: logits from 16 to 32 to 1/128 */

/* A key that the k-th largest of the row is not below; 0 where nothing is known. Thread t of every block
 * together have a part of the row: k parts whose largest are not below a key have k logits that are not. And
 * few others are: of parts by chance, k = 50 are in the 53 largest. */
static __device__ __forceinline__ unsigned find_floor(const sample_row &row, int k, sample_room &r)
{
    unsigned largest = 0, floor = 0;
    for (int i = 0; i < row.n_rank; i++)
        largest = max(largest, r.bin.largest[i][threadIdx.x]);
    for (int bit = 31; bit >= FLOOR_BIT; bit--) {
        const unsigned higher = floor | 1u << bit;
        if (__syncthreads_count(largest >= higher) >= k)
            floor = higher;
    }
    return floor;
}

static __device__ __forceinline__ unsigned long long entry_of(unsigned key, int i)
{
    return (unsigned long long)key << 32 | (0xffffffffu - (unsigned)i);
}

static __device__ __forceinline__ int index_of(unsigned long long entry)
{
    return (int)(0xffffffffu - (unsigned)entry);
}

/* All that are not below `floor`, in any order, into the first block's list, by the threads that have found
 * one. Returns in all blocks how many there are: there is no room for more than CUDA_SAMPLE_TOP_K. */
static __device__ __forceinline__ int collect_from(const sample_row &row, unsigned floor, sample_room &r)
{
    sample_room *first = cluster_at(&r, 0);
    if (r.bin.largest[row.rank][threadIdx.x] >= floor)
        each_in_fours(row, [&](float x, int i) {
            const unsigned key = key_of(x);
            if (key < floor)
                return;
            const int to = atomicAdd(&first->n, 1);
            if (to < CUDA_SAMPLE_TOP_K)
                first->to.list[to] = entry_of(key, i);
        });
    cluster_sync();
    const int n = first->n;
    cluster_sync(); /* all have seen it: it may be written again, and the first block may end */
    return n;
}

/* The key of the k-th largest, and in r.n of all blocks how many of that key are among the k. False: there
 * are fewer than k candidates. */
static __device__ __forceinline__ bool find_kth(const sample_row &row, int k, unsigned *kth, sample_room &r)
{
    unsigned prefix = 0, left = (unsigned)k;
    int turn = 0;
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1, turn ^= 1) {
        const int width = shift == 0 ? 10 : 11;
        clear_bins(row.bins);
        each_column(row, [&](float x, int) {
            const unsigned key = key_of(x);
            if (key != 0 && (shift == 21 || key >> (shift + width) == prefix))
                atomicAdd(&row.bins[(key >> shift & ((1u << width) - 1)) * COPIES + threadIdx.x % COPIES],
                          1u);
        });
        __syncthreads();
        for (int bin = threadIdx.x; bin < COUNT_BINS; bin += THREADS) {
            unsigned sum = 0;
            for (int c = 0; c < COPIES; c++)
                sum += row.bins[bin * COPIES + (c + (int)threadIdx.x) % COPIES];
            r.bin.count[turn][bin] = sum;
        }
        cluster_sync();
        const int top = COUNT_BINS - 1 - 4 * (int)threadIdx.x; /* four bins a thread */
        unsigned bin[4] = {};
#pragma unroll 8
        for (int i = 0; i < row.n_rank; i++) {
            const uint4 four = *(const uint4 *)&cluster_at(r.bin.count[turn], i)[top - 3];
            bin[0] += four.w;
            bin[1] += four.z;
            bin[2] += four.y;
            bin[3] += four.x;
        }
        find_reach(bin[0] + bin[1] + bin[2] + bin[3], left, r);
        if (r.found[0] == ~0ull)
            return false;
        if (threadIdx.x == r.found[0]) {
            unsigned still = left - (unsigned)r.found[1];
            int at = 0;
#pragma unroll
            for (int i = 0; i < 3; i++)
                if (at == i && still > bin[i]) {
                    still -= bin[i];
                    at++;
                }
            r.n = (int)still;
            r.index = top - at;
        }
        __syncthreads();
        left = (unsigned)r.n;
        prefix = prefix << width | (unsigned)r.index;
        __syncthreads();
    }
    *kth = prefix;
    return true;
}
static_assert(COUNT_BINS == 4 * THREADS, "four bins for each thread");

/* Candidates above `kth` in any order, then the first r.n of those equal to it, into the first block's list;
 * each warp of the cluster has a stretch of the row. Returns, in the first block, how many there are. */
static __device__ __forceinline__ int collect(const sample_row &row, unsigned kth, int k, sample_room &r)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int stretch = (row.end - row.begin + THREADS - 1) / THREADS * 32,
              begin = row.begin + warp * stretch;
    const int end = min(begin + stretch, row.end), n_equal = r.n;
    sample_room *first = cluster_at(&r, 0);
    unsigned long long equal = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        r.n = 0;
    cluster_sync();
    for (int at = begin; at < begin + stretch; at += 32) {
        const int i = at + lane;
        const unsigned key = i < end ? key_of(row.x[i]) : 0u;
        if (key > kth) {
            const int to = atomicAdd(&first->n, 1);
            first->to.list[to] = entry_of(key, i);
        }
        equal += __popc(__ballot_sync(ALL_LANES, key == kth && key != 0));
    }
    if (lane == 0)
        r.of_warp[warp] = equal;
    __syncthreads();
    int before = 0;
    for (int i = 0; i < WARPS; i++)
        before += (int)r.of_warp[i];
    if ((int)threadIdx.x < row.n_rank)
        cluster_at(&r, (int)threadIdx.x)->of_block[row.rank] = (unsigned long long)before;
    cluster_sync();
    before = 0;
    for (int i = 0; i < row.rank; i++)
        before += (int)r.of_block[i];
    for (int i = 0; i < warp; i++)
        before += (int)r.of_warp[i];
    for (int at = begin; at < begin + stretch && before < n_equal; at += 32) {
        const int i = at + lane;
        const bool is = i < end && kth != 0 && key_of(row.x[i]) == kth;
        const unsigned all = __ballot_sync(ALL_LANES, is);
        const int rank = before + __popc(all & ((1u << lane) - 1));
        if (is && rank < n_equal)
            first->to.list[k - n_equal + rank] = entry_of(kth, i);
        before += __popc(all);
    }
    cluster_sync();
    return r.n + n_equal;
}

/* The largest k of the row into the first block's list, sorted. Returns how many there are, in the first
 * block. */
static __device__ __forceinline__ int find_top(const sample_row &row, int k, sample_room &r)
{
    const unsigned floor = find_floor(row, k, r);
    int held = floor ? collect_from(row, floor, r) : CUDA_SAMPLE_TOP_K + 1;
    if (held > CUDA_SAMPLE_TOP_K) { /* too many parts, or too many equals */
        unsigned kth = 0;
        if (!find_kth(row, k, &kth, r)) { /* all of them */
            if (threadIdx.x == 0)
                r.n = 0;
            kth = 0;
            __syncthreads();
        }
        held = collect(row, kth, k, r);
    }
    if (row.rank > 0)
        return 0;
    sort_list(held, r);
    return min(held, k);
}

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

/* In r.n: the first of m sums r.to.running[i + 1] that reaches `wanted`, or passes it, or else what is
 * there. */
static __device__ __forceinline__ void find_sum(int m, double wanted, bool passes, sample_room &r)
{
    const auto is_there = [&](double sum) { return passes ? sum > wanted : sum >= wanted; };
    for (int i = threadIdx.x; i < m; i += THREADS)
        if (is_there(r.to.running[i + 1]) && (i == 0 || !is_there(r.to.running[i])))
            r.n = i;
    __syncthreads();
}

/* The answer is the first block's. The sums of the first weights are the CPU's: those of all, of the nucleus,
 * and of those before the draw are the same ones. */
static __device__ __forceinline__ int draw_from_top(const sample_row &row, const cuda_draw &d, sample_room &r)
{
    const int held = find_top(row, min(d.top_k, row.n), r);
    if (held == 0)
        return -1;
    const float factor = times(d.scale, 1.44269504f);
    int id[2], zeros = 0;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int i = (int)threadIdx.x + j * THREADS;
        id[j] = i < held ? index_of(r.to.list[i]) : -1;
        const float w = i < held ? weight_of(row.x[id[j]], r.max, factor, d.min_p) : 0.0f;
        r.value[i] = (double)w;
        if (i < held && !(w > 0))
            zeros = max(zeros, held - i);
    }
    int m = held - block_largest(zeros, r);
    const double total = run_up(0.0, m, false, r);
    if (d.top_p < 1) {
        if (threadIdx.x == 0)
            r.n = m - 1;
        __syncthreads();
        find_sum(m, times(total, (double)d.top_p), false, r);
        m = r.n + 1;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        r.n = m - 1;
    __syncthreads();
    find_sum(m, times(d.uniform, r.to.running[m]), true, r);
#pragma unroll
    for (int j = 0; j < 2; j++)
        if ((int)threadIdx.x + j * THREADS == r.n)
            r.index = id[j];
    __syncthreads();
    return m ? r.index : -1;
}
static_assert(CUDA_SAMPLE_TOP_K <= 2 * THREADS && CUDA_SAMPLE_TOP_K <= SUMS_MAX, "two weights a thread");
