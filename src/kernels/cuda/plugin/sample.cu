/* From logits to tokens: what the CPU's sampler does with a row (engine/sampler.h), in its order of
 * operations and with its bits. Weights are its polynomial, sums of weights are made in its order (16 running
 * sums in each block of 512, then a tree, then blocks in groups of 16 in fp64), and the draw walks as it
 * does. One thing has another order: the mass that finds where a nucleus ends is counted in integers here, so
 * the two may end one token apart where that mass meets top_p to within the rounding of sums, about 1e-7.
 *
 * A cluster of blocks has a row (sample_row.cuh); how many does not change the answer. */
#include "kernels/cuda/plugin/cluster_counts.cuh"
#include "kernels/cuda/plugin/sample_top.cuh"

static __device__ __forceinline__ int draw_from_all(const sample_row &row, const cuda_draw &d, sample_room &r)
{
    const float factor = times(d.scale, 1.44269504f);
    if (d.top_p < 1) {
        const unsigned least = least_of(d.top_p, row.n, mass_at_least(row, factor, d.min_p, r));
        clear_bins(row.bins);
        weigh_row(row, factor, d.min_p, r, [&](const float(&w)[FEW]) { add_weights(row, w, least, 20, 0); });
        return draw_from_nucleus(row, d, least, r);
    }
    weigh_row(row, factor, d.min_p, r, [&](const float(&)[FEW]) {});
    if (row.rank > 0)
        return -1;
    return draw_from_row(row, 0.0f, 0, times(d.uniform, sum_all(row, r)), r);
}

/* grid: (blocks of a row's cluster, rows) */
static __global__ void __launch_bounds__(THREADS, 2)
    sample_kernel(const cuda_sample a, const int32_t *count, int n_row)
{
    DYNAMIC_SHARED(bins);
    sample_room &r = *(sample_room *)((unsigned *)bins + COPIES * COUNT_BINS);
    cluster_sync();
    gpu_wait_before();
    gpu_let_next();
    const int t = blockIdx.y;
    if (t >= OP_COUNT(count, n_row))
        return;
    const cuda_draw d = a.draw[t];
    if (!d.wanted)
        return;
    const sample_row row = sample_row::of(a.x + (size_t)t * a.n, a.n, (int)blockIdx.x, (int)gridDim.x, bins);
    find_max(row, d.top_k > 0 || d.top_p < 1, r);
    int token;
    if (!(r.max > -INFINITY && r.max < INFINITY))
        token = -1;
    else if (d.scale == 0)
        token = r.index;
    else if (d.top_k > 0)
        token = draw_from_top(row, d, r);
    else
        token = draw_from_all(row, d, r);
    if (threadIdx.x == 0 && row.rank == 0)
        a.id[t] = token;
}

/* Blocks for each row: as many as run at once (clusters do not fill all SMs twice), and each has four
 * SUM_BLOCKs at least. More than eight for few rows, where the GPU has room for such clusters. */
static int cluster_size(int n_row, int n, const struct gpu_limits *limits)
{
    static cluster_counts counts;
    const int LARGE = CLUSTER_MAX, MOST = 8;
    if (n_row * LARGE <= limits->n_sm / 2 && LARGE * 4 * SUM_BLOCK <= n &&
        gpu_allow_large_clusters(sample_kernel) == cudaSuccess &&
        counts.at_once(LARGE, sample_kernel, THREADS, sample_bytes(LARGE), limits) >= n_row)
        return LARGE;
    int size = MOST;
    while (size > 1 && ((int64_t)n_row * size > limits->n_sm || size * 4 * SUM_BLOCK > n))
        size /= 2;
    return size;
}

const char *sample_start(const struct cuda_op *op, const struct op_place *at)
{
    const struct cuda_sample *a = &op->as.sample;
    if (a->n < 1 || a->n > CUDA_SAMPLE_MAX || op->n_row > 65535)
        return "sample: no columns, more than a block can add up, or more than 65535 rows";
    const int size = cluster_size(op->n_row, a->n, at->limits);
    const size_t bytes = sample_bytes(size);
    const char *why = gpu_why(gpu_allow_shared(sample_kernel, bytes));
    return why ? why
               : gpu_why(gpu_launch_clusters((unsigned)size, sample_kernel,
                                             dim3((unsigned)size, (unsigned)op->n_row), THREADS, bytes,
                                             at->stream, *a, op->count, op->n_row));
}
