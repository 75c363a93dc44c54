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
    /* One row whose weights are all asked for at once: tiles of one and of several units a warp. */
    ok = ok && linear_case(g, &seed, 1, 250, 1088, r) && linear_case(g, &seed, 1, 120, 1536, r) &&
         linear_case(g, &seed, 1, 4300, 1088, r);
    ok = ok && linear_case(g, &seed, 3, 24, 10944, r) && linear_case(g, &seed, 32, 24, 18432, r);
    /* Enough weights for the kernel by wgmma, which has the first two on GPUs of few SMs too, as emulated
     * ones are; on a large GPU the last is two tiles a warp. */
    ok = ok && linear_case(g, &seed, 64, 1280, 1792, r) && linear_case(g, &seed, 20, 1280, 1792, r) &&
         linear_case(g, &seed, 64, 1024, 2048, r) && linear_case(g, &seed, 33, 2100, 1088, r) &&
         linear_case(g, &seed, 20, 3584, 640, r) && linear_case(g, &seed, 2, 1024, 2048, r) &&
         linear_case(g, &seed, 17, 45056, 128, r);
    /* Twice as many rows and fewer. */
    ok = ok && linear_case(g, &seed, 128, 1024, 2048, r) && linear_case(g, &seed, 77, 1280, 1792, r);
    for (int i = 0; i < g->rounds && ok; i++)
        ok = linear_case(g, &seed, checkkern_int(&seed, 1, i % 4 ? 32 : 300),
                         checkkern_int(&seed, 1, i % 4 ? 600 : 160), 64 * checkkern_int(&seed, 1, 24), r);
    return ok;
}

/* A row's sums are the same bits whatever other rows there are, from two on and up to 32. That is so where
 * one kernel has all these: the one for short matrices, or the one by wgmma. Matrices of more than 40 MB, and
 * those that do not fit a GPU of few SMs, go to the kernel with a ring, whose order depends on the rows. */
static bool rows_case(const struct checkkern_gpu *g, uint64_t *seed, int n_out, int K,
                      struct checkkern_report *r)
{
    static const int rows[] = {32, 2, 7, 8, 9, 16, 17, 31};
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    struct packed_rows w = packed_rows_make(g->arena, seed, n_out, K);
    size_t bytes = cuda_layout_bytes((size_t)n_out, (size_t)K), row = (size_t)n_out * sizeof(float), bad;
    uint8_t *packed = arena_alloc(g->arena, bytes, 1);
    bool ok = checkkern_case(r, cuda_layout_pack(packed, w.codes, w.scales, (size_t)n_out, (size_t)K, &bad),
                             "rows could not be packed");
    const uint16_t *x = gpu_case_in(&c, packed_x(g->arena, seed, rows[0] * K), (size_t)(rows[0] * K) * 2);
    const struct cuda_weight weight = {CUDA_NVFP4_PACKED, gpu_case_in(&c, packed, bytes), NULL,
                                       gpu_case_f32(&c, w.global)};
    struct cuda_op op[COUNT_OF(rows)];
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        op[i] = (struct cuda_op){
            .kind = CUDA_OP_LINEAR,
            .n_row = rows[i],
            .as.linear = {
                .part[0] = {.w = weight, .out = gpu_case_out(&c, (size_t)rows[i] * row), .n_out = n_out},
                .n_part = 1,
                .K = K,
                .x = x + (size_t)(rows[0] - rows[i]) * (size_t)K}};
    ok = ok && gpu_case_run(&c, op, COUNT_OF(rows));
    const char *all = ok ? gpu_case_result(&c, op[0].as.linear.part[0].out) : NULL;
    for (size_t i = 1; i < COUNT_OF(rows) && ok; i++) /* the last rows, and so each in another place */
        ok = checkkern_case(r,
                            !memcmp(gpu_case_result(&c, op[i].as.linear.part[0].out),
                                    all + (size_t)(rows[0] - rows[i]) * row, (size_t)rows[i] * row),
                            "[%d x %d]: %d rows have other bits than among %d", n_out, K, rows[i], rows[0]);
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_rows(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    return rows_case(g, &seed, 1024, 512, r) && rows_case(g, &seed, 1280, 1792, r) &&
           rows_case(g, &seed, 1024, 2048, r);
}
