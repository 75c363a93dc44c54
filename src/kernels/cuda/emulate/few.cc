/* Plain versions of the kernels for few rows over packed weights, for the emulator: the same entry points,
 * the same meaning, rows read through the packed layout. A row's sums have one order here, whatever else is
 * in the batch, so that tests of whole models can compare bits; those of linear.cu and moe.cu depend on how a
 * launch's work is shared out. Where NYBBLE_SIMT_FEW is `gpu` it is those that run, for their own tests. */
#include <array>

#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/plugin/operators.h"
#include "kernels/cuda/plugin/prefill.cuh"

#define THREADS 32

/* Of linear.cu and moe.cu, which have these names here (CMakeLists.txt). */
const char *gpu_linear_start(const struct packed_linear *w, const struct gpu_limits *limits,
                             cudaStream_t stream);
bool gpu_linear_takes(const struct packed_linear *w, const struct gpu_limits *limits);
const char *gpu_moe_start(const struct packed_moe *w, const struct moe_scratch *scratch,
                          const struct op_place *at);
bool gpu_moe_takes(const struct packed_moe *w, const struct gpu_limits *limits);

static bool as_on_gpu()
{
    static const char *const text = getenv("NYBBLE_SIMT_FEW");
    return text && strcmp(text, "gpu") == 0;
}

/* Where the four bits of a code of pair p, half h, of an even word or of the odd one behind it lie in those
 * two: see cuda_layout.c. */
struct code_bits {
    uint8_t at[2][4][2][4]; /* [odd][p][h][bit] */
    constexpr code_bits() : at()
    {
        for (int odd = 0; odd < 2; odd++)
            for (int p = 0; p < 4; p++)
                for (int h = 0; h < 2; h++)
                    for (int b = 0; b < 4; b++) {
                        const int turn[4] = {0, 4, 10, odd ? 28 : 6};
                        const int bit = ((b == 3 ? 15 : 6 + b) + 16 * h - turn[p]) & 31;
                        at[odd][p][h][b] = (uint8_t)(p < 3                     ? bit + 32 * odd
                                                     : 0x06030603u >> bit & 1u ? bit
                                                                               : bit + 30);
                    }
    }
};

static float code_value(uint64_t words, int odd, int p, int h)
{
    static constexpr code_bits bits;
    uint32_t code = 0;
    for (int b = 0; b < 4; b++)
        code |= (uint32_t)(words >> bits.at[odd][p][h][b] & 1u) << b;
    return e2m1_float(code);
}

/* The numbers of the scales' codes. */
static const float *scales()
{
    static const std::array<float, 256> table = [] {
        std::array<float, 256> t;
        for (int code = 0; code < 256; code++)
            t[(size_t)code] = ldexpf((float)(8 + (code & 7)), (code >> 3) - 13);
        return t;
    }();
    return table.data();
}

/* sum [n_row] += row `row` of a matrix of packed rows of K, times each of n_row rows of x, one after the
 * other. */
static void dots(const uint8_t *packed, size_t row, const uint16_t *x, int n_row, int K, float *sum)
{
    const uint8_t *tile = packed + row / CUDA_UNIT_ROWS * (size_t)(K / CUDA_UNIT_K) * CUDA_UNIT_BYTES;
    const float *scale_of = scales();
    const int r = (int)(row % CUDA_UNIT_ROWS);
    for (int k0 = 0; k0 < K; k0 += 16) { /* a block with one scale */
        const uint8_t *unit = tile + (size_t)(k0 / CUDA_UNIT_K) * CUDA_UNIT_BYTES;
        const int block = k0 % CUDA_UNIT_K / 16;
        const float scale = scale_of[unit[CUDA_UNIT_CODES + r % 8 * 8 + block * 2 + r / 8]];
        float w[16];
        for (int k = 0; k < 16; k++) {
            const int lane = r % 8 * 4 + block, pair = k % 4 / 2 * 2 + r / 8;
            uint64_t words;
            memcpy(&words, unit + 16 * lane + k / 8 * 8, 8);
            w[k] = code_value(words, k / 4 % 2, pair, k % 2) * scale;
        }
        for (int t = 0; t < n_row; t++) {
            const uint16_t *at = x + (size_t)t * K + k0;
            for (int k = 0; k < 16; k += 2)
                sum[t] += w[k] * bf16_float(at[k]) + w[k + 1] * bf16_float(at[k + 1]);
        }
    }
}

static float dot(const uint8_t *packed, size_t row, const uint16_t *x, int K)
{
    float sum = 0.0f;
    dots(packed, row, x, 1, K, &sum);
    return sum;
}

/* ---- dense ----------------------------------------------------------------------------------------- */

static void linear_kernel(const packed_linear w)
{
    const int o = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (o >= w.n_out)
        return;
    const struct packed_part &part = w.part[packed_part_of(w, o)];
    const int at = o - part.first;
    float sum[CUDA_ROWS_MAX] = {};
    dots(w.weight, (size_t)o, w.x, w.n_row, w.K, sum);
    for (int row = 0; row < w.n_row; row++)
        part.out[(size_t)row * part.n_out + at] = sum[row] * *part.scale + (part.bias ? part.bias[at] : 0.0f);
}

static const char *any_rows(const struct packed_linear *w, cudaStream_t stream)
{
    return gpu_why(
        gpu_launch(linear_kernel, (unsigned)(w->n_out + THREADS - 1) / THREADS, THREADS, 0, stream, *w));
}

const char *linear_start(const struct packed_linear *w, const struct gpu_limits *limits, cudaStream_t stream)
{
    if (as_on_gpu())
        return gpu_linear_start(w, limits, stream);
    if (w->n_row < 1 || w->n_row > CUDA_ROWS_MAX || w->n_out < 1 || w->K < 64 || w->K % 64)
        return "linear: expected 1 to 32 rows and K a multiple of 64";
    return any_rows(w, stream);
}

/* About where a GPU's shared memory ends. */
bool linear_takes(const struct packed_linear *w, const struct gpu_limits *limits)
{
    return as_on_gpu() ? gpu_linear_takes(w, limits) : w->K <= 8192;
}

/* ---- experts --------------------------------------------------------------------------------------- */

/* Where row i of gate, or of up, lies in a pair. */
static size_t pair_row(int i, bool up)
{
    return (size_t)(i / 8 * CUDA_UNIT_ROWS + i % 8 + (up ? 8 : 0));
}

static size_t matrix_bytes(int rows, int K)
{
    return (size_t)(rows / CUDA_UNIT_ROWS) * (size_t)(K / CUDA_UNIT_K) * CUDA_UNIT_BYTES;
}

static void up_kernel(const packed_moe w, uint16_t *h)
{
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x), slot = (int)blockIdx.y, e = w.id[slot];
    if (i >= w.inner || e < 0 || e >= w.n_expert)
        return;
    const uint8_t *pair = w.gate_up + (size_t)e * matrix_bytes(2 * w.inner, w.hidden);
    const uint16_t *x = w.x + (size_t)(slot / w.n_used) * w.hidden;
    const float gate = dot(pair, pair_row(i, false), x, w.hidden) * w.gate_scale[e];
    const float up = dot(pair, pair_row(i, true), x, w.hidden) * w.up_scale[e];
    h[(size_t)slot * w.inner + i] = float_bf16(gate / (1.0f + expf(-gate)) * up);
}

static void down_kernel(const packed_moe w, const uint16_t *h)
{
    const int o = (int)(blockIdx.x * THREADS + threadIdx.x), t = (int)blockIdx.y;
    if (o >= w.hidden)
        return;
    float sum = 0.0f;
    for (int slot = t * w.n_used; slot < (t + 1) * w.n_used; slot++) {
        const int e = w.id[slot];
        if (e < 0 || e >= w.n_expert)
            continue;
        const uint8_t *down = w.down + (size_t)e * matrix_bytes(w.hidden, w.inner);
        float y = dot(down, (size_t)o, h + (size_t)slot * w.inner, w.inner) * w.down_scale[e];
        const size_t at = (size_t)slot * w.hidden + o;
        if (!w.each)
            sum = fmaf(w.weight[slot], y, sum);
        else
            ((float *)w.each)[at] = y;
    }
    if (!w.each)
        w.out[(size_t)t * w.hidden + o] = sum;
}

static const char *experts(const struct packed_moe *w, uint16_t *h, cudaStream_t stream)
{
    const dim3 up((unsigned)(w->inner + THREADS - 1) / THREADS, (unsigned)(w->n_row * w->n_used));
    const dim3 down((unsigned)(w->hidden + THREADS - 1) / THREADS, (unsigned)w->n_row);
    const char *why = gpu_why(gpu_launch(up_kernel, up, THREADS, 0, stream, *w, h));
    return why ? why : gpu_why(gpu_launch(down_kernel, down, THREADS, 0, stream, *w, h));
}

bool moe_takes(const struct packed_moe *w, const struct gpu_limits *limits)
{
    return as_on_gpu() ? gpu_moe_takes(w, limits)
                       : w->n_row >= 1 && w->n_row <= MOE_SLOTS_MAX && w->n_used >= 1 &&
                             w->n_used <= MOE_SLOTS_MAX / w->n_row;
}

const char *moe_start(const struct packed_moe *w, const struct moe_scratch *scratch,
                      const struct op_place *at)
{
    if (as_on_gpu())
        return gpu_moe_start(w, scratch, at);
    if (w->n_row < 1 || w->n_row > MOE_SLOTS_MAX || w->n_used < 1 || w->n_used > MOE_SLOTS_MAX / w->n_row)
        return "moe: expected at least one token and at most 512 pairs of a token and an expert";
    const char *why = prefill_check(w);
    return why ? why : experts(w, scratch->h, at->stream);
}
