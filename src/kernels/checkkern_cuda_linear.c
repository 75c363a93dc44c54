/* Checks of products with packed NVFP4 matrices. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_packed.h"
#include "kernels/cuda/cuda_layout.h"

/* out [n_row][w->n_row] of x [n_row][K] on the GPU, in memory of the case; NULL: the report says why. */
static const float *run_linear(struct gpu_case *c, const struct packed_rows *w, const uint16_t *x, int n_row)
{
    size_t n_out = (size_t)w->n_row, K = (size_t)w->K, bytes = cuda_layout_bytes(n_out, K), bad;
    uint8_t *packed = arena_alloc(c->g->arena, bytes, 1);
    if (!cuda_layout_pack(packed, w->codes, w->scales, n_out, K, &bad)) {
        checkkern_case(c->report, false, "row %zu could not be packed", bad);
        return NULL;
    }
    float *out = gpu_case_out(c, (size_t)n_row * n_out * sizeof(float));
    const struct cuda_op op = {
        .kind = CUDA_OP_LINEAR,
        .n_row = n_row,
        .as.linear = {.part[0] = {.w = {CUDA_NVFP4_PACKED, gpu_case_in(c, packed, bytes), NULL,
                                        gpu_case_f32(c, w->global)},
                                  .out = out,
                                  .n_out = w->n_row},
                      .n_part = 1,
                      .K = w->K,
                      .x = gpu_case_in(c, x, (size_t)n_row * K * 2)}};
    return gpu_case_run(c, &op, 1) ? gpu_case_result(c, out) : NULL;
}

/* All 126 scales x 16 codes, one product each: equal to the last bit. Row s has scale s + 1 and code i at k =
 * i. */
bool checkkern_cuda_scales(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    enum { N = 126, K = 64, T = 16 };
    uint8_t codes[N * K / 2], scales[N * K / 16];
    uint16_t x[T * K] = {0};
    for (int s = 0; s < N; s++) {
        for (int i = 0; i < K / 2; i++)
            codes[s * K / 2 + i] = (uint8_t)((2 * i % 16) | (2 * i + 1) % 16 << 4);
        memset(scales + s * K / 16, s + 1, K / 16);
    }
    struct packed_rows w = {codes, scales, 1.0f, N, K};
    bool ok = true;
    for (int shift = 0; shift < K && ok; shift += T) { /* each block of 16 once */
        memset(x, 0, sizeof(x));
        for (int t = 0; t < T; t++)
            x[t * K + shift + t] = bf16_from_float(1.0f);
        struct gpu_case c;
        gpu_case_begin(&c, g, r);
        const float *out = run_linear(&c, &w, x, T);
        ok = out != NULL;
        for (int t = 0; t < T; t++)
            for (int s = 0; s < N && ok; s++) {
                float expected = fp4_e2m1_value[t] * fp4_e4m3_value[s + 1];
                ok = checkkern_case(r, out[t * N + s] == expected, "scale %d, code %d: %g, expected %g",
                                    s + 1, t, (double)out[t * N + s], (double)expected);
            }
        gpu_case_end(&c);
    }
    return ok;
}

static bool linear_case(const struct checkkern_gpu *g, uint64_t *seed, int n_row, int n_out, int K,
                        struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    struct packed_rows w = packed_rows_make(g->arena, seed, n_out, K);
    uint16_t *x = packed_x(g->arena, seed, n_row * K);
    float *row = arena_alloc(g->arena, (size_t)K, sizeof(float));
    const float *out = run_linear(&c, &w, x, n_row);
    bool ok = out != NULL;
    for (int o = 0; o < n_out && ok; o++) {
        packed_rows_value(&w, o, row);
        for (int t = 0; t < n_row && ok; t++) {
            double sum = 0, size = 0;
            for (int k = 0; k < K; k++) {
                double term = (double)row[k] * (double)bf16_to_float(x[t * K + k]) * (double)w.global;
                sum += term;
                size += fabs(term);
            }
            double found = (double)out[t * n_out + o];
            ok = checkkern_near(r, found, sum, size * PACKED_SUM_TOLERANCE + 1e-30);
            checkkern_case(r, ok, "[%d x %d] x [%d]: row %d, out %d: %g, expected %g", n_out, K, n_row, t, o,
                           found, sum);
        }
    }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_linear(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = linear_case(g, &seed, 32, 1024, 4096, r) && linear_case(g, &seed, 16, 40, 2048, r) &&
              linear_case(g, &seed, 64, 400, 1024, r);
    /* Rows that do not fit in shared memory, eight at a time. */
    ok = ok && linear_case(g, &seed, 8, 40, 12288, r) && linear_case(g, &seed, 1, 40, 10944, r);
    /* One row of so long rows that a warp has more of them than it asks for at once. */
    ok = ok && linear_case(g, &seed, 1, 250, 4096, r) && linear_case(g, &seed, 1, 120, 12288, r);
    ok = ok && linear_case(g, &seed, 3, 24, 10944, r) && linear_case(g, &seed, 32, 24, 18432, r);
    for (int i = 0; i < g->rounds && ok; i++)
        ok = linear_case(g, &seed, checkkern_int(&seed, 1, i % 4 ? 32 : 300),
                         checkkern_int(&seed, 1, i % 4 ? 600 : 160), 64 * checkkern_int(&seed, 1, 24), r);
    return ok;
}
