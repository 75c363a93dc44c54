/* Dense products of more rows than the kernel for few takes. */
#include "kernels/cuda/plugin/prefill_linear.cuh"

#include "kernels/cuda/plugin/prefill.cuh"
#include "kernels/cuda/plugin/prefill_boxes.h"

/* Rows of x in a tile, by form; up to FEW_TILES tiles the middle one. */
#define SHORT     64
#define MIDDLE    96
#define WIDE      128
#define FEW_TILES 4

/* x to panels, row for row, of each 64 values pair c of each 16 to chunk c; block 0 also makes the tiles. */
static __global__ void panel_kernel(const uint16_t *x, int n_row, int K, int n_max, size_t capacity,
                                    uint16_t *out, prefill_tile *tile, int *n_tile)
{
    gpu_wait_before();
    gpu_let_next();
    const int r = blockIdx.x, tiles = (n_row + n_max - 1) / n_max,
              step = ((n_row + tiles - 1) / tiles + 7) & ~7;
    const uint32_t *pairs = (const uint32_t *)(x + (size_t)r * K);
    for (int part = threadIdx.x; part < K / 16; part += blockDim.x) {
        const int chunk = part % 4 * 2;
        const uint32_t *from = pairs + part / 4 * 32 + chunk;
        const uint2 a = *(const uint2 *)from, b = *(const uint2 *)(from + 8), c = *(const uint2 *)(from + 16),
                    d = *(const uint2 *)(from + 24);
        uint4 *to = (uint4 *)(out + ((size_t)(part / 4) * capacity + r) * 64);
        to[chunk ^ (r & 7)] = make_uint4(a.x, b.x, c.x, d.x);
        to[(chunk + 1) ^ (r & 7)] = make_uint4(a.y, b.y, c.y, d.y);
    }
    if (r > 0)
        return;
    for (int i = threadIdx.x; i < tiles; i += blockDim.x)
        tile[i] = {0, i * step, max(0, min(step, n_row - i * step))};
    if (threadIdx.x == 0)
        *n_tile = tiles;
}

template <typename F>
static const char *launch(prefill_linear p, const struct gpu_limits *limits, cudaStream_t stream)
{
    const char *e = weight_boxes_make(&p.weight, p.w.weight, p.n_k, (size_t)p.n_unit, F::UNITS);
    if (!e)
        e = gpu_why(gpu_allow_shared(prefill_linear_kernel<F>, F::SMEM));
    return e ? e
             : gpu_why(gpu_launch(prefill_linear_kernel<F>, (unsigned)(limits->n_sm * F::BLOCKS), F::THREADS,
                                  F::SMEM, stream, p));
}

struct linear_scratch {
    uint16_t *x;
    prefill_tile *tile;
    int *n_tile;
    size_t capacity, bytes;
};

static linear_scratch linear_layout(int n_row, int K, void *base)
{
    linear_scratch s = {};
    s.capacity = (size_t)(n_row + 7) / 8 * 8 + WIDE;
    const size_t x = 2 * s.capacity * (size_t)K;
    s.x = (uint16_t *)base;
    s.tile = (prefill_tile *)((uint8_t *)base + x);
    s.n_tile = (int *)(s.tile + (n_row + SHORT - 1) / SHORT);
    s.bytes = (size_t)((uint8_t *)(s.n_tile + 1) - (uint8_t *)base);
    return s;
}

bool prefill_linear_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return (GPU_IS_EMULATED || limits->major == 9) && w->K >= 64 && w->K <= PREFILL_MAX_WIDTH &&
           w->K % 64 == 0 && w->n_row <= PREFILL_MAX_SLOTS;
}

size_t prefill_linear_bytes(int n_row, int K)
{
    return linear_layout(n_row, K, nullptr).bytes;
}

/* Rows of x in a tile, for every matrix that these rows meet. */
static int linear_tokens(int n_row)
{
    return n_row <= SHORT ? SHORT : n_row <= FEW_TILES * MIDDLE ? MIDDLE : WIDE;
}

/* Whether a form's tiles fit into one wave: with so few tiles each is as long as the whole matrix's k, and
 * parts of it side by side are faster. */
template <typename F>
static bool fits(const prefill_linear &p, int n_max, int n_row, const struct gpu_limits *limits)
{
    const int n_tile = (n_row + n_max - 1) / n_max;
    return n_max <= F::N_MAX && p.n_k % F::DEPTH == 0 &&
           (p.n_unit + F::UNITS - 1) / F::UNITS * n_tile <= limits->n_sm;
}

const char *prefill_linear_start(const struct packed_linear *w, bool x_is_new, void *scratch,
                                 const struct gpu_limits *limits, cudaStream_t stream)
{
    typedef prefill_linear_form<prefill_form<4, 1, 4, 1, 1, SHORT, 4>> quarters;
    typedef prefill_linear_form<prefill_form<4, 1, 2, 1, 1, MIDDLE, 5>> halves;
    typedef prefill_linear_form<prefill_form<2, 1, 1, 2, 2, WIDE, 7>> wide;
    const linear_scratch s = linear_layout(w->n_row, w->K, scratch);
    const int n_max = linear_tokens(w->n_row);
    const char *e = nullptr;
    if (x_is_new)
        e = gpu_why(gpu_launch(panel_kernel, (unsigned)w->n_row, 128, 0, stream, w->x, w->n_row, w->K, n_max,
                               s.capacity, s.x, s.tile, s.n_tile));
    if (e)
        return e;
    const prefill_linear p = {{},
                              *w,
                              s.x,
                              s.tile,
                              s.n_tile,
                              (w->n_out + CUDA_UNIT_ROWS - 1) / CUDA_UNIT_ROWS,
                              w->K / CUDA_UNIT_K,
                              s.capacity};
    if (fits<quarters>(p, n_max, w->n_row, limits))
        return launch<quarters>(p, limits, stream);
    if (fits<halves>(p, n_max, w->n_row, limits))
        return launch<halves>(p, limits, stream);
    return launch<wide>(p, limits, stream);
}
