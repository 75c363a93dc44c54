/* A packed product with few rows, whose K is shared out over the blocks of a cluster: where every block has
 * all of x, reading it takes longer than reading the weights.
 *
 * A cluster takes a run of tiles, a block of it a slice of K, and the block's warps its units, tile by tile,
 * in runs of their own that are equally long. Weights go from memory straight into registers, AHEAD units
 * before they are multiplied, and into the L2 before that. A warp's part of a tile goes to shared memory;
 * there the parts of a tile are added up and sent to the block of the cluster that adds up the slices, all in
 * order: up to 32 rows a row's sums depend on the shape of the matrix (and on how many SMs the lane has)
 * only, not on the number of rows. */
#include "kernels/cuda/plugin/linear_cluster.cuh"

#define AHEAD 4 /* units of a warp that are under way */

/* How a product is shared out: `groups` clusters of so many blocks. Of a cluster's tiles one block adds up
 * the slices of came_tiles. */
struct split_form {
    int cluster, groups, came_tiles;
    uint32_t parts_bytes;
};

struct split_params {
    struct packed_linear w;
    struct split_form form;
};

/* ---- the kernel ------------------------------------------------------------------------------------ */

struct split_unit {
    uint4 code;
    uint32_t scales;
};

static __device__ __forceinline__ split_unit load_unit(const uint8_t *unit, int lane)
{
    return {__ldcs((const uint4 *)(unit + 16 * lane)), __ldcs((const uint16_t *)scales_at(unit, lane))};
}

/* The matrix's x slice to shared memory: [unit][8 * NT rows][128 bytes], pieces of 16 bytes in pairs that
 * odd rows have the other way round, so that eight lanes' loads meet different banks. All threads. */
template <int NT>
static __device__ __forceinline__ void ask_for_x(uint8_t *xs, const split_params &a, int unit, int n_unit)
{
    const int piece = (int)threadIdx.x % 8;
    const uint8_t *from = (const uint8_t *)a.w.x + (size_t)unit * 128 + 16 * piece;
#pragma unroll 4
    for (int i = (int)threadIdx.x / 8; i < 8 * NT * n_unit; i += N_THREAD / 8) {
        const int r = i % (8 * NT), u = i / (8 * NT);
        if (r < a.w.n_row)
            copy_16(xs + 128 * i + (piece ^ (r & 1)) * 16, from + (size_t)r * a.w.K * 2 + (size_t)u * 128);
    }
    copies_end();
}

/* acc += unit w times the rows at x. */
template <int NT>
static __device__ __forceinline__ void multiply(float (&acc)[NT][4], const split_unit &w, const uint8_t *x,
                                                uint32_t turned, uint32_t sixteen)
{
    uint32_t e[4][4];
    expand_unit(e, w.code, w.scales, sixteen);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const uint4 v = *(const uint4 *)(x + 1024 * t + (turned ^ 16 * i));
            mma_bf16(acc[t], e[2 * i], v.x, v.y);
            mma_bf16(acc[t], e[2 * i + 1], v.z, v.w);
        }
}

/* A warp's next unit to be asked for. */
struct unit_place {
    const uint8_t *at;
    int unit, n_unit, n_skip; /* of the slice; bytes from its end to its beginning in the next tile */
};

static __device__ __forceinline__ split_unit next_unit(unit_place &p, int lane)
{
    const split_unit w = load_unit(p.at, lane);
    p.at += CUDA_UNIT_BYTES;
    if (++p.unit == p.n_unit) {
        p.unit = 0;
        p.at += p.n_skip;
    }
    return w;
}

/* Where warp `warp` begins of n units. */
static __device__ __forceinline__ int run_of(int n, int warp)
{
    return (int)((unsigned)(n * warp) / N_WARP);
}

/* Whose run has unit i of n. */
static __device__ __forceinline__ int warp_of(int n, int i)
{
    return (int)((unsigned)(N_WARP * (i + 1) - 1) / (unsigned)n);
}

template <int NT, bool PAIRS>
static __global__ void __launch_bounds__(N_THREAD, 1) split_kernel(const __grid_constant__ split_params a)
{
    DYNAMIC_SHARED(memory);
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    const int S = a.w.K / 64, C = a.form.cluster;
    const int rank = (int)blockIdx.x % C, group = (int)blockIdx.x / C, n_group = (int)gridDim.x / C;
    const int n_tile = (a.w.n_out + 15) / 16, tile0 = n_tile * group / n_group,
              tiles = n_tile * (group + 1) / n_group - tile0;
    const int unit0 = S * rank / C, units = S * (rank + 1) / C - unit0, all = tiles * units;
    const int from = run_of(all, warp), n = run_of(all, warp + 1) - from;
    constexpr int n4 = NT * 32; /* float4s of a tile's sums */
    float4 *parts = (float4 *)memory;
    uint8_t *xs = memory + a.form.parts_bytes;
    float4 *came = (float4 *)xs; /* when x is not needed any more */

    /* The weights do not change: they may come before x is there. */
    const uint8_t *slice = a.w.weight + ((int64_t)tile0 * S + unit0) * CUDA_UNIT_BYTES;
    for (int t = (int)threadIdx.x; t < tiles; t += N_THREAD)
        gpu_prefetch_bulk(slice + (int64_t)t * S * CUDA_UNIT_BYTES, (uint32_t)(units * CUDA_UNIT_BYTES));
    int tile = from / units, unit = from - tile * units;
    unit_place place = {slice + ((int64_t)tile * S + unit) * CUDA_UNIT_BYTES, unit, units,
                        (S - units) * CUDA_UNIT_BYTES};
    split_unit w[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < n)
            w[i] = next_unit(place, lane);
    gpu_let_next();
    gpu_wait_before();
    ask_for_x<NT>(xs, a, unit0, units);
    copies_wait<0>();
    __syncthreads();

    const uint32_t sixteen = 16 * gridDim.y, g = (uint32_t)lane >> 2;
    const uint32_t turned = 128 * g + (lane & 3) * 32 + (g & 1) * 16;
    const uint8_t *x = xs + unit * (NT * 1024);
    float acc[NT][4] = {};
    auto put = [&]() { /* a tile's parts lie in order of the warps, those of all tiles one after the other */
                       float *to = (float *)(parts + (size_t)(tile + warp) * n4) + lane;
#pragma unroll
                       for (int i = 0; i < 4 * NT; i++) {
                           to[32 * i] = acc[i / 4][i % 4];
                           acc[i / 4][i % 4] = 0.0f;
                       }
    };
#pragma unroll 1
    for (int base = 0; base < n; base += AHEAD)
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (base + i >= n)
                break;
            multiply<NT>(acc, w[i], x, turned, sixteen);
            if (base + i + AHEAD < n)
                w[i] = next_unit(place, lane);
            x += NT * 1024;
            if (++unit < units)
                continue;
            put();
            unit = 0;
            x = xs;
            tile++;
        }
    if (unit > 0 && n > 0)
        put();
    const sum_scales scales = load_scales<PAIRS>(a.w);
    if (C > 1)
        cluster_sync(); /* nobody needs x any more */
    else
        __syncthreads();

#pragma unroll 1
    for (int i = (int)threadIdx.x; i < tiles * n4; i += N_THREAD) {
        const int t = i / n4, last = warp_of(all, (t + 1) * units - 1);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
        for (int v = warp_of(all, t * units); v <= last; v++) {
            if (run_of(all, v) == run_of(all, v + 1))
                continue;
            const float4 one = parts[(t + v) * n4 + i % n4];
            sum = make_float4(sum.x + one.x, sum.y + one.y, sum.z + one.z, sum.w + one.w);
        }
        float4 *to = came + (size_t)(rank * a.form.came_tiles + t / C) * n4 + i % n4;
        if (C > 1)
            *cluster_at(to, t % C) = sum;
        else
            *to = sum;
    }
    if (C > 1)
        cluster_sync();
    else
        __syncthreads();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < (tiles - rank + C - 1) / C * n4; i += N_THREAD) {
        const int own = i / n4, t = i / 32 % NT;
        const float *at = (const float *)(came + (size_t)own * n4) + t * 128 + i % 32;
        float c[4] = {};
#pragma unroll 1
        for (int s = 0; s < C; s++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                c[j] += at[(size_t)(s * a.form.came_tiles) * (4 * n4) + 32 * j];
        finish<PAIRS>(a.w, scales, tile0 + own * C + rank, 8 * t + (i & 3) * 2, i % 32 / 4, c);
    }
}

/* ---- its form -------------------------------------------------------------------------------------- */

/* About the time of a form with 32 rows, in units of a warp: products, x, sums, what a cluster costs
 * besides. */
static float cost(const struct split_form &f, int n_tile, int S)
{
    const int tiles = (n_tile + f.groups - 1) / f.groups, slice = (S + f.cluster - 1) / f.cluster;
    return (float)((tiles * slice + N_WARP - 1) / N_WARP) + 0.26f * (float)slice + 0.2f * (float)tiles +
           (f.cluster > 1 ? 1.5f : 0.0f);
}

/* Bytes for `nt` eights of rows. */
static size_t lay_out(struct split_form *f, int nt, int n_tile, int S)
{
    const int tiles = (n_tile + f->groups - 1) / f->groups, slice = (S + f->cluster - 1) / f->cluster;
    const size_t sums = (size_t)nt * 512; /* of a tile */
    f->came_tiles = (tiles + f->cluster - 1) / f->cluster;
    f->parts_bytes = (uint32_t)((size_t)(tiles + N_WARP) * sums);
    return f->parts_bytes +
           std::max((size_t)(f->cluster * f->came_tiles) * sums, (size_t)slice * (size_t)nt * 1024);
}

static int clusters_at_once(int size, const struct gpu_limits *limits)
{
    static struct cluster_counts counts;
    return counts.at_once(size, split_kernel<4, false>, N_THREAD, 128 << 10, limits);
}

/* For up to 32 rows, or more (nt is 4 or 8 eights of them): numbers below that do not decide about the order
 * of sums. False: none fits. */
static bool choose(struct split_form *best, int nt, int n_out, int K, const struct gpu_limits *limits)
{
    const int n_tile = (n_out + 15) / 16, S = K / 64;
    float least = 0.0f;
    best->cluster = 0;
    if (n_out < 1 || K < 64 || K % 64)
        return false;
    for (int cluster = 1; cluster <= CLUSTER_MAX && cluster <= S; cluster *= 2) {
        struct split_form f = {cluster, std::min(clusters_at_once(cluster, limits), n_tile), 0, 0};
        if (f.groups < 1 || lay_out(&f, nt, n_tile, S) + 1024 > limits->shared_bytes)
            continue;
        const float now = cost(f, n_tile, S);
        if (best->cluster == 0 || now < least) {
            *best = f;
            least = now;
        }
    }
    return best->cluster > 0;
}

int linear_split_rows(int n_out, int K, const struct gpu_limits *limits)
{
    struct split_form f;
    return choose(&f, 8, n_out, K, limits) ? ROWS_MAX : choose(&f, 4, n_out, K, limits) ? CUDA_ROWS_MAX : 0;
}

template <int NT, bool PAIRS> static const char *start(split_params *a, cudaStream_t stream)
{
    const size_t bytes = lay_out(&a->form, NT, (a->w.n_out + 15) / 16, a->w.K / 64);
    const char *why = gpu_why(gpu_allow_shared(split_kernel<NT, PAIRS>, bytes));
    return why ? why
               : gpu_why(gpu_launch_clusters((unsigned)a->form.cluster, split_kernel<NT, PAIRS>,
                                             (unsigned)(a->form.groups * a->form.cluster), N_THREAD, bytes,
                                             stream, *a));
}

const char *linear_split_start(const struct packed_linear *w, const struct op_place *at)
{
    split_params a = {*w, {}};
    const bool pairs = w->mlp.h;
    if (w->n_row < 1 || w->n_row > ROWS_MAX ||
        !choose(&a.form, w->n_row > CUDA_ROWS_MAX ? 8 : 4, w->n_out, w->K, at->limits))
        return "linear: more or longer rows than fit in shared memory";
    if (w->n_row <= 8)
        return pairs ? start<1, true>(&a, at->stream) : start<1, false>(&a, at->stream);
    if (w->n_row <= 16)
        return pairs ? start<2, true>(&a, at->stream) : start<2, false>(&a, at->stream);
    if (w->n_row <= 32)
        return pairs ? start<4, true>(&a, at->stream) : start<4, false>(&a, at->stream);
    return pairs ? start<8, true>(&a, at->stream) : start<8, false>(&a, at->stream);
}
