/* A packed product with few rows, whose K is shared out: over the blocks of a cluster, and over the warps of
 * a block. So a block needs a slice of x only: where every block has all of it, reading x takes longer than
 * reading the weights.
 *
 * A cluster takes a run of tiles. A block of it takes a slice of K, and its warps are a grid of `parts` of
 * the slice times `lanes` of tiles. Weights go from memory straight into registers, those of one step ahead
 * of what is multiplied. What the parts have is added up in shared memory, and sent to the block of the
 * cluster that adds up the slices, all in order: up to 32 rows a row's sums depend on the shape of the matrix
 * (and on how many SMs the lane has) only, not on the number of rows. */
#include <algorithm>
#include <atomic>

#include "kernels/cuda/plugin/cluster.cuh"
#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/unit.cuh"

#define CLUSTER_MAX 8 /* blocks, that every GPU takes */
#define ROWS_MAX    64

/* How a product is shared out: a cluster of blocks has a run of tiles, a block of it a slice of K, a warp one
 * of `parts` of that and one of `lanes` of the tiles. */
struct split_form {
    int cluster, groups; /* blocks, and so many clusters */
    int parts, lanes;
    int most;       /* tiles of a warp at once */
    int came_tiles; /* of a cluster's, whose slices one block adds up */
    uint32_t parts_bytes, came_bytes;
};

struct split_params {
    struct packed_linear w;
    struct split_form form;
};

/* Tiles of a warp at once, that its registers have sums for. */
template <int NT> constexpr int M = NT == 8 ? 2 : 3;

/* ---- the kernel ------------------------------------------------------------------------------------ */

struct split_unit {
    uint4 code;
    uint2 scale;
};

static __device__ __forceinline__ split_unit load_unit(const uint8_t *unit, int lane)
{
    return {__ldcs((const uint4 *)(unit + 16 * lane)),
            __ldcs((const uint2 *)(unit + CUDA_UNIT_CODES + 8 * (lane >> 2)))};
}

/* The matrix's x slice to shared memory: [unit][8 * NT rows][128 bytes], pieces of 32 bytes turned by the
 * row, so that eight rows' loads meet different banks. All threads. */
template <int NT>
static __device__ __forceinline__ void ask_for_x(uint8_t *xs, const split_params &a, int unit, int n_unit)
{
    const int piece = (int)threadIdx.x % 8;
    const uint8_t *from = (const uint8_t *)a.w.x + (size_t)unit * 128 + 16 * piece;
#pragma unroll 4
    for (int i = (int)threadIdx.x / 8; i < 8 * NT * n_unit; i += N_THREAD / 8) {
        const int r = i % (8 * NT), u = i / (8 * NT);
        if (r < a.w.n_row)
            copy_16(xs + 128 * i + ((piece / 2 ^ (r & 3)) * 32 + piece % 2 * 16),
                    from + (size_t)r * a.w.K * 2 + (size_t)u * 128);
    }
    copies_end();
}

/* acc += units w of n tiles times the rows at x. */
template <int NT>
static __device__ __forceinline__ void multiply(float (&acc)[M<NT>][NT][4], const split_unit (&w)[M<NT>],
                                                int n, const uint8_t *x, uint32_t turned, uint32_t sixteen)
{
#pragma unroll
    for (int b = 0; b < 4; b++) {
        uint2 v[NT];
#pragma unroll
        for (int t = 0; t < NT; t++)
            v[t] = *(const uint2 *)(x + 1024 * t + (turned ^ 32 * b));
#pragma unroll
        for (int m = 0; m < M<NT>; m++) {
            if (m > 0 && m >= n)
                continue;
            uint32_t e[4];
            const uint32_t word = b == 0   ? w[m].code.x
                                  : b == 1 ? w[m].code.y
                                  : b == 2 ? w[m].code.z
                                           : w[m].code.w;
            const uint32_t scales = b < 2 ? w[m].scale.x : w[m].scale.y;
            expand(e, word, b % 2 ? scale_pair<1>(scales, sixteen) : scale_pair<0>(scales, sixteen), sixteen);
#pragma unroll
            for (int t = 0; t < NT; t++)
                mma_bf16(acc[m][t], e, v[t].x, v[t].y);
        }
    }
}

/* Four sums of a tile, of a lane's two rows of x and two rows of the matrix. */
template <bool PAIRS>
static __device__ __forceinline__ void finish(const split_params &a, int tile, int row, int g,
                                              const float (&c)[4])
{
    if (PAIRS) {
        const float gate = *a.w.mlp.gate_scale * CUDA_SCALE_BACK, up = *a.w.mlp.up_scale * CUDA_SCALE_BACK;
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (row + i < a.w.n_row)
                a.w.mlp.h[(size_t)(row + i) * (a.w.n_out / 2) + tile * 8 + g] =
                    float_bf16(swiglu(c[i] * gate, c[2 + i] * up));
        return;
    }
    const struct packed_part &p = a.w.part[packed_part_of(a.w, tile * 16)];
    const float scale = *p.scale * CUDA_SCALE_BACK;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = row + i % 2, o = tile * 16 + g + i / 2 * 8 - p.first;
        if (r >= a.w.n_row || o >= p.n_out)
            continue;
        float v = c[i] * scale + (p.bias ? p.bias[o] : 0.0f);
        if (a.w.mlp.weight)
            v = a.w.mlp.id[r] == 0 ? v * a.w.mlp.weight[r] : 0.0f;
        p.out[(size_t)r * p.n_out + o] = v;
    }
}

/* Units [from, to) of tiles first, first + step, ... below `end` from w on, into the L2. */
static __device__ __forceinline__ void fetch(const uint8_t *w, size_t tile_bytes, int from, int to, int first,
                                             int step, int end, int lane)
{
#pragma unroll 1
    for (int tile = first; tile < end; tile += step)
#pragma unroll 1
        for (int at = from * CUDA_UNIT_BYTES + 128 * lane; at < to * CUDA_UNIT_BYTES; at += 128 * 32)
            gpu_prefetch(w + (size_t)(tile)*tile_bytes + at);
}

template <int NT, bool PAIRS>
static __global__ void __launch_bounds__(N_THREAD, 1) split_kernel(const __grid_constant__ split_params a)
{
    DYNAMIC_SHARED(memory);
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    const int S = a.w.K / 64, C = a.form.cluster, P = a.form.parts, L = a.form.lanes, most = a.form.most;
    const int rank = (int)blockIdx.x % C, group = (int)blockIdx.x / C, n_group = (int)gridDim.x / C;
    const int n_tile = (a.w.n_out + 15) / 16, tile0 = n_tile * group / n_group,
              tiles = n_tile * (group + 1) / n_group - tile0;
    const int unit0 = S * rank / C, units = S * (rank + 1) / C - unit0;
    const int part = warp / L, own = warp - part * L;
    const int from = part < P ? units * part / P : 0, to = part < P ? units * (part + 1) / P : 0;
    if (C > 1)
        cluster_arrive();
    float4 *parts = (float4 *)memory, *came = parts + a.form.parts_bytes / 16;
    uint8_t *xs = (uint8_t *)came + a.form.came_bytes;

    /* Tile m of a pass, of those of the cluster, is own + L * m behind the pass's first. */
    const size_t tile_bytes = (size_t)S * CUDA_UNIT_BYTES;
    const uint8_t *w_row = a.w.weight + (size_t)(tile0 + own) * tile_bytes + (size_t)unit0 * CUDA_UNIT_BYTES;
    split_unit w[M<NT>];
#pragma unroll
    for (int m = 0; m < M<NT>; m++)
        if (from < to && m < most && own + L * m < tiles)
            w[m] = load_unit(w_row + (size_t)(L * m) * tile_bytes + from * CUDA_UNIT_BYTES, lane);
    fetch(w_row, tile_bytes, from, to, 0, L, min(tiles, 2 * L * most) - own,
          lane); /* the others into the L2 */
    gpu_let_next();
    gpu_wait_before(); /* the weights do not change: they may come before x is there */
    ask_for_x<NT>(xs, a, unit0, units);
    copies_wait<0>();
    __syncthreads();

    const uint32_t sixteen = 16 * gridDim.y, g = (uint32_t)lane >> 2;
    const uint32_t turned = 128 * g + (g & 3) * 32 + (lane & 3) * 8;
    const int n4 = NT * 32; /* float4s of a tile's sums */
#pragma unroll 1
    for (int first = 0; first < tiles; first += L * most) {
        fetch(w_row, tile_bytes, from, to, 2 * L * most, L, min(tiles - first, 3 * L * most) - own, lane);
        const int n = (min(tiles - first, L * most) - own + L - 1) / L; /* this warp's */
        float acc[M<NT>][NT][4] = {};
#pragma unroll 1
        for (int u = from; u < to; u++) {
            split_unit next[M<NT>];
            const bool last = u + 1 == to;
            const uint8_t *at = w_row + (last ? (size_t)(L * most) * tile_bytes : 0) +
                                (last ? from : u + 1) * CUDA_UNIT_BYTES;
            const int there = last ? tiles - first - L * most : tiles - first;
#pragma unroll
            for (int m = 0; m < M<NT>; m++) {
                next[m] = w[m];
                if (m < most && own + L * m < there)
                    next[m] = load_unit(at + (size_t)(L * m) * tile_bytes, lane);
            }
            if (n > 0)
                multiply<NT>(acc, w, n, xs + (size_t)u * (NT * 1024), turned, sixteen);
#pragma unroll
            for (int m = 0; m < M<NT>; m++)
                w[m] = next[m];
        }
        w_row += (size_t)(L * most) * tile_bytes;
        if (part < P) {
#pragma unroll
            for (int m = 0; m < M<NT>; m++)
                if (m < n) {
                    float *to_parts = (float *)(parts + (size_t)((part * most + m) * L + own) * n4) + lane;
#pragma unroll
                    for (int i = 0; i < 4 * NT; i++)
                        to_parts[32 * i] = acc[m][i / 4][i % 4];
                }
        }
        __syncthreads();
        if (first == 0 && C > 1)
            cluster_wait(); /* all blocks of the cluster have begun */
#pragma unroll 1
        for (int i = (int)threadIdx.x; i < min(L * most, tiles - first) * n4; i += N_THREAD) {
            float4 sum = parts[i];
#pragma unroll 1
            for (int p = 1; p < P; p++) {
                const float4 v = parts[(size_t)(p * most * L) * n4 + i];
                sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
            }
            const int tile = first + i / n4;
            float4 *place = came + (size_t)(rank * a.form.came_tiles + tile / C) * n4 + i % n4;
            if (C > 1)
                *cluster_at(place, tile % C) = sum;
            else
                *place = sum;
        }
        if (first + L * most < tiles)
            __syncthreads();
    }
    if (C > 1)
        cluster_sync();
    else
        __syncthreads();
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < (tiles - rank + C - 1) / C * n4; i += N_THREAD) {
        const int tile = i / n4, t = i / 32 % NT;
        const float *at = (const float *)(came + (size_t)tile * n4) + t * 128 + i % 32;
        float c[4] = {};
#pragma unroll 1
        for (int s = 0; s < C; s++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                c[j] += at[(size_t)(s * a.form.came_tiles) * (4 * n4) + 32 * j];
        finish<PAIRS>(a, tile0 + tile * C + rank, 8 * t + (i & 3) * 2, i % 32 / 4, c);
    }
}

/* ---- its form -------------------------------------------------------------------------------------- */

/* About the time of a form with 32 rows, in steps of a warp with one unit: products, sums over parts,
 * barriers, the slice of x, what a cluster costs besides. Of the forms tried on an H200 its choices were the
 * best: all warps are wanted, and few rounds. */
static float cost(const struct split_form &f, int n_tile, int S)
{
    const int tiles = (n_tile + f.groups - 1) / f.groups, slice = (S + f.cluster - 1) / f.cluster;
    const int each = (tiles + f.lanes - 1) / f.lanes, steps = (slice + f.parts - 1) / f.parts;
    return (float)(each * steps) + (float)each + 0.5f * (float)((each + f.most - 1) / f.most) +
           0.26f * (float)slice + (f.cluster > 1 ? 1.5f : 0.0f);
}

/* Bytes for `nt` eights of rows. */
static size_t lay_out(struct split_form *f, int nt, int n_tile, int S)
{
    const int tiles = (n_tile + f->groups - 1) / f->groups, slice = (S + f->cluster - 1) / f->cluster;
    const size_t sums = (size_t)nt * 512; /* of a tile */
    f->came_tiles = (tiles + f->cluster - 1) / f->cluster;
    f->parts_bytes = (uint32_t)((size_t)(f->parts * f->lanes * f->most) * sums);
    f->came_bytes = (uint32_t)((size_t)(f->cluster * f->came_tiles) * sums);
    return f->parts_bytes + f->came_bytes + (size_t)slice * (size_t)nt * 1024;
}

/* Clusters of this size that run at once. Asking takes longer than a launch, so it is asked once. */
static int clusters_at_once(int size, const struct gpu_limits *limits)
{
    static std::atomic<int> known[64][CLUSTER_MAX + 1]; /* of each GPU; one more than there are */
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= 64)
        return 0;
    int n =
        GPU_IS_EMULATED ? -1 : known[device][size].load() - 1; /* emulated: as many as the lane has SMs for */
    if (n < 0) {
        n = gpu_clusters((unsigned)size, split_kernel<4, false>, N_THREAD, 128 << 10, limits->n_sm);
        known[device][size].store(n + 1);
    }
    return std::min(n, limits->n_sm / size);
}

/* For up to 32 rows, or more (nt is 4 or 8 eights of them): numbers below that do not decide about the order
 * of sums. False: none fits. */
static bool choose(struct split_form *best, int nt, int n_out, int K, const struct gpu_limits *limits)
{
    const int n_tile = (n_out + 15) / 16, S = K / 64, at_once = nt == 8 ? M<8> : M<4>;
    float least = 0.0f;
    best->cluster = 0;
    if (n_out < 1 || K < 64 || K % 64)
        return false;
    for (int cluster = 1; cluster <= CLUSTER_MAX && cluster <= S; cluster *= 2) {
        const int groups = std::min(clusters_at_once(cluster, limits), n_tile);
        for (int parts = 1; parts <= N_WARP && parts * cluster <= S && groups > 0; parts++)
            for (int most = 1; most <= at_once; most++) {
                struct split_form f = {cluster, groups, parts, N_WARP / parts, most, 0, 0, 0};
                const float now = cost(f, n_tile, S);
                if ((best->cluster > 0 && now >= least) ||
                    lay_out(&f, nt, n_tile, S) + 1024 > limits->shared_bytes)
                    continue;
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
