/* top_p: the smallest set of weights that has that much of the mass. Where it ends is found in bins of ten of
 * the weights' bits at a time, whose masses are counted in integers: their sums are the same in any order. */
#pragma once

#include "kernels/cuda/plugin/sample_row.cuh"

/* In two words: adding 64 bits to shared memory would be a loop of compare and swap. */
static __device__ __forceinline__ void add_mass(unsigned *bins, unsigned bin, unsigned long long mass)
{
    unsigned *low_at = bins + bin * COPIES + threadIdx.x % COPIES, *high_at = low_at + MASS_BINS * COPIES;
    const unsigned low = (unsigned)mass, before = atomicAdd(low_at, low);
    const unsigned high = (unsigned)(mass >> 32) + (before + low < low ? 1u : 0u);
    if (high)
        atomicAdd(high_at, high);
}

static __device__ __forceinline__ void clear_bins(unsigned *bins)
{
    __syncthreads();
    for (int i = threadIdx.x; i < COPIES * COUNT_BINS / 4; i += THREADS)
        ((uint4 *)bins)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
}
static_assert(COUNT_BINS == 2 * MASS_BINS, "two words of a mass are as many as counts");

/* The bins of the whole row: masses of bins `top` and top - 1, which this thread has. */
static __device__ __forceinline__ void add_bins(const sample_row &row, sample_room &r, int turn, int top,
                                                unsigned long long *high, unsigned long long *low)
{
    __syncthreads();
    for (int bin = threadIdx.x; bin < MASS_BINS; bin += THREADS) {
        unsigned long long sum = 0;
        for (int c = 0; c < COPIES; c++) {
            const int at = bin * COPIES + (c + (int)threadIdx.x) % COPIES;
            sum += (unsigned long long)row.bins[MASS_BINS * COPIES + at] << 32;
            sum += row.bins[at];
        }
        r.bin.mass[turn][bin] = sum;
    }
    cluster_sync();
    *high = *low = 0;
#pragma unroll
    for (int i = 0; i < CLUSTER_MAX; i++)
        if (i < row.n_rank) {
            const unsigned long long *from = cluster_at(r.bin.mass[turn], i);
            *high += from[top];
            *low += from[top - 1];
        }
}

/* The largest weight that, with all above it, has `target` of the mass. None: `least`, below which nobody
 * looks. */
static __device__ __forceinline__ float find_cut(const sample_row &row, double total, double target,
                                                 sample_room &r)
{
    const double wanted = ceil(times(target, ONE_MASS));
    unsigned long long left = wanted > 0 ? (unsigned long long)wanted : 0;
    float least = (float)(0.999 * plus(total, -target) / row.n);
    least = least >= 0x1p-126f ? least : 0x1p-126f;
    const unsigned from = __float_as_uint(least);
    unsigned prefix = 0; /* of bits above 2^-126's */
    for (int shift = 20, turn = 0; shift >= 0; shift -= 10, turn ^= 1) {
        clear_bins(row.bins);
        each_column(row, [&](float w, int) {
            const unsigned bits = __float_as_uint(w), key = bits - LEAST_WEIGHT;
            if (bits >= from && (shift == 20 || key >> (shift + 10) == prefix))
                add_mass(row.bins, key >> shift & (MASS_BINS - 1),
                         (unsigned long long)((double)w * ONE_MASS));
        });
        const int top = MASS_BINS - 1 - 2 * (int)threadIdx.x; /* two bins a thread */
        unsigned long long high, low;
        add_bins(row, r, turn, top, &high, &low);
        find_reach(high + low, left, r);
        if (r.found[0] == ~0ull)
            return least;
        if (threadIdx.x == r.found[0]) {
            const bool in_high = r.found[1] + high >= left;
            r.index = in_high ? top : top - 1;
            r.found[1] += in_high ? 0 : high;
        }
        __syncthreads();
        left -= r.found[1];
        prefix = prefix << 10 | (unsigned)r.index;
    }
    return __uint_as_float(prefix + LEAST_WEIGHT);
}
static_assert(MASS_BINS == 2 * THREADS, "two bins for each thread");

/* The answer is the first block's. */
static __device__ __forceinline__ int draw_from_nucleus(const sample_row &row, double total, double target,
                                                        double u, sample_room &r)
{
    const float cut = find_cut(row, total, target, r);
    sum_blocks(row, r, [&](float w, int, int &equal) {
        equal += w == cut;
        return w > cut ? w : 0.0f;
    });
    if (row.rank > 0)
        return -1;
    const double mass = sum_all(row, r);
    int equal = 0;
    for (int b = threadIdx.x; b < row.n_sum; b += THREADS)
        equal += r.equal[b];
    sum_before((unsigned)equal, r);
    int n_equal = 0;
    for (int i = 0; i < WARPS; i++)
        n_equal += (int)r.of_warp[i];
    const double wanted = ceil(plus(target, -mass) / (double)cut);
    int taken = wanted < 1 ? 1 : wanted > n_equal ? n_equal : (int)wanted;
    taken = min(taken, n_equal);
    return draw_from_row(row, cut, taken, times(u, plus(mass, times((double)taken, (double)cut))), r);
}
