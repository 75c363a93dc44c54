#include "kernels/cuda/plugin/prefill.cuh"

#include "kernels/cuda/plugin/prefill_gemm.cuh"

#define CHUNK     512 /* slots that one warp places */
#define MAX_SLOTS (1 << 24)
#define MAX_WIDTH (1 << 16)
#define BATCH     16 /* loads under way at once */

#define LINEAR_TILES 4 /* of PREFILL_N_MIDDLE rows: with more, a dense product has enough for wider ones */

/* Where the parts of scratch lie. */
struct prefill_scratch {
    uint16_t *x, *h, *y; /* panels */
    int *count;          /* [chunk][expert]: of the chunk, then of the chunks before */
    int *first;          /* [expert]: its first row */
    int *row;            /* [slot], -1: of no expert here */
    struct prefill_tile *tile;
    int *n_tile;
    size_t capacity, bytes;
    int n_slot, n_chunk;
};

static prefill_scratch layout(const struct packed_moe *m, void *base)
{
    prefill_scratch s = {};
    s.n_slot = m->n_row * m->n_used;
    s.n_chunk = (s.n_slot + CHUNK - 1) / CHUNK;
    /* Each expert's rows are padded to 8; a tile's reads end at most N_MAX rows after its last. */
    s.capacity = (size_t)s.n_slot + 8 * (size_t)m->n_expert + PREFILL_N_MAX;
    auto take = [&](size_t bytes) {
        uint8_t *at = (uint8_t *)base + s.bytes;
        s.bytes += (bytes + 255) / 256 * 256;
        return at;
    };
    s.x = (uint16_t *)take(2 * s.capacity * m->hidden);
    s.h = (uint16_t *)take(2 * s.capacity * m->inner);
    s.y = (uint16_t *)take(2 * s.capacity * m->hidden);
    s.count = (int *)take(sizeof(int) * s.n_chunk * m->n_expert);
    s.first = (int *)take(sizeof(int) * m->n_expert);
    s.row = (int *)take(sizeof(int) * s.n_slot);
    s.tile = (prefill_tile *)take(sizeof(prefill_tile) * (m->n_expert + s.n_slot / PREFILL_N_NARROW));
    s.n_tile = (int *)take(sizeof(int));
    return s;
}

size_t prefill_bytes(const struct packed_moe *m)
{
    return layout(m, nullptr).bytes;
}

static __global__ void count_kernel(const int32_t *id, int n_slot, int n_expert, int *count)
{
    __shared__ int of[CUDA_EXPERTS_MAX];
    gpu_wait_before();
    gpu_let_next();
    for (int e = threadIdx.x; e < n_expert; e += blockDim.x)
        of[e] = 0;
    __syncthreads();
    const int end = min(n_slot, (int)(blockIdx.x + 1) * CHUNK);
    for (int i = blockIdx.x * CHUNK + threadIdx.x; i < end; i += blockDim.x)
        if (id[i] >= 0)
            atomicAdd(&of[id[i]], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < n_expert; e += blockDim.x)
        count[blockIdx.x * n_expert + e] = of[e];
}

/* Inclusive sums over a block of CUDA_EXPERTS_MAX threads. */
static __device__ int2 block_sums(int2 v)
{
    __shared__ int2 sum[CUDA_EXPERTS_MAX];
    const int i = threadIdx.x;
    sum[i] = v;
    for (int d = 1; d < CUDA_EXPERTS_MAX; d *= 2) {
        __syncthreads();
        const int2 o = i >= d ? sum[i - d] : make_int2(0, 0);
        __syncthreads();
        sum[i].x += o.x;
        sum[i].y += o.y;
    }
    return sum[i];
}

/* A thread an expert: counts to sums over the chunks before, then first rows and tiles, experts ascending. */
static __global__ void plan_kernel(int n_chunk, int n_expert, int n_max, int *count, int *first,
                                   prefill_tile *tile, int *n_tile)
{
    gpu_wait_before();
    gpu_let_next();
    const int e = threadIdx.x;
    int n = 0;
    for (int c = 0; e < n_expert && c < n_chunk; c += BATCH) {
        int here[BATCH]; /* loads before stores, which they might alias */
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            here[i] = c + i < n_chunk ? count[(c + i) * n_expert + e] : 0;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            if (c + i < n_chunk)
                count[(c + i) * n_expert + e] = n;
            n += here[i];
        }
    }
    const int tiles = (n + n_max - 1) / n_max, rows = (n + 7) & ~7;
    const int2 end = block_sums(make_int2(rows, tiles));
    if (e == CUDA_EXPERTS_MAX - 1)
        *n_tile = end.y;
    if (e >= n_expert)
        return;
    first[e] = end.x - rows;
    if (tiles == 0)
        return;
    const int step = ((n + tiles - 1) / tiles + 7) & ~7; /* at most n_max, a multiple of 8 */
    for (int i = 0; i < tiles; i++)
        tile[end.y - tiles + i] = {e, end.x - rows + i * step, max(0, min(step, n - i * step))};
}

/* A warp a chunk, slots in order: an expert's rows are in the order of slots. */
static __global__ void place_kernel(const int32_t *id, int n_slot, int n_expert, const int *count,
                                    const int *first, int *row)
{
    __shared__ int next[CUDA_EXPERTS_MAX];
    gpu_wait_before();
    gpu_let_next();
    const int lane = threadIdx.x;
    int expert[CHUNK / 32]; /* all asked for before the first is placed */
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
        const int slot = blockIdx.x * CHUNK + i * 32 + lane;
        expert[i] = slot < n_slot ? id[slot] : -1;
    }
    for (int e = lane; e < n_expert; e += 32)
        next[e] = first[e] + count[blockIdx.x * n_expert + e];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
        const int slot = blockIdx.x * CHUNK + i * 32 + lane, e = expert[i];
        const unsigned same = __match_any_sync(~0u, e), before = same & ((1u << lane) - 1);
        const int base = e >= 0 ? next[e] : -1;
        __syncwarp();
        if (e >= 0 && before == 0)
            next[e] = base + __popc(same);
        __syncwarp();
        if (slot < n_slot)
            row[slot] = e >= 0 ? base + __popc(before) : -1;
    }
}

/* x to panels: a block a token, a thread 16 of its values, pairs 0 2 4 6 to one chunk and 1 3 5 7 to the
 * next. */
static __global__ void gather_kernel(const uint16_t *x, const int *row, int n_used, int hidden,
                                     size_t capacity, uint16_t *out)
{
    gpu_wait_before();
    gpu_let_next();
    const uint4 *from = (const uint4 *)(x + (size_t)blockIdx.x * hidden);
    row += (size_t)blockIdx.x * n_used;
    for (int part = threadIdx.x; part < hidden / 16; part += blockDim.x) {
        const uint4 a = from[2 * part], b = from[2 * part + 1];
        const int chunk = part % 4 * 2;
#pragma unroll 4
        for (int j = 0; j < n_used; j++) {
            const int r = row[j];
            if (r < 0)
                continue;
            uint4 *to = (uint4 *)(out + ((size_t)(part / 4) * capacity + r) * 64);
            to[chunk ^ (r & 7)] = make_uint4(a.x, a.z, b.x, b.z);
            to[(chunk + 1) ^ (r & 7)] = make_uint4(a.y, a.w, b.y, b.w);
        }
    }
}

static __device__ void add(float (&sum)[8], float w, uint4 v)
{
    const uint32_t pair[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int p = 0; p < 4; p++) {
        sum[2 * p] = fmaf(w, __uint_as_float(pair[p] << 16), sum[2 * p]);
        sum[2 * p + 1] = fmaf(w, __uint_as_float(pair[p] & 0xffff0000), sum[2 * p + 1]);
    }
}

/* out[t] = sum of weight * Y, slots ascending: a block a token, a thread 8 of its values. */
static __global__ void finalize_kernel(const uint16_t *y, const int *row, const float *weight, int n_used,
                                       int hidden, size_t capacity, float *out)
{
    gpu_wait_before();
    gpu_let_next();
    row += (size_t)blockIdx.x * n_used;
    weight += (size_t)blockIdx.x * n_used;
    out += (size_t)blockIdx.x * hidden;
    for (int chunk = threadIdx.x; chunk < hidden / 8; chunk += blockDim.x) {
        float sum[8] = {};
        const uint4 *from = (const uint4 *)(y + (size_t)(chunk / 8) * capacity * 64);
#pragma unroll 8
        for (int j = 0; j < n_used; j++) {
            const int r = row[j];
            if (r >= 0)
                add(sum, weight[j], __ldcs(from + (size_t)r * 8 + ((chunk & 7) ^ (r & 7))));
        }
        float4 *to = (float4 *)(out + 8 * chunk);
        to[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        to[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    }
}

/* each[slot] = Y of that slot, where it has one: a block a token, a thread 8 of its values. */
static __global__ void each_kernel(const uint16_t *y, const int *row, int n_used, int hidden, size_t capacity,
                                   uint16_t *each)
{
    gpu_wait_before();
    gpu_let_next();
    row += (size_t)blockIdx.x * n_used;
    each += (size_t)blockIdx.x * n_used * hidden;
    for (int chunk = threadIdx.x; chunk < hidden / 8; chunk += blockDim.x) {
        const uint4 *from = (const uint4 *)(y + (size_t)(chunk / 8) * capacity * 64);
#pragma unroll 8
        for (int j = 0; j < n_used; j++) {
            const int r = row[j];
            if (r >= 0)
                *(uint4 *)(each + (size_t)j * hidden + 8 * chunk) =
                    __ldcs(from + (size_t)r * 8 + ((chunk & 7) ^ (r & 7)));
        }
    }
}

/* x to panels as gather_kernel does, row for row; block 0 also makes the tiles of one matrix. */
static __global__ void panel_kernel(const uint16_t *x, int n_row, int K, int n_max, size_t capacity,
                                    uint16_t *out, prefill_tile *tile, int *n_tile)
{
    gpu_wait_before();
    gpu_let_next();
    const int r = blockIdx.x, tiles = (n_row + n_max - 1) / n_max,
              step = ((n_row + tiles - 1) / tiles + 7) & ~7;
    const uint4 *from = (const uint4 *)(x + (size_t)r * K);
    for (int part = threadIdx.x; part < K / 16; part += blockDim.x) {
        const uint4 a = from[2 * part], b = from[2 * part + 1];
        const int chunk = part % 4 * 2;
        uint4 *to = (uint4 *)(out + ((size_t)(part / 4) * capacity + r) * 64);
        to[chunk ^ (r & 7)] = make_uint4(a.x, a.z, b.x, b.z);
        to[(chunk + 1) ^ (r & 7)] = make_uint4(a.y, a.w, b.y, b.w);
    }
    if (r > 0)
        return;
    for (int i = threadIdx.x; i < tiles; i += blockDim.x)
        tile[i] = {0, i * step, max(0, min(step, n_row - i * step))};
    if (threadIdx.x == 0)
        *n_tile = tiles;
}

template <typename F>
static const char *launch(const prefill_gemm &p, const struct gpu_limits *limits, cudaStream_t stream)
{
    if (limits->major != 9)
        return "the prefill kernel uses wgmma: it needs compute capability 9.0";
    const char *e = gpu_why(gpu_allow_shared(prefill_gemm_kernel<F>, F::SMEM));
    return e ? e
             : gpu_why(gpu_launch(prefill_gemm_kernel<F>, (unsigned)(limits->n_sm * F::BLOCKS), F::THREADS,
                                  F::SMEM, stream, p));
}

/* Many tokens an expert: the widest tiles. Few: two blocks an SM, so that one decodes while the other's
 * products run, and its sums leave behind the other's loads. */
template <prefill_mode MODE> using prefill_wide = prefill_form<MODE, 2, 1, 1, PREFILL_N_MAX, 7>;
template <prefill_mode MODE> using prefill_narrow = prefill_form<MODE, 2, 2, 1, PREFILL_N_NARROW, 6>;

/* Tokens an expert on average up to which narrow tiles were faster on an H200 (docs/SPEED.md): beyond, many
 * experts have more than one tile of them. */
#define FEW_TOKENS 32

static int tile_tokens(const struct packed_moe *m)
{
    return m->n_row * m->n_used <= FEW_TOKENS * m->n_expert ? PREFILL_N_NARROW : PREFILL_N_MAX;
}

template <prefill_mode MODE>
static const char *launch_moe(const struct packed_moe *m, const prefill_gemm &p,
                              const struct gpu_limits *limits, cudaStream_t stream)
{
    return tile_tokens(m) == PREFILL_N_NARROW ? launch<prefill_narrow<MODE>>(p, limits, stream)
                                              : launch<prefill_wide<MODE>>(p, limits, stream);
}

static const char *product(const struct packed_moe *m, const prefill_scratch &s, int which,
                           const struct gpu_limits *limits, cudaStream_t stream)
{
    prefill_gemm p = {};
    const bool pair = which == 0;
    const int rows = pair ? 2 * m->inner : m->hidden, K = pair ? m->hidden : m->inner;
    p.weight = pair ? m->gate_up : m->down;
    p.scale = pair ? m->gate_scale : m->down_scale;
    p.scale_2 = pair ? m->up_scale : nullptr;
    p.x = pair ? s.x : s.h;
    p.out = pair ? s.h : s.y;
    p.tile = s.tile;
    p.n_tile = s.n_tile;
    p.n_unit = rows / CUDA_UNIT_ROWS;
    p.n_k = K / CUDA_UNIT_K;
    p.n_out = (pair ? m->inner : m->hidden) / 64;
    p.expert_bytes = (size_t)p.n_unit * p.n_k * CUDA_UNIT_BYTES;
    p.capacity = s.capacity;
    return pair ? launch_moe<PREFILL_GATE_UP>(m, p, limits, stream)
                : launch_moe<PREFILL_DOWN>(m, p, limits, stream);
}

const char *prefill_product(const struct packed_moe *m, void *scratch, int which,
                            const struct gpu_limits *limits, cudaStream_t stream)
{
    return product(m, layout(m, scratch), which, limits, stream);
}

const char *prefill_check(const struct packed_moe *m)
{
    if (m->n_row < 1 || m->n_used < 1 || m->n_row > MAX_SLOTS / m->n_used)
        return "prefill: tokens x experts a token not in 1 to 2^24";
    if (m->n_expert < 1 || m->n_expert > CUDA_EXPERTS_MAX)
        return "prefill: number of experts not in 1 to 512";
    if (m->hidden < 64 || m->inner < 64 || m->hidden > MAX_WIDTH || m->inner > MAX_WIDTH || m->hidden % 64 ||
        m->inner % 64)
        return "prefill: hidden or inner size not a multiple of 64 in 64 to 65536";
    return nullptr;
}

const char *prefill_start(const struct packed_moe *m, void *scratch, const struct gpu_limits *limits,
                          cudaStream_t stream)
{
    const char *e = prefill_check(m);
    if (e)
        return e;
    const prefill_scratch s = layout(m, scratch);
    const int S = s.n_slot, E = m->n_expert;
    e = gpu_why(gpu_launch(count_kernel, (unsigned)s.n_chunk, 128, 0, stream, m->id, S, E, s.count));
    if (!e)
        e = gpu_why(gpu_launch(plan_kernel, 1, CUDA_EXPERTS_MAX, 0, stream, s.n_chunk, E, tile_tokens(m),
                               s.count, s.first, s.tile, s.n_tile));
    if (!e)
        e = gpu_why(gpu_launch(place_kernel, (unsigned)s.n_chunk, 32, 0, stream, m->id, S, E, s.count,
                               s.first, s.row));
    if (!e)
        e = gpu_why(gpu_launch(gather_kernel, (unsigned)m->n_row, 128, 0, stream, m->x, s.row, m->n_used,
                               m->hidden, s.capacity, s.x));
    if (!e)
        e = product(m, s, 0, limits, stream);
    if (!e)
        e = product(m, s, 1, limits, stream);
    if (e)
        return e;
    if (m->each)
        return gpu_why(gpu_launch(each_kernel, (unsigned)m->n_row, 128, 0, stream, s.y, s.row, m->n_used,
                                  m->hidden, s.capacity, (uint16_t *)m->each));
    return gpu_why(gpu_launch(finalize_kernel, (unsigned)m->n_row, 128, 0, stream, s.y, s.row, m->weight,
                              m->n_used, m->hidden, s.capacity, m->out));
}

/* ---- a dense product --------------------------------------------------------------------------------- */

struct linear_scratch {
    uint16_t *x;
    prefill_tile *tile;
    int *n_tile;
    size_t capacity, bytes;
};

static linear_scratch linear_layout(int n_row, int K, void *base)
{
    linear_scratch s = {};
    s.capacity = (size_t)(n_row + 7) / 8 * 8 + PREFILL_N_MAX;
    const size_t x = 2 * s.capacity * (size_t)K;
    s.x = (uint16_t *)base;
    s.tile = (prefill_tile *)((uint8_t *)base + x);
    s.n_tile = (int *)(s.tile + (n_row + PREFILL_N_NARROW - 1) / PREFILL_N_NARROW);
    s.bytes = (size_t)((uint8_t *)(s.n_tile + 1) - (uint8_t *)base);
    return s;
}

bool prefill_linear_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return limits->major == 9 && w->K >= 64 && w->K <= MAX_WIDTH && w->K % 64 == 0 && w->n_row <= MAX_SLOTS;
}

size_t prefill_linear_bytes(int n_row, int K)
{
    return linear_layout(n_row, K, nullptr).bytes;
}

/* Rows of x in a tile, for every matrix that these rows meet. */
static int linear_tokens(int n_row)
{
    return n_row <= PREFILL_N_SHORT                   ? PREFILL_N_SHORT
           : n_row <= LINEAR_TILES * PREFILL_N_MIDDLE ? PREFILL_N_MIDDLE
                                                      : PREFILL_N_MAX;
}

/* Whether a form's tiles fit into one wave: with so few tiles each is as long as the whole matrix's k, and
 * parts of it side by side are faster. */
template <typename F>
static bool fits(const prefill_gemm &p, int n_max, int n_row, const struct gpu_limits *limits)
{
    const int n_tile = (n_row + n_max - 1) / n_max;
    return n_max <= F::N_MAX && p.n_k % F::DEPTH == 0 &&
           (p.n_unit + F::UNITS - 1) / F::UNITS * n_tile <= limits->n_sm;
}

const char *prefill_linear_start(const struct packed_linear *w, bool x_is_new, void *scratch,
                                 const struct gpu_limits *limits, cudaStream_t stream)
{
    typedef prefill_form<PREFILL_LINEAR, 4, 1, 4, PREFILL_N_SHORT, 4> quarters;
    typedef prefill_form<PREFILL_LINEAR, 4, 1, 2, PREFILL_N_MIDDLE, 5> halves;
    const linear_scratch s = linear_layout(w->n_row, w->K, scratch);
    const int n_max = linear_tokens(w->n_row);
    const char *e = nullptr;
    if (x_is_new)
        e = gpu_why(gpu_launch(panel_kernel, (unsigned)w->n_row, 128, 0, stream, w->x, w->n_row, w->K, n_max,
                               s.capacity, s.x, s.tile, s.n_tile));
    if (e)
        return e;
    prefill_gemm p = {};
    p.weight = w->weight;
    p.x = s.x;
    p.tile = s.tile;
    p.n_tile = s.n_tile;
    p.n_unit = (w->n_out + CUDA_UNIT_ROWS - 1) / CUDA_UNIT_ROWS;
    p.n_k = w->K / CUDA_UNIT_K;
    p.capacity = s.capacity;
    p.linear = *w;
    if (fits<quarters>(p, n_max, w->n_row, limits))
        return launch<quarters>(p, limits, stream);
    if (fits<halves>(p, n_max, w->n_row, limits))
        return launch<halves>(p, limits, stream);
    return launch<prefill_wide<PREFILL_LINEAR>>(p, limits, stream);
}
