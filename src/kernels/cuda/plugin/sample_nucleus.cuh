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

/* Weights below this are less than what a nucleus leaves out, all n together: it does not end among them. What
 * is left out is 1 - top_p of the mass, and that is the largest weight's at least, which is 1. In bits. */
static __device__ __forceinline__ unsigned least_of(float top_p, int n)
{
    return __float_as_uint(fmaxf((float)(0.999 * (1.0 - (double)top_p) / n), 0x1p-126f));
}

/* What weights, bin by bin, have in mass; numbers of bins are bits above 2^-126's. Those of which `prefix` has
 * the bits above shift + 10. */
static __device__ __forceinline__ void add_weight(const sample_row &row, float w, unsigned least, int shift,
                                                  unsigned prefix)
{
    const unsigned bits = __float_as_uint(w), key = bits - LEAST_WEIGHT;
    if (bits >= least && key >> (shift + 10) == prefix)
        add_mass(row.bins, key >> shift & (MASS_BINS - 1), (unsigned long long)((double)w * ONE_MASS));
}

/* The bins of the whole row: masses of bins `top` and top - 1, which this thread has. With `sum`, the first
 * warp adds up the row meanwhile. */
static __device__ __forceinline__ void add_bins(const sample_row &row, sample_room &r, int turn, bool sum,
                                                int top, unsigned long long *high, unsigned long long *low)
{
    __syncthreads();
    if (sum)
        add_sums(row, r);
    const int helps = sum ? 32 : 0;
    for (int bin = (int)threadIdx.x - helps; bin >= 0 && bin < MASS_BINS; bin += THREADS - helps) {
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
#pragma unroll
    for (int i = 0; i < CLUSTER_MAX; i++)
        if (i < row.n_rank) {
            const unsigned long long *from = cluster_at(r.bin.mass[turn], i);
            *high += from[top];
            *low += from[top - 1];
        }
}

/* The cut among the weights of the bins' bin `prefix`, of which there are CUDA_SAMPLE_TOP_K at most: where they
 * have `left` of the mass. They go into the first block's list, which sorts them. */
static __device__ __forceinline__ float find_cut_in_list(const sample_row &row, unsigned least, int shift,
                                                         unsigned prefix, unsigned long long left,
                                                         sample_room &r)
{
    sample_room *first = cluster_at(&r, 0);
    const float from = __uint_as_float((prefix << shift) + LEAST_WEIGHT);
    each_block(row, [&](int b, int end) {
        const bool is_read = b < end && r.sum[b] >= (double)from;
        each_of_block(row, b, is_read ? row.end : 0, [&](float w, int) {
            const unsigned bits = __float_as_uint(w);
            if (bits >= least && (bits - LEAST_WEIGHT) >> shift == prefix) {
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
            mass[j] = (unsigned long long)((double)w[j] * ONE_MASS);
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

/* The largest weight that, with all above it, has top_p of the mass. None: `least`, below which nobody looks.
 * The bins have all weights already, whose sums are r.sum. Returns in `target` how much the CPU says that is. */
static __device__ __forceinline__ float find_cut(const sample_row &row, float top_p, unsigned least,
                                                 double *target, sample_room &r)
{
    unsigned long long left = 0;
    unsigned prefix = 0;
    for (int shift = 20, turn = 0; shift >= 0; shift -= 10, turn ^= 1) {
        if (shift < 20) {
            clear_bins(row.bins);
            each_column(row, [&](float w, int) { add_weight(row, w, least, shift, prefix); });
        }
        const int top = MASS_BINS - 1 - 2 * (int)threadIdx.x; /* two bins a thread */
        unsigned long long high, low;
        add_bins(row, r, turn, shift == 20, top, &high, &low);
        if (shift == 20) {
            *target = times(r.total, (double)top_p);
            const double wanted = ceil(times(*target, ONE_MASS));
            left = wanted > 0 ? (unsigned long long)wanted : 0;
        }
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
    double target;
    const float cut = find_cut(row, d.top_p, least, &target, r);
    sum_blocks(row, cut, r, [&](float w, int, int &equal) {
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
    return draw_from_row(row, cut, taken, times(d.uniform, plus(mass, times((double)taken, (double)cut))), r);
}
