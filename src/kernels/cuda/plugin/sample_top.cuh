/* top_k: the k largest logits, in a list that is sorted. */
#pragma once

#include "kernels/cuda/plugin/sample_nucleus.cuh"

/* Larger logits have larger keys, equal ones the same; 0: not a candidate. */
static __device__ __forceinline__ unsigned key_of(float x)
{
    const unsigned bits = x == 0.0f ? 0u : __float_as_uint(x);
    return !(x > -INFINITY) ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
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
#pragma unroll
        for (int i = 0; i < CLUSTER_MAX; i++)
            if (i < row.n_rank) {
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
            first->to.list[to] = (unsigned long long)key << 32 | (0xffffffffu - (unsigned)i);
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
            first->to.list[k - n_equal + rank] = (unsigned long long)kth << 32 | (0xffffffffu - (unsigned)i);
        before += __popc(all);
    }
    cluster_sync();
    return r.n + n_equal;
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

/* The answer is the first block's first thread's. */
static __device__ __forceinline__ int draw_from_top(const sample_row &row, const cuda_draw &d, sample_room &r)
{
    unsigned kth = 0;
    const int k = min(d.top_k, row.n);
    if (!find_kth(row, k, &kth, r)) { /* all of them */
        if (threadIdx.x == 0)
            r.n = 0;
        kth = 0;
        __syncthreads();
    }
    const int held = collect(row, kth, k, r);
    if (row.rank > 0 || held == 0)
        return -1;
    sort_list(held, r);
    const float factor = times(d.scale, 1.44269504f);
    for (int i = threadIdx.x; i < held; i += THREADS)
        r.of.weight[i] = weight_of(row.x[0xffffffffu - (unsigned)r.to.list[i]], r.max, factor, d.min_p);
    __syncthreads();
    if (threadIdx.x != 0)
        return -1;
    double total = 0, at = 0;
    int m = 0;
    for (; m < held && r.of.weight[m] > 0; m++)
        total = plus(total, (double)r.of.weight[m]);
    for (int j = 0; d.top_p < 1 && j < m; j++) {
        at = plus(at, (double)r.of.weight[j]);
        if (at >= times(total, (double)d.top_p))
            m = j + 1;
    }
    total = at = 0;
    for (int j = 0; j < m; j++)
        total = plus(total, (double)r.of.weight[j]);
    int token = m ? (int)(0xffffffffu - (unsigned)r.to.list[m - 1]) : -1;
    for (int j = 0; j < m; j++) {
        at = plus(at, (double)r.of.weight[j]);
        if (at > times(d.uniform, total)) {
            token = (int)(0xffffffffu - (unsigned)r.to.list[j]);
            break;
        }
    }
    return token;
}
