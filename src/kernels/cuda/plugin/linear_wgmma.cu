/* A packed product of few rows by wgmma: the weights are its A, decoded into registers, rows of x its B.
 *
 * K is shared out over the blocks of a cluster, the cluster has a run of tiles, and each of its blocks all of
 * them in its slice of K: a warpgroup has one or two fours of tiles, a tile a warp, and their sums stay in
 * its registers. At the end they meet across the cluster and are added up in order. So up to 32
 * rows a row's sums depend on the shape of the matrix (and on how many SMs the lane has) only, not on the
 * number of rows.
 *
 * A block's slice of x lies in panels of 64 k, in the order in which decoded codes lie: chunk 2f has the
 * first pair of k that instruction f multiplies of each block of sixteen, chunk 2f + 1 the second. Weights go
 * from memory straight into registers, several units before they are multiplied. */
#include "kernels/cuda/plugin/linear_cluster.cuh"
#include "kernels/cuda/plugin/prefill_async.cuh"

#define TILES_ONE 20 /* of a block whose five warpgroups have four each */
#define TILES_TWO 32 /* of four with eight each, where there are registers for it: up to 32 rows */

#define WEIGHTS_LEAST ((size_t)2 << 20) /* with fewer the kernel by mma.sync stays */

/* `groups` clusters of `cluster` blocks, a power of two that `shift` says; the first `more` of them have
 * `tiles` tiles, the others one less. Of a cluster's tiles one block adds up the slices of came_tiles. A
 * block has so many warpgroups, each `fours` times four tiles. */
struct wgmma_form {
    int cluster, shift, groups, more, tiles, came_tiles;
    int warpgroups, fours;
    uint32_t bell_at; /* in a block's memory, behind the rest */
};

struct wgmma_params {
    struct packed_linear w;
    struct wgmma_form form;
};

/* ---- x ---------------------------------------------------------------------------------------------- */

/* The slice's panels, 16 bytes of a row a thread. All threads. */
template <int NT, int THREADS>
static __device__ __forceinline__ void stage_x(uint8_t *xs, const wgmma_params &a, int unit0, int units)
{
    constexpr int rows = THREADS >= 512 ? 64 : 32; /* that the threads have at once */
    constexpr int step = rows > 8 * NT ? rows / (8 * NT) : 1;
    constexpr int X_TOGETHER = THREADS > 512 ? 8 : 16; /* pieces that a thread asks for at once */
    const int thread = (int)threadIdx.x, piece = thread % 8;
    if (thread >= 8 * rows)
        return;
#pragma unroll 1
    for (int r = thread / 8 % (8 * NT); r < min(8 * NT, a.w.n_row); r += rows) {
        const int first = thread / 8 / (8 * NT);
        const uint8_t *from =
            (const uint8_t *)a.w.x + ((size_t)r * a.w.K + (size_t)(unit0 + first) * 64) * 2 + 16 * piece;
        uint8_t *to = xs + first * (NT * 1024) + r * 128 + piece / 2 * 4;
        const int chunk = (piece % 2 * 4 ^ (r & 7)) * 16;
#pragma unroll 1
        for (int u = first; u < units; u += X_TOGETHER * step) {
            uint4 v[X_TOGETHER];
#pragma unroll
            for (int j = 0; j < X_TOGETHER; j++)
                if (u + j * step < units)
                    v[j] = __ldcg((const uint4 *)(from + j * step * 128));
#pragma unroll
            for (int j = 0; j < X_TOGETHER; j++)
                if (u + j * step < units) {
                    uint8_t *at = to + j * step * (NT * 1024);
                    *(uint32_t *)(at + chunk) = v[j].x;
                    *(uint32_t *)(at + (chunk ^ 16)) = v[j].y;
                    *(uint32_t *)(at + (chunk ^ 32)) = v[j].z;
                    *(uint32_t *)(at + (chunk ^ 48)) = v[j].w;
                }
            from += X_TOGETHER * step * 128;
            to += X_TOGETHER * step * (NT * 1024);
        }
    }
}

/* ---- products --------------------------------------------------------------------------------------- */

struct wgmma_unit {
    uint4 code;
    uint32_t scales;
    static __device__ __forceinline__ wgmma_unit load(const uint8_t *unit, int lane)
    {
        return {__ldcs((const uint4 *)(unit + 16 * lane)), __ldcs((const uint16_t *)scales_at(unit, lane))};
    }
};

/* d += a unit of each warp times the panel. T of its four operands are decoded before their products begin;
 * those before are waited for, these not. */
template <int NT, int T>
static __device__ __forceinline__ void multiply(float (&d)[4 * NT], uint32_t (&e)[2][T][4],
                                                const wgmma_unit &w, uint64_t b, uint32_t sixteen)
{
    const uint32_t word[4] = {w.code.x, w.code.y, w.code.z, w.code.w}, scale = scale_pair(w.scales, sixteen);
#pragma unroll
    for (int s = 0; s < 4 / T; s++) {
#pragma unroll
        for (int i = 0; i < T; i++)
            expand(e[s & 1][i], word, s * T + i, scale, sixteen);
        products_fence();
#pragma unroll
        for (int i = 0; i < T; i++)
            wgmma<8 * NT>::run(d, e[s & 1][i], b + 2 * (s * T + i), 1);
        products_begin();
    }
}

/* Of the warp's tiles. AHEAD: of its units, under way. */
template <int NT, int P, int T, int AHEAD>
static __device__ __forceinline__ void multiply_all(float (&d)[P][4 * NT], wgmma_unit (&w)[AHEAD / P][P],
                                                    const uint8_t *(&own)[P], uint64_t b, int units, int lane)
{
    constexpr int DEEP = AHEAD / P;          /* k's units */
    const uint32_t sixteen = 16 * gridDim.y; /* the grid is a line: see unit.cuh */
    uint32_t e[2][T][4];
#pragma unroll 1
    for (int left = units; left > 0; left -= DEEP) {
#pragma unroll
        for (int i = 0; i < DEEP; i++) {
            if (i >= left)
                break;
#pragma unroll
            for (int p = 0; p < P; p++) {
                multiply<NT, T>(d[p], e, w[i][p], b, sixteen);
                if (i + DEEP < left)
                    w[i][p] = wgmma_unit::load(own[p] + (i + DEEP) * CUDA_UNIT_BYTES, lane);
            }
            b += NT * 64;
        }
#pragma unroll
        for (int p = 0; p < P; p++)
            own[p] += DEEP * CUDA_UNIT_BYTES;
    }
    products_end();
#pragma unroll
    for (int p = 0; p < P; p++)
        products_there(d[p]);
}

/* ---- the kernel ------------------------------------------------------------------------------------- */

/* W warpgroups of P fours of tiles; 8 * NT rows of x. */
template <int NT, int W, int P, bool PAIRS>
static __global__ void __launch_bounds__(128 * W, 1) wgmma_kernel(const __grid_constant__ wgmma_params a)
{
#if PREFILL_CAN_RUN
    constexpr int n4 = NT * 32, threads = 128 * W;            /* float4s of a tile's sums */
    constexpr int T = 2, AHEAD = W < 5 ? 8 : NT == 8 ? 4 : 6; /* as many units as registers allow */
    DYNAMIC_SHARED(raw);
    uint8_t *xs = raw + (1024 - shared_offset(raw) % 1024) % 1024;
    const float4 *came = (const float4 *)xs; /* when x is not needed any more */
    const uint32_t smem = shared_offset(xs), bell = smem + a.form.bell_at;
    const int thread = (int)threadIdx.x, warp = __shfl_sync(ALL_LANES, thread / 32, 0), lane = thread % 32;
    const int S = a.w.K / 64, C = a.form.cluster, shift = a.form.shift;
    const int rank = (int)blockIdx.x & (C - 1), group = (int)blockIdx.x >> shift;
    const int tiles = a.form.tiles - (group >= a.form.more),
              tile0 = group * (a.form.tiles - 1) + min(group, a.form.more);
    const int unit0 = S * rank >> shift, units = (S * (rank + 1) >> shift) - unit0;
    const int n_own = (tiles - rank + C - 1) >> shift; /* tiles that this block adds up */
    const uint8_t *slice = a.w.weight + ((int64_t)tile0 * S + unit0) * CUDA_UNIT_BYTES;

    /* The weights do not change: they may come before x is there. */
    if (thread == 0) {
        const uint32_t bytes = (uint32_t)(n_own * C * n4) * 16;
        bell_make(bell, 1);
        bells_made();
        bell_expect(bell, bytes);
    }
    const uint8_t *own[P];
    wgmma_unit w[AHEAD / P][P];
#pragma unroll
    for (int p = 0; p < P; p++) { /* who has no tile multiplies with another's */
        own[p] = slice + (int64_t)min(warp + 4 * W * p, tiles - 1) * S * CUDA_UNIT_BYTES;
#pragma unroll
        for (int i = 0; i < AHEAD / P; i++)
            if (i < units)
                w[i][p] = wgmma_unit::load(own[p] + i * CUDA_UNIT_BYTES, lane);
    }
    const sum_scales scales = load_scales<PAIRS>(a.w);
    for (int i = warp; i < n_own && lane == 0 && !PAIRS; i += 4 * W) {
        const int tile = tile0 + i * C + rank;
        const struct packed_part &part = a.w.part[packed_part_of(a.w, tile * 16)];
        if (part.bias)
            gpu_prefetch(part.bias + tile * 16 - part.first);
    }
    gpu_let_next();
    gpu_wait_before();
    stage_x<NT, threads>(xs, a, unit0, units);
    shared_for_async();
    __syncthreads();
    float d[P][4 * NT] = {};
    multiply_all<NT, P, T, AHEAD>(d, w, own, panel_rows(smem), units, lane);
    const bool alone = C == 1; /* then sums stay here: clusters of one block send nothing, says memcheck */
    cluster_meet();            /* nobody needs x any more */
#pragma unroll
    for (int p = 0; p < P; p++) {
        const int t = warp + 4 * W * p;
        if (t >= tiles)
            continue;
        const uint32_t to = (uint32_t)((rank * a.form.came_tiles + (t >> shift)) * n4 + lane) * 16;
#pragma unroll
        for (int i = 0; i < NT; i++) {
            const float4 c = make_float4(d[p][4 * i], d[p][4 * i + 1], d[p][4 * i + 2], d[p][4 * i + 3]);
            if (alone)
                *(float4 *)(xs + to + 512 * i) = c;
            else
                cluster_send(smem + to + 512 * i, t & (C - 1), c, bell);
        }
    }
    if (alone)
        __syncthreads();
    else
        cluster_wait_sent(bell);
#pragma unroll 1
    for (int i = thread; i < n_own * n4; i += threads) {
        const int mine = i / n4, t = i / 32 % NT;
        const float4 *at = came + (size_t)mine * n4 + i % n4;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
        for (int s = 0; s < C; s++) {
            const float4 one = at[(size_t)(s * a.form.came_tiles) * n4];
            sum = make_float4(sum.x + one.x, sum.y + one.y, sum.z + one.z, sum.w + one.w);
        }
        const float c[4] = {sum.x, sum.y, sum.z, sum.w};
        finish<PAIRS>(a.w, scales, tile0 + mine * C + rank, 8 * t + (i & 3) * 2, i % 32 / 4, c);
    }
#else
    (void)a;
    __trap(); /* wgmma is Hopper's alone: choose() refuses others */
#endif
}

/* ---- its form --------------------------------------------------------------------------------------- */

static size_t lay_out(struct wgmma_form *f, int S, int nt)
{
    const int slice = (S + f->cluster - 1) / f->cluster;
    f->bell_at = (uint32_t)(nt * std::max(1024 * slice, 512 * f->cluster * f->came_tiles));
    return 1024 + f->bell_at + 16;
}

/* About the clocks of a form with 8 * nt rows: products and decoding, or what the L2 gives; x; sums across
 * the cluster. */
static float cost(const struct wgmma_form &f, int S, int nt)
{
    const float slice = (float)((S + f.cluster - 1) >> f.shift), rows = 8.0f * (float)nt,
                tiles = (float)f.tiles;
    const float unit = (105.0f + 1.5f * rows) * (f.fours == 2 ? 1.05f : 1.0f); /* of four tiles */
    const float units = unit * (float)(f.warpgroups * f.fours) * slice,
                bytes = (tiles * CUDA_UNIT_BYTES + rows * 128.0f) * slice * (float)(f.groups * f.cluster) /
                        3100.0f;
    const float x = rows * 128.0f * slice / 64.0f,
                sums = tiles * rows * 64.0f * (float)(f.cluster - 1) / (float)f.cluster / 32.0f;
    return std::max(units, bytes) + x + sums + (f.cluster > 1 ? 1000.0f : 0.0f);
}

static int clusters_at_once(int size, const struct gpu_limits *limits)
{
    static struct cluster_counts counts;
    return counts.at_once(size, wgmma_kernel<8, 5, 1, false>, 128 * 5, 200 << 10, limits);
}

/* For up to 32 rows, or more (nt is 4 or 8 eights of them): numbers below that do not decide about the order
 * of sums. False: none fits. */
static bool choose(struct wgmma_form *best, int nt, int n_out, int K, const struct gpu_limits *limits)
{
    const int n_tile = (n_out + 15) / 16, S = K / 64;
    float least = 0.0f;
    best->cluster = 0;
    if ((!GPU_IS_EMULATED && limits->major != 9) || n_out < 1 || K < 64 || K % 64)
        return false;
    for (int shift = 0; 1 << shift <= CLUSTER_MAX && 1 << shift <= S; shift++) {
        struct wgmma_form f = {};
        f.shift = shift;
        f.cluster = 1 << shift;
        const int most = std::min(clusters_at_once(f.cluster, limits), n_tile);
        if (most < 1)
            continue;
        f.tiles = (n_tile + most - 1) / most;
        f.groups = (n_tile + f.tiles - 1) / f.tiles;
        f.more = n_tile - f.groups * (f.tiles - 1);
        f.came_tiles = (f.tiles + f.cluster - 1) >> shift;
        f.fours = f.tiles > TILES_ONE ? 2 : 1;
        f.warpgroups = f.fours == 2 ? 4 : std::max(2, (f.tiles + 3) / 4);
        if (f.tiles > (nt == 8 ? TILES_ONE : TILES_TWO) || lay_out(&f, S, nt) + 1024 > limits->shared_bytes)
            continue;
        const float now = cost(f, S, nt);
        if (best->cluster == 0 || now < least) {
            *best = f;
            least = now;
        }
    }
    return best->cluster > 0;
}

/* The form for the rows of w. */
static bool choose_for(struct wgmma_form *f, const struct packed_linear *w, const struct gpu_limits *limits)
{
    return w->n_row >= 1 && w->n_row <= ROWS_MAX &&
           choose(f, w->n_row > CUDA_ROWS_MAX ? 8 : 4, w->n_out, w->K, limits);
}

bool linear_wgmma_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    struct wgmma_form f;
    return w->n_row > 1 && (size_t)w->n_out * (size_t)w->K >= WEIGHTS_LEAST && choose_for(&f, w, limits);
}

template <int NT, int W, int P, bool PAIRS> static const char *start(wgmma_params *a, cudaStream_t stream)
{
    const size_t bytes = lay_out(&a->form, a->w.K / 64, NT);
    const char *why = gpu_why(gpu_allow_shared(wgmma_kernel<NT, W, P, PAIRS>, bytes));
    return why ? why
               : gpu_why(gpu_launch_clusters((unsigned)a->form.cluster, wgmma_kernel<NT, W, P, PAIRS>,
                                             (unsigned)(a->form.groups * a->form.cluster), 128 * W, bytes,
                                             stream, *a));
}

template <int NT, bool PAIRS> static const char *start_form(wgmma_params *a, cudaStream_t stream)
{
    constexpr int two = NT < 8 ? 2 : 1;
    return a->form.fours == 2        ? start<NT, 4, two, PAIRS>(a, stream)
           : a->form.warpgroups == 5 ? start<NT, 5, 1, PAIRS>(a, stream)
           : a->form.warpgroups == 4 ? start<NT, 4, 1, PAIRS>(a, stream)
           : a->form.warpgroups == 3 ? start<NT, 3, 1, PAIRS>(a, stream)
                                     : start<NT, 2, 1, PAIRS>(a, stream);
}

template <bool PAIRS> static const char *start_rows(wgmma_params *a, cudaStream_t stream)
{
    const int n = a->w.n_row;
    return n <= 8    ? start_form<1, PAIRS>(a, stream)
           : n <= 16 ? start_form<2, PAIRS>(a, stream)
           : n <= 32 ? start_form<4, PAIRS>(a, stream)
                     : start_form<8, PAIRS>(a, stream);
}

const char *linear_wgmma_start(const struct packed_linear *w, const struct op_place *at)
{
    wgmma_params a = {*w, {}};
    if (!choose_for(&a.form, w, at->limits))
        return "linear: more rows, or a larger matrix, than this kernel takes";
    return w->mlp.h ? start_rows<true>(&a, at->stream) : start_rows<false>(&a, at->stream);
}
