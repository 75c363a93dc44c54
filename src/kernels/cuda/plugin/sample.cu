/* From logits to tokens: what the CPU's sampler does with a row (engine/sampler.h), in its order of
 * operations and with its bits. Weights are its polynomial, sums of weights are made in its order (16 running
 * sums in each block of 512, then a tree, then blocks one after the other in fp64), and the draw walks as it
 * does. One thing has another order: the mass that finds where a nucleus ends is counted in integers here, so
 * the two may end one token apart where that mass meets top_p to within the rounding of sums, about 1e-7.
 *
 * A block of threads has a row. */
#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/gpu.h"

#define THREADS      1024
#define WARPS        (THREADS / 32)
#define SUM_BLOCK    512 /* weights that are summed in fp32 before they join an fp64 sum */
#define SUM_LANES    16
#define SUMS_MAX     (CUDA_SAMPLE_MAX / SUM_BLOCK)
#define BINS         2048
#define MASS_BITS    1024        /* bins of a pass over masses */
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

/* ---- what a block shares ------------------------------------------------------------------------- */

struct sample_room {
    double sum[SUMS_MAX]; /* of each SUM_BLOCK of weights, or of those above the cut */
    int equal[SUMS_MAX];  /* weights equal to the cut                                */
    union {
        struct {
            unsigned low[MASS_BITS], high[MASS_BITS];
        } mass;
        unsigned count[BINS];
        unsigned long long list[CUDA_SAMPLE_TOP_K]; /* candidates: key, then the lower id first */
    } bin;
    float weight[CUDA_SAMPLE_TOP_K]; /* of the list, or of one SUM_BLOCK */
    unsigned long long of_warp[WARPS];
    unsigned long long found[2];
    double left;
    float max;
    int index, n;
};

/* Larger wins, the lower index among equals; NaN never does. */
static __device__ void find_max(const float *x, int n, sample_room &r)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float best = -INFINITY;
    int at = 0x7fffffff;
    for (int i = threadIdx.x; i < n; i += THREADS)
        if (x[i] > best) {
            best = x[i];
            at = i;
        }
    for (int d = 16; d > 0; d /= 2) {
        const float v = __shfl_xor_sync(ALL_LANES, best, d);
        const int j = __shfl_xor_sync(ALL_LANES, at, d);
        if (v > best || (v == best && j < at)) {
            best = v;
            at = j;
        }
    }
    if (lane == 0)
        r.of_warp[warp] = (unsigned long long)__float_as_uint(best) << 32 | (unsigned)at;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < WARPS; i++) {
            const float v = __uint_as_float((unsigned)(r.of_warp[i] >> 32));
            const int j = (int)(unsigned)r.of_warp[i];
            if (v > best || (v == best && j < at)) {
                best = v;
                at = j;
            }
        }
        r.max = best;
        r.index = at;
    }
    __syncthreads();
}

/* Of each thread's value v, the first thread's first: the sum of those before it. All of them together reach
 * `wanted` in one thread, which says so in r.found: its number, and the sum before it. None: ~0. */
static __device__ void find_reach(unsigned long long v, unsigned long long wanted, sample_room &r)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned long long sum = v;
    for (int d = 1; d < 32; d *= 2) {
        const unsigned long long other = __shfl_up_sync(ALL_LANES, sum, d);
        sum += lane >= d ? other : 0;
    }
    if (lane == 31)
        r.of_warp[warp] = sum;
    if (threadIdx.x == 0)
        r.found[0] = ~0ull;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        sum += r.of_warp[i];
    if (sum >= wanted && sum - v < wanted) {
        r.found[0] = threadIdx.x;
        r.found[1] = sum - v;
    }
    __syncthreads();
}

/* ---- sums and draws in the CPU's order ----------------------------------------------------------- */

/* Half a warp has a block of weights: running sum `lane` of 16 takes those 16 apart. */
template <typename F> static __device__ __forceinline__ void sum_blocks(int n, sample_room &r, F of)
{
    const int lane = threadIdx.x % SUM_LANES, n_block = (n + SUM_BLOCK - 1) / SUM_BLOCK;
    for (int first = 0; first < n_block; first += THREADS / SUM_LANES) { /* all lanes of a warp together */
        const int b = first + threadIdx.x / SUM_LANES, begin = b * SUM_BLOCK;
        float s = 0.0f;
        int equal = 0;
#pragma unroll 8
        for (int i = begin + lane; i < begin + SUM_BLOCK && i < n; i += SUM_LANES)
            s = plus(s, of(i, equal));
        s = plus(s, __shfl_xor_sync(ALL_LANES, s, 8));
        s = plus(s, __shfl_xor_sync(ALL_LANES, s, 4));
        const double pair = plus((double)s, (double)__shfl_xor_sync(ALL_LANES, s, 2));
        const double sum = plus(pair, __shfl_xor_sync(ALL_LANES, pair, 1));
        for (int d = 8; d > 0; d /= 2)
            equal += __shfl_xor_sync(ALL_LANES, equal, d);
        if (lane == 0 && b < n_block) {
            r.sum[b] = sum;
            r.equal[b] = equal;
        }
    }
    __syncthreads();
}

/* Of the weights w (n) those above `cut`, and the first n_equal of those equal to it: the token where their
 * mass passes `target`; by the whole block, the answer is the first thread's. */
static __device__ int draw_from_row(const float *w, int n, float cut, int n_equal, double target,
                                    sample_room &r)
{
    if (threadIdx.x == 0) {
        double before = 0, at = 0;
        int block = -1, equal_before = 0, left = n_equal;
        for (int b = 0; b < (n + SUM_BLOCK - 1) / SUM_BLOCK && at <= target; b++) {
            const int equal = min(r.equal[b], left);
            const double mass = plus(r.sum[b], times((double)equal, (double)cut));
            if (mass > 0) {
                block = b;
                before = at;
                equal_before = left;
                at = plus(at, mass);
            }
            left -= equal;
        }
        r.index = block;
        r.n = equal_before;
        r.left = plus(target, -before);
    }
    __syncthreads();
    const int begin = r.index * SUM_BLOCK;
    for (int i = threadIdx.x; r.index >= 0 && i < SUM_BLOCK; i += THREADS)
        r.weight[i] = begin + i < n ? w[begin + i] : -1.0f;
    __syncthreads();
    if (threadIdx.x != 0 || r.index < 0)
        return -1;
    double left = r.left;
    int equal_left = r.n, last = -1;
    for (int i = 0; i < SUM_BLOCK && begin + i < n && left >= 0; i++) {
        const float v = r.weight[i];
        if (v > cut || (v == cut && equal_left-- > 0)) {
            last = begin + i;
            left = plus(left, -(double)v);
        }
    }
    return last;
}

/* ---- top_p --------------------------------------------------------------------------------------- */

/* In two words: adding 64 bits to shared memory would be a loop of compare and swap. Integers, so that the
 * sum is the same in any order. */
static __device__ __forceinline__ void add_mass(sample_room &r, unsigned bin, unsigned long long mass)
{
    const unsigned low = (unsigned)mass, before = atomicAdd(&r.bin.mass.low[bin], low);
    const unsigned high = (unsigned)(mass >> 32) + (before + low < low ? 1u : 0u);
    if (high)
        atomicAdd(&r.bin.mass.high[bin], high);
}

/* The largest weight that, with all above it, has `target` of the mass, by ten of its bits at a time. None:
 * `least`, below which nobody looks. */
static __device__ float find_cut(const float *w, int n, double total, double target, sample_room &r)
{
    const double wanted = ceil(times(target, ONE_MASS));
    unsigned long long left = wanted > 0 ? (unsigned long long)wanted : 0;
    float least = (float)(0.999 * plus(total, -target) / n);
    least = least >= 0x1p-126f ? least : 0x1p-126f;
    const unsigned from = __float_as_uint(least);
    unsigned prefix = 0; /* of bits above 2^-126's */
    for (int shift = 20; shift >= 0; shift -= 10) {
        for (int i = threadIdx.x; i < MASS_BITS; i += THREADS)
            r.bin.mass.low[i] = r.bin.mass.high[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const unsigned bits = __float_as_uint(w[i]);
            const unsigned key = bits - LEAST_WEIGHT;
            if (bits >= from && (shift == 20 || key >> (shift + 10) == prefix))
                add_mass(r, key >> shift & (MASS_BITS - 1), (unsigned long long)((double)w[i] * ONE_MASS));
        }
        __syncthreads();
        const int bin = MASS_BITS - 1 - (int)threadIdx.x;
        find_reach((unsigned long long)r.bin.mass.high[bin] << 32 | r.bin.mass.low[bin], left, r);
        if (r.found[0] == ~0ull)
            return least;
        left -= r.found[1];
        prefix = prefix << 10 | (unsigned)(MASS_BITS - 1 - (int)r.found[0]);
        __syncthreads();
    }
    return __uint_as_float(prefix + LEAST_WEIGHT);
}
static_assert(MASS_BITS == THREADS, "a bin for each thread");

static __device__ int draw_from_nucleus(const float *w, int n, double total, double target, double u,
                                        sample_room &r)
{
    const float cut = find_cut(w, n, total, target, r);
    sum_blocks(n, r, [&](int i, int &equal) {
        equal += w[i] == cut;
        return w[i] > cut ? w[i] : 0.0f;
    });
    double mass = 0;
    int n_equal = 0;
    for (int b = 0; b < (n + SUM_BLOCK - 1) / SUM_BLOCK; b++) { /* in every thread */
        mass = plus(mass, r.sum[b]);
        n_equal += r.equal[b];
    }
    const double wanted = ceil(plus(target, -mass) / (double)cut);
    int taken = wanted < 1 ? 1 : wanted > n_equal ? n_equal : (int)wanted;
    taken = min(taken, n_equal);
    return draw_from_row(w, n, cut, taken, times(u, plus(mass, times((double)taken, (double)cut))), r);
}

/* Weights take the logits' place. */
static __device__ int draw_from_all(float *x, int n, const cuda_draw &d, sample_room &r)
{
    const float max = r.max, factor = times(d.scale, 1.44269504f);
    sum_blocks(n, r, [&](int i, int &) { return x[i] = weight_of(x[i], max, factor, d.min_p); });
    double total = 0;
    for (int b = 0; b < (n + SUM_BLOCK - 1) / SUM_BLOCK; b++)
        total = plus(total, r.sum[b]);
    if (d.top_p < 1)
        return draw_from_nucleus(x, n, total, times(total, (double)d.top_p), d.uniform, r);
    return draw_from_row(x, n, 0.0f, 0, times(d.uniform, total), r);
}

/* ---- top_k --------------------------------------------------------------------------------------- */

/* Larger logits have larger keys, equal ones the same; 0: not a candidate. */
static __device__ __forceinline__ unsigned key_of(float x)
{
    const unsigned bits = x == 0.0f ? 0u : __float_as_uint(x);
    return !(x > -INFINITY) ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The key of the k-th largest, and in r.n how many of that key are among the k. False: there are fewer than k
 * candidates. */
static __device__ bool find_kth(const float *x, int n, int k, unsigned *kth, sample_room &r)
{
    unsigned prefix = 0, left = (unsigned)k;
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1) {
        const int width = shift == 0 ? 10 : 11;
        for (int i = threadIdx.x; i < BINS; i += THREADS)
            r.bin.count[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const unsigned key = key_of(x[i]);
            if (key != 0 && (shift == 21 || key >> (shift + width) == prefix))
                atomicAdd(&r.bin.count[key >> shift & ((1u << width) - 1)], 1u);
        }
        __syncthreads();
        const int top = BINS - 1 - 2 * (int)threadIdx.x; /* two bins a thread */
        const unsigned high = r.bin.count[top], both = high + r.bin.count[top - 1];
        find_reach(both, left, r);
        if (r.found[0] == ~0ull)
            return false;
        if (threadIdx.x == r.found[0]) {
            const bool in_high = r.found[1] + high >= left;
            r.n = (int)(left - (unsigned)r.found[1] - (in_high ? 0 : high));
            r.index = in_high ? top : top - 1;
        }
        __syncthreads();
        left = (unsigned)r.n;
        prefix = prefix << width | (unsigned)r.index;
        __syncthreads();
    }
    *kth = prefix;
    return true;
}
static_assert(BINS == 2 * THREADS, "two bins for each thread");

/* Candidates above `kth` in any order, then the first r.n of those equal to it; each warp has a stretch of
 * the row. Returns how many there are. */
static __device__ int collect(const float *x, int n, unsigned kth, int k, sample_room &r)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int stretch = (n + THREADS - 1) / THREADS * 32, begin = warp * stretch;
    const int n_equal = r.n;
    unsigned long long equal = 0;
    __syncthreads();
    if (threadIdx.x == 0)
        r.n = 0;
    __syncthreads();
    for (int at = begin; at < begin + stretch; at += 32) {
        const int i = at + lane;
        const unsigned key = i < n ? key_of(x[i]) : 0u;
        if (key > kth) {
            const int to = atomicAdd(&r.n, 1);
            r.bin.list[to] = (unsigned long long)key << 32 | (0xffffffffu - (unsigned)i);
        }
        equal += __popc(__ballot_sync(ALL_LANES, key == kth && key != 0));
    }
    if (lane == 0)
        r.of_warp[warp] = equal;
    __syncthreads();
    int before = 0;
    for (int i = 0; i < warp; i++)
        before += (int)r.of_warp[i];
    for (int at = begin; at < begin + stretch && before < n_equal; at += 32) {
        const int i = at + lane;
        const bool is = i < n && kth != 0 && key_of(x[i]) == kth;
        const unsigned all = __ballot_sync(ALL_LANES, is);
        const int rank = before + __popc(all & ((1u << lane) - 1));
        if (is && rank < n_equal)
            r.bin.list[k - n_equal + rank] = (unsigned long long)kth << 32 | (0xffffffffu - (unsigned)i);
        before += __popc(all);
    }
    __syncthreads();
    return r.n + n_equal;
}

/* The list (n), the largest first. */
static __device__ void sort_list(int n, sample_room &r)
{
    int size = 2;
    while (size < n)
        size *= 2;
    const int i = threadIdx.x;
    if (i >= n && i < size)
        r.bin.list[i] = 0;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2)
        for (int d = run / 2; d > 0; d /= 2) {
            const int j = i ^ d;
            if (i < size && j > i) {
                const unsigned long long a = r.bin.list[i], b = r.bin.list[j];
                if ((a < b) == ((i & run) == 0)) {
                    r.bin.list[i] = b;
                    r.bin.list[j] = a;
                }
            }
            __syncthreads();
        }
}

static __device__ int draw_from_top(const float *x, int n, const cuda_draw &d, sample_room &r)
{
    unsigned kth = 0;
    const int k = min(d.top_k, n);
    if (!find_kth(x, n, k, &kth, r)) { /* all of them */
        if (threadIdx.x == 0)
            r.n = 0;
        kth = 0;
        __syncthreads();
    }
    const int held = collect(x, n, kth, k, r);
    if (held == 0)
        return -1;
    sort_list(held, r);
    const int i = threadIdx.x;
    const float factor = times(d.scale, 1.44269504f);
    if (i < held)
        r.weight[i] = weight_of(x[0xffffffffu - (unsigned)r.bin.list[i]], r.max, factor, d.min_p);
    __syncthreads();
    if (i != 0)
        return -1;
    double total = 0, at = 0;
    int m = 0;
    for (; m < held && r.weight[m] > 0; m++)
        total = plus(total, (double)r.weight[m]);
    for (int j = 0; d.top_p < 1 && j < m; j++) {
        at = plus(at, (double)r.weight[j]);
        if (at >= times(total, (double)d.top_p))
            m = j + 1;
    }
    total = at = 0;
    for (int j = 0; j < m; j++)
        total = plus(total, (double)r.weight[j]);
    int token = m ? (int)(0xffffffffu - (unsigned)r.bin.list[m - 1]) : -1;
    for (int j = 0; j < m; j++) {
        at = plus(at, (double)r.weight[j]);
        if (at > times(d.uniform, total)) {
            token = (int)(0xffffffffu - (unsigned)r.bin.list[j]);
            break;
        }
    }
    return token;
}

/* ---- a row --------------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(THREADS)
    sample_kernel(const cuda_sample a, const int32_t *count, int n_row)
{
    SHARED(sample_room, r);
    gpu_wait_before();
    gpu_let_next();
    const int t = blockIdx.x;
    if (t >= OP_COUNT(count, n_row))
        return;
    const cuda_draw d = a.draw[t];
    float *x = a.x + (size_t)t * a.n;
    if (!d.wanted)
        return;
    find_max(x, a.n, r);
    int token;
    if (!(r.max > -INFINITY && r.max < INFINITY))
        token = -1;
    else if (d.scale == 0)
        token = r.index;
    else if (d.top_k > 0)
        token = draw_from_top(x, a.n, d, r);
    else
        token = draw_from_all(x, a.n, d, r);
    if (threadIdx.x == 0)
        a.id[t] = token;
}

const char *sample_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_sample *a = &op->as.sample;
    if (a->n < 1 || a->n > CUDA_SAMPLE_MAX)
        return "sample: no columns, or more than a block can add up";
    return gpu_why(gpu_launch(sample_kernel, op->n_row, THREADS, 0, at->stream, *a, op->count, op->n_row));
}
