/* A dense NVFP4 product for few rows. */
#include "kernels/cuda/plugin/internal.h"
#include "kernels/cuda/plugin/stream.cuh"

struct linear_params {
    struct packed_linear w;
    struct phase phase; /* lo and hi are for the kernel to say */
};

/* So many rows at a time, of n_row. */
struct linear_passes {
    int each, n_row;
    __device__ __forceinline__ int rows_before(int pass) const
    {
        return min(pass * each, n_row);
    }
    __device__ __forceinline__ int64_t matrix(int) const
    {
        return 0;
    }
};

template <int NT, typename Ring>
static __global__ void __launch_bounds__(N_THREAD, 1) linear_kernel(const linear_params a)
{
    DYNAMIC_SHARED(memory);
    SHARED(struct phase[1], phases);
    const int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), lane = (int)threadIdx.x % 32;
    const int K = a.w.K;
    const linear_passes passes = {8 * NT, a.w.n_row};
    uint8_t *xs = memory + N_WARP * Ring::stages * Ring::bytes;
    float *head = (float *)(xs + 8 * NT * x_stride(K));

    if (threadIdx.x == 0) {
        struct phase p = a.phase;
        deal(&p, (a.w.n_row + 8 * NT - 1) / (8 * NT));
        phases[0] = p;
    }
    __syncthreads();
    Ring ring = ring_make<Ring>(memory, phases, warp);
#pragma unroll 1
    for (int i = 0; i < Ring::stages; i++)
        ring_ask(ring, phases, 1, passes, warp, lane);
    float scale[CUDA_PARTS_MAX];
#pragma unroll
    for (int i = 0; i < CUDA_PARTS_MAX; i++)
        scale[i] = i < a.w.n_part ? *a.w.part[i].scale * CUDA_SCALE_BACK : 0.0f;
    gpu_wait_before(); /* the weights do not change: they may come before x is there */
    gpu_let_next();
#pragma unroll 1
    for (int lo = phases[0].lo; lo < phases[0].hi;) {
        const int hi = round_end(&phases[0], passes, lo), row = divide(lo, phases[0].by_tile) * 8 * NT,
                  n_row = min(8 * NT, a.w.n_row - row);
        stage_rows<8>(
            xs, n_row, K, phases[0].by_unit,
            [&](int r, int at) { return __ldcg((const uint4 *)(a.w.x + (size_t)(row + r) * K) + at); },
            [&](uint4 v, int, int) { return v; });
        __syncthreads();
        run_round<NT, int>(
            phases, 1, 0, lo, hi, ring, passes, head, warp, lane,
            [&](int) { return xs + (uint32_t)(lane >> 2) * x_stride(K); }, [](int pass) { return pass; },
            [&](int, int tile, float(&c)[NT][4]) {
                const int which = packed_part_of(a.w, tile * 16);
                const struct packed_part &part = a.w.part[which];
                const int out = tile * 16 + (lane >> 2) - part.first;
                const float by = which == 0 ? scale[0] : which == 1 ? scale[1] : scale[2];
#pragma unroll
                for (int i = 0; i < 4 * NT; i++) {
                    const int r = i / 4 * 8 + (lane & 3) * 2 + i % 2, o = out + i % 4 / 2 * 8;
                    if (r < n_row && o < part.n_out)
                        part.out[(size_t)(row + r) * part.n_out + o] =
                            c[i / 4][i % 4] * by + (part.bias ? part.bias[o] : 0.0f);
                }
            });
        lo = hi;
    }
}

template <int NT, typename Ring> static size_t shared_bytes(int K)
{
    return ring_bytes<Ring>() + (size_t)(8 * NT) * x_stride(K) + head_bytes(NT);
}

template <int NT, typename Ring>
static const char *start(const struct packed_linear *w, const struct gpu_limits *limits, cudaStream_t stream)
{
    const linear_params a = {*w, phase_of(w->weight, w->n_out, w->K, (size_t)(8 * NT) * x_stride(w->K))};
    const size_t bytes = shared_bytes<NT, Ring>(w->K);
    const char *why = gpu_why(gpu_allow_shared(linear_kernel<NT, Ring>, bytes));
    return why ? why
               : gpu_why(
                     gpu_launch(linear_kernel<NT, Ring>, (unsigned)limits->n_sm, N_THREAD, bytes, stream, a));
}

/* Where a ring of four stages does not fit beside the rows, one of two may. */
typedef struct ring<4, 4> long_ring;
typedef struct ring<4, 2> short_ring;

template <int NT, typename Ring> static bool fits(int K, const struct gpu_limits *limits)
{
    const size_t own = 1024; /* the kernel's */
    return shared_bytes<NT, Ring>(K) + own <= limits->shared_bytes;
}

bool linear_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return fits<1, short_ring>(w->K, limits);
}

const char *linear_start(const struct packed_linear *w, const struct gpu_limits *limits, cudaStream_t stream)
{
    const int n = w->n_row, K = w->K;
    if (n < 1 || n > CUDA_ROWS_MAX || w->n_out < 1 || K < 64 || K % 64)
        return "linear: expected 1 to 32 rows and K a multiple of 64";
    /* All rows at once where they fit: otherwise the weights are read again. */
    if (n > 16 && fits<4, short_ring>(K, limits))
        return start<4, short_ring>(w, limits, stream);
    if (n > 8 && fits<2, long_ring>(K, limits))
        return start<2, long_ring>(w, limits, stream);
    if (n > 8 && fits<2, short_ring>(K, limits))
        return start<2, short_ring>(w, limits, stream);
    if (fits<1, long_ring>(K, limits))
        return start<1, long_ring>(w, limits, stream);
    if (fits<1, short_ring>(K, limits))
        return start<1, short_ring>(w, limits, stream);
    return "linear: rows of x of this length do not fit in shared memory";
}
