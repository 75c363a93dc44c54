/* top_p: the smallest set of weights that has that much of the mass. Where it ends is found in bins of ten of
 * the weights' bits at a time, whose masses are counted in integers: their sums are the same in any order. */
#pragma once

#include "kernels/cuda/plugin/sample_row.cuh"

/* What a weight up to 1 counts, in units of 1 / ONE_MASS, rounded down. */
static __device__ __forceinline__ unsigned long long mass_of(float w)
{
    const unsigned bits = __float_as_uint(w), shift = 127 - (bits >> 23);
    return ((unsigned long long)((bits & 0x7fffffu) | 0x800000u) << (MASS_BITS - 23)) >> min(shift, 63u);
}

static __device__ __forceinline__ void clear_bins(unsigned *bins)
{
    __syncthreads();
    for (int i = threadIdx.x; i < COPIES * COUNT_BINS / 4; i += THREADS)
        ((uint4 *)bins)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
}
static_assert(COUNT_BINS == 2 * MASS_BINS, "two words of a mass are as many as counts");

/* What the weights of a row have at least, all together: those of the largest that find_max's threads have
 * found. The same in all blocks. */
static __device__ __forceinline__ float mass_at_least(const sample_row &row, float factor, float min_p,
                                                      sample_room &r)
{
    unsigned key = 0;
    for (int i = 0; i < row.n_rank; i++)
        key = max(key, r.bin.largest[i][threadIdx.x]);
    float w = key == 0 ? 0.0f : weight_of(of_key(key), r.max, factor, min_p);
    for (int d = 16; d > 0; d /= 2)
        w = plus(w, __shfl_xor_sync(ALL_LANES, w, d));
    if (threadIdx.x % 32 == 0)
        r.of_warp[threadIdx.x / 32] = __float_as_uint(w);
    __syncthreads();
    float mass = 0.0f;
    for (int i = 0; i < WARPS; i++)
        mass = plus(mass, __uint_as_float((unsigned)r.of_warp[i]));
    return mass;
}

/* Weights below this are less than what a nucleus leaves out of such a mass, all n together: it does not end
 * among them. In bits. */
static __device__ __forceinline__ unsigned least_of(float top_p, int n, float mass)
{
    return __float_as_uint(fmaxf((float)(0.999 * (1.0 - (double)top_p) * (double)mass / n), 0x1p-126f));
}

/* What weights, bin by bin, have in mass; numbers of bins are bits above 2^-126's. Those of which `prefix`
 * has the bits above shift + 10. In two words: adding 64 bits to shared memory would be a loop of compare and
 * swap.
 */
template <int N>
static __device__ __forceinline__ void add_weights(const sample_row &row, const float (&w)[N], unsigned least,
                                                   int shift, unsigned prefix)
{
    unsigned high[N];
    unsigned *at[N]; /* the bin's low word */
#pragma unroll
    for (int j = 0; j < N; j++) {
        const unsigned bits = __float_as_uint(w[j]), key = bits - LEAST_WEIGHT;
        const bool is = bits >= least && key >> (shift + 10) == prefix;
        const unsigned long long mass = mass_of(w[j]);
        const unsigned low = (unsigned)mass;
        at[j] = row.bins + (key >> shift & (MASS_BINS - 1)) * COPIES + threadIdx.x % COPIES;
        high[j] = 0;
        if (is) {
            const unsigned before = atomicAdd(at[j], low);
            high[j] = (unsigned)(mass >> 32) + (before + low < low ? 1u : 0u);
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        if (high[j])
            atomicAdd(at[j] + MASS_BINS * COPIES, high[j]);
}

/* The bins of the whole row: masses of bins `top` and top - 1, which this thread has; nothing is in bins
 * below `lowest`, an even number. */
static __device__ __forceinline__ void add_bins(const sample_row &row, sample_room &r, int turn, int lowest,
                                                int top, unsigned long long *high, unsigned long long *low)
{
    __syncthreads();
    for (int bin = MASS_BINS - 1 - (int)threadIdx.x; bin >= lowest; bin -= THREADS) {
        unsigned long long mass = 0;
        for (int c = 0; c < COPIES; c++) {
            const int at = bin * COPIES + (c + (int)threadIdx.x) % COPIES;
            mass += (unsigned long long)row.bins[MASS_BINS * COPIES + at] << 32;
            mass += row.bins[at];
        }
        r.bin.mass[turn][bin] = mass;
    }
    cluster_sync();
    *high = *low = 0;
    if (top < lowest)
        return;
#pragma unroll 8
    for (int i = 0; i < row.n_rank; i++) {
        const ulonglong2 two = *(const ulonglong2 *)&cluster_at(r.bin.mass[turn], i)[top - 1];
        *high += two.y;
        *low += two.x;
    }
}

/* The cut among the weights of the bins' bin `prefix`, of which there are CUDA_SAMPLE_TOP_K at most: where
 * they have `left` of the mass. They go into the first block's list, which sorts them. */
static __device__ __forceinline__ float find_cut_in_list(const sample_row &row, unsigned least, int shift,
                                                         unsigned prefix, unsigned long long left,
                                                         sample_room &r)
{
    sample_room *first = cluster_at(&r, 0);
    const float from = __uint_as_float((prefix << shift) + LEAST_WEIGHT);
    each_block(row, [&](int b) {
        if (r.sum[b] < (double)from)
            return;
        float w[OF_BLOCK];
        each_of_block(row, b, 0.0f, w, [&](const float(&v)[FEW], int) {
#pragma unroll
            for (int j = 0; j < FEW; j++) {
                const unsigned bits = __float_as_uint(v[j]);
                if (bits < least || (bits - LEAST_WEIGHT) >> shift != prefix)
                    continue;
                const int to = atomicAdd(&first->n, 1);
                if (to < CUDA_SAMPLE_TOP_K)
                    first->to.list[to] = bits;
            }
        });
    });
    cluster_sync();
    if (row.rank == 0) {
        const int n = min(r.n, CUDA_SAMPLE_TOP_K);
        sort_list(n, r);
        float w[2];
        unsigned long long mass[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int i = 2 * (int)threadIdx.x + j;
            w[j] = i < n ? __uint_as_float((unsigned)r.to.list[i]) : 0.0f;
            mass[j] = w[j] > 0 ? mass_of(w[j]) : 0;
        }
        find_reach(mass[0] + mass[1], left, r);
        if (threadIdx.x == r.found[0])
            r.cut = r.found[1] + mass[0] >= left ? w[0] : w[1];
        __syncthreads();
        if (threadIdx.x > 0 && (int)threadIdx.x < row.n_rank)
            cluster_at(&r, (int)threadIdx.x)->cut = r.cut;
    }
    cluster_sync();
    return r.cut;
}

/* The largest weight that, with all above it, has `target` of the mass. None: `least`, below which nobody
 * looks. The bins have all weights already, and r.sum their sums. */
static __device__ __forceinline__ float find_cut(const sample_row &row, double target, unsigned least,
                                                 sample_room &r)
{
    const double wanted = ceil(times(target, ONE_MASS));
    unsigned long long left = wanted > 0 ? (unsigned long long)wanted : 0;
    unsigned prefix = 0;
    for (int shift = 20, turn = 0; shift >= 0; shift -= 10, turn ^= 1) {
        if (shift < 20) {
            clear_bins(row.bins);
            each_block(row, [&](int b) {
                float w[OF_BLOCK];
                each_of_block(row, b, 0.0f, w,
                              [&](const float(&v)[FEW], int) { add_weights(row, v, least, shift, prefix); });
            });
        }
        const int top = MASS_BINS - 1 - 2 * (int)threadIdx.x; /* two bins a thread */
        unsigned long long high, low;
        const int lowest = shift == 20 ? (int)((least - LEAST_WEIGHT) >> 20) & ~1 : 0;
        add_bins(row, r, turn, lowest, top, &high, &low);
        find_reach(high + low, left, r);
        if (r.found[0] == ~0ull)
            return __uint_as_float(least);
        if (threadIdx.x == r.found[0]) {
            const bool in_high = r.found[1] + high >= left;
            r.index = in_high ? top : top - 1;
            r.found[1] += in_high ? 0 : high;
            r.found[2] = in_high ? high : low;
        }
        __syncthreads();
        left -= r.found[1];
        prefix = prefix << 10 | (unsigned)r.index;
        const double lightest = (double)__uint_as_float((prefix << shift) + LEAST_WEIGHT) * ONE_MASS;
        if (shift > 0 && (double)(r.found[2] + CUDA_SAMPLE_TOP_K) <= CUDA_SAMPLE_TOP_K * lightest)
            return find_cut_in_list(row, least, shift, prefix, left, r);
    }
    return __uint_as_float(prefix + LEAST_WEIGHT);
}
static_assert(MASS_BINS == 2 * THREADS, "two bins for each thread");

/* The answer is the first block's. */
static __device__ __forceinline__ int draw_from_nucleus(const sample_row &row, const cuda_draw &d,
                                                        unsigned least, sample_room &r)
{
    const double target = times(sum_all(row, r), (double)d.top_p);
    const float cut = find_cut(row, target, least, r);
    sum_blocks(row, cut, 0.0f, r, [&](float(&v)[FEW], int, int &equal) {
#pragma unroll
        for (int j = 0; j < FEW; j++) {
            equal += v[j] == cut;
            v[j] = v[j] > cut ? v[j] : 0.0f;
        }
    });
    if (row.rank > 0)
        return -1;
    const double mass = sum_all(row, r);
    int equal = 0;
    for (int b = threadIdx.x; b < row.n_sum; b += THREADS)
        equal += r.equal[b];
    sum_before((unsigned)equal, r);
    int n_equal = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        n_equal += (int)r.of_warp[i];
    const double wanted = ceil(plus(target, -mass) / (double)cut);
    int taken = wanted < 1 ? 1 : wanted > n_equal ? n_equal : (int)wanted;
    taken = min(taken, n_equal);
    return draw_from_row(row, cut, taken, times(d.uniform, plus(mass, times((double)taken, (double)cut))), r);
}
