/* Few rows times a large matrix of bf16 or e4m3: each warp streams 16 rows of weights from memory straight
 * into the operands of mma.m16n8k16, the rows of x being the eight columns.
 *
 * A dot product may take its k in any order, if both operands do: in each 64 k a lane of a group of four has
 * 8 + 8 of bf16 (or 16 of e4m3) that lie side by side, one vector each, instead of the scattered pairs of the
 * instruction's own order. Where a matrix has few rows, `split` warps of a block share the k of a tile and
 * their sums are added in order: the same bits on every run. */
#include "kernels/cuda/plugin/dense.cuh"
#include "kernels/cuda/plugin/prefill.cuh"

#define WARPS  16
#define BLOCK  64 /* k of a step */
#define AHEAD  4  /* steps whose weights are under way */
#define NT_MAX 4  /* eights of rows at once */

struct stream_params {
    struct cuda_linear_part part;
    const uint16_t *x;
    const int32_t *count;
    int n_row, K, split;
};

/* Bytes of a row of x in shared memory, so that the lanes' loads meet different banks. */
template <int TYPE> static __host__ __device__ __forceinline__ int x_stride(int K)
{
    return 2 * K + (TYPE == CUDA_BF16 ? 64 : 16);
}

/* A lane's weights of rows g and g + 8 in one step. */
template <int TYPE> struct weights {
    uint4 v[2][TYPE == CUDA_BF16 ? 2 : 1];
};

template <int TYPE>
static __device__ __forceinline__ weights<TYPE> load(const uint8_t *const (&row)[2], int step)
{
    weights<TYPE> w;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint8_t *at = row[h] + (size_t)step * (BLOCK * (TYPE == CUDA_BF16 ? 2 : 1));
        w.v[h][0] = __ldcs((const uint4 *)at);
        if (TYPE == CUDA_BF16)
            w.v[h][1] = __ldcs((const uint4 *)(at + 64));
    }
    return w;
}

/* c += 16 rows of weights x 64 k times the rows at x, 8 rows x_step apart. */
template <int TYPE, int NT>
static __device__ __forceinline__ void multiply(float (&c)[NT][4], const weights<TYPE> &w, const uint8_t *x,
                                                int x_step)
{
    uint32_t a[4][4]; /* of four steps of 16 k */
    if (TYPE == CUDA_BF16) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 u = w.v[0][i % (TYPE == CUDA_BF16 ? 2 : 1)],
                        v = w.v[1][i % (TYPE == CUDA_BF16 ? 2 : 1)];
            a[2 * i][0] = u.x, a[2 * i][1] = v.x, a[2 * i][2] = u.y, a[2 * i][3] = v.y;
            a[2 * i + 1][0] = u.z, a[2 * i + 1][1] = v.z, a[2 * i + 1][2] = u.w, a[2 * i + 1][3] = v.w;
        }
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            e4m3_bf16(w.v[h][0].x, &a[0][h], &a[0][2 + h]);
            e4m3_bf16(w.v[h][0].y, &a[1][h], &a[1][2 + h]);
            e4m3_bf16(w.v[h][0].z, &a[2][h], &a[2][2 + h]);
            e4m3_bf16(w.v[h][0].w, &a[3][h], &a[3][2 + h]);
        }
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const uint4 b = *(const uint4 *)(x + t * x_step),
                    d = *(const uint4 *)(x + t * x_step + (TYPE == CUDA_BF16 ? 64 : 16));
        mma_bf16(c[t], a[0], b.x, b.y);
        mma_bf16(c[t], a[1], b.z, b.w);
        mma_bf16(c[t], a[2], d.x, d.y);
        mma_bf16(c[t], a[3], d.z, d.w);
    }
}

/* Steps [from, to) of a tile. `w` has the first AHEAD of them on entry, and of the next tile (steps from
 * next_row on) on return: its loads are under way while this one's sums are finished. */
template <int TYPE, int NT>
static __device__ __forceinline__ void
run_tile(float (&c)[NT][4], weights<TYPE> (&w)[AHEAD], const uint8_t *const (&row)[2],
         const uint8_t *const (&next_row)[2], int from, int to, const uint8_t *x, int x_step)
{
    for (int s = from; s < to; s += AHEAD)
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (s + i >= to)
                break;
            multiply<TYPE, NT>(c, w[i], x + (s + i) * (2 * BLOCK), x_step);
            if (s + i + AHEAD < to)
                w[i] = load<TYPE>(row, s + i + AHEAD);
        }
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (from + i < to)
            w[i] = load<TYPE>(next_row, from + i);
}

template <int TYPE, int NT>
static __global__ void __launch_bounds__(32 * WARPS, 1) stream_kernel(const stream_params p)
{
    DYNAMIC_SHARED(memory);
    SHARED(float[WARPS][NT * 4][32], sums);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    const int split = p.split, slots = WARPS / split, n_tile = (p.part.n_out + 15) / 16;
    const int n_step = p.K / BLOCK, from = n_step * (warp % split) / split,
              to = n_step * (warp % split + 1) / split;
    const size_t row_bytes = (size_t)p.K * (TYPE == CUDA_BF16 ? 2 : 1);
    const int stride = x_stride<TYPE>(p.K), first = (int)blockIdx.x * slots + warp / split,
              step = (int)gridDim.x * slots;
    auto rows_of = [&](int tile, const uint8_t *(&row)[2]) {
#pragma unroll
        for (int h = 0; h < 2; h++) /* beyond the end: the last row, its sums are not stored */
            row[h] =
                p.part.w.data + (size_t)min(tile * 16 + g + 8 * h, p.part.n_out - 1) * row_bytes + 16 * q;
    };
    /* The matrix does not change while a step runs: its first part may come before x is there. */
    const uint8_t *row[2], *next_row[2];
    weights<TYPE> w[AHEAD];
    rows_of(first, row);
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (from + i < to)
            w[i] = load<TYPE>(row, from + i);
    gpu_wait_few(p.n_row);
    const int n_real = OP_COUNT(p.count, p.n_row);
    const float scale = *p.part.w.scale;
    for (int row0 = 0; row0 < n_real; row0 += 8 * NT) {
        const int n_row = min(8 * NT, n_real - row0), n_16 = p.K / 8;
        for (int i = threadIdx.x; i < 8 * NT * n_16; i += 32 * WARPS) {
            const int r = i / n_16, at = i % n_16;
            *(uint4 *)(memory + r * stride + 16 * at) =
                r < n_row ? __ldcg((const uint4 *)(p.x + (size_t)(row0 + r) * p.K) + at)
                          : make_uint4(0, 0, 0, 0);
        }
        __syncthreads();
        const uint8_t *x = memory + g * stride + (TYPE == CUDA_BF16 ? 16 : 32) * q;
        for (int base = (int)blockIdx.x * slots; base < n_tile; base += step) {
            const int tile = base + warp / split;
            float c[NT][4] = {};
            rows_of(base + step < n_tile ? tile + step : first, next_row);
            run_tile<TYPE, NT>(c, w, row, next_row, from, to, x, 8 * stride);
            row[0] = next_row[0], row[1] = next_row[1];
            if (split > 1) {
#pragma unroll
                for (int i = 0; i < 4 * NT; i++)
                    sums[warp][i][lane] = c[i / 4][i % 4];
                __syncthreads();
                if (warp % split == 0)
                    for (int other = 1; other < split; other++)
#pragma unroll
                        for (int i = 0; i < 4 * NT; i++)
                            c[i / 4][i % 4] += sums[warp + other][i][lane];
                __syncthreads();
            }
            if (warp % split == 0)
#pragma unroll
                for (int i = 0; i < 4 * NT; i++) {
                    const int r = i / 4 * 8 + 2 * q + i % 2, o = tile * 16 + g + i % 4 / 2 * 8;
                    if (r < n_row && o < p.part.n_out)
                        p.part.out[(size_t)(row0 + r) * p.part.n_out + o] =
                            c[i / 4][i % 4] * scale + (p.part.bias ? p.part.bias[o] : 0.0f);
                }
        }
        __syncthreads();
    }
}

/* The smallest number of warps a tile with which the last round of tiles wastes little, and which leaves no
 * warp without any. */
static int choose_split(int n_tile, int n_step, int n_sm)
{
    int best = 1;
    float best_use = 0.0f;
    for (int split = 1; split <= WARPS && split <= n_step; split *= 2) {
        const int slots = n_sm * (WARPS / split), rounds = (n_tile + slots - 1) / slots;
        const float use = (float)n_tile / ((float)rounds * (float)slots);
        if (use > best_use + 0.02f) {
            best_use = use;
            best = split;
        }
    }
    return best;
}

template <int TYPE, int NT> static const char *start(const stream_params &p, const struct op_place *at)
{
    const size_t bytes = (size_t)(8 * NT) * (size_t)x_stride<TYPE>(p.K);
    const char *why = gpu_why(gpu_allow_shared(stream_kernel<TYPE, NT>, bytes));
    return why ? why
               : gpu_why(gpu_launch(stream_kernel<TYPE, NT>, (unsigned)at->limits->n_sm, 32 * WARPS, bytes,
                                    at->stream, p));
}

/* Rows at once, in eights: what is needed and fits beside the sums. */
static int choose_rows(int n_row, int K, const struct gpu_limits *limits)
{
    int nt = n_row <= 8 ? 1 : n_row <= 16 ? 2 : NT_MAX;
    while (nt > 0 && (size_t)(8 * nt) * (size_t)(2 * K + 64) + (size_t)(WARPS * nt * 4 * 32 * 4) + 2048 >
                         limits->shared_bytes)
        nt /= 2;
    return nt;
}

/* From 17 rows on another kernel is the faster where they do not fit at once, which reads the weights again,
 * and where there are enough rows of W for all SMs to have one of its tiles. */
#define TILE_ROWS 256
bool dense_stream_takes(const struct dense *d, const struct gpu_limits *limits)
{
    const int nt = choose_rows(d->n_row, d->K, limits);
    if ((8 * nt < d->n_row || d->part[0].n_out >= TILE_ROWS * limits->n_sm) && prefill_bf16_takes(d, limits))
        return false;
    return d->x && (d->part[0].w.type == CUDA_BF16 || d->part[0].w.type == CUDA_FP8) && d->K % BLOCK == 0 &&
           d->K >= BLOCK && (d->n_row <= CUDA_ROWS_MAX || d->part[0].w.type == CUDA_FP8) && nt > 0;
}

const char *dense_stream_start(const struct dense *d, const struct op_place *at)
{
    const int nt = choose_rows(d->n_row, d->K, at->limits);
    for (int i = 0; i < d->n_part; i++) {
        const stream_params p = {
            d->part[i], d->x, d->count,
            d->n_row,   d->K, choose_split((d->part[i].n_out + 15) / 16, d->K / BLOCK, at->limits->n_sm)};
        const bool bf16 = d->part[i].w.type == CUDA_BF16;
        const char *why = nt == 1   ? bf16 ? start<CUDA_BF16, 1>(p, at) : start<CUDA_FP8, 1>(p, at)
                            : nt == 2 ? bf16 ? start<CUDA_BF16, 2>(p, at) : start<CUDA_FP8, 2>(p, at)
                            : bf16 ? start<CUDA_BF16, 4>(p, at)
                                    : start<CUDA_FP8, 4>(p, at);
        if (why)
            return why;
    }
    return nullptr;
}
