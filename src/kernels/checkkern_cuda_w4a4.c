/* Checks of what goes through cuBLASLt: rows quantized on the device, their products with weights in tiles,
 * and a layer of experts. On a GPU that cannot, or without the library, there are no cases, and the reason is
 * said. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_tiled.h"

/* Of the sum of magnitudes: fp32 sums on matrix units, which may truncate, over any K here. */
#define SUM_TOLERANCE 0x1p-16

static bool can(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    if (g->plugin->use_cublaslt(g->gpu))
        return true;
    snprintf(r->detail, sizeof(r->detail), "%s", g->plugin->error(g->gpu));
    return false;
}

/* ---- rows ------------------------------------------------------------------------------------------ */

/* A block of 16 under scale s as the CPU quantizes it (fp4_round_trip_row): its scale and what its codes are,
 * without s. */
static void quantize(const float *x, float s, double out[FP4_GROUP])
{
    float amax = 0.0f;
    for (int i = 0; i < FP4_GROUP; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    uint8_t scale = fp4_e4m3_from_float(fminf(amax / (6.0F * s), 448.0F));
    float step = fp4_e4m3_value[scale] * s;
    for (int i = 0; i < FP4_GROUP; i++)
        out[i] = step == 0 ? 0.0
                           : (double)fp4_e2m1_value[fp4_e2m1_from_float(x[i] / step)] *
                                 (double)fp4_e4m3_value[scale];
}

static float nudge(uint64_t *seed, float x)
{
    int by = checkkern_int(seed, -2, 2);
    for (int i = 0; i < (by < 0 ? -by : by); i++)
        x = nextafterf(x, by < 0 ? 0.0f : INFINITY);
    return x;
}

/* A block whose scale hangs between two numbers of e4m3, and all other elements between two of e2m1: a
 * division that is not rounded correctly shows. */
static void make_tie(uint64_t *seed, float s, float *x)
{
    static const float between[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    int code = checkkern_int(seed, 0x10, 0x7c);
    x[0] = nudge(seed, (fp4_e4m3_value[code] + fp4_e4m3_value[code + 1]) * 0.5f * (6.0f * s));
    float step = fp4_e4m3_value[fp4_e4m3_from_float(x[0] / (6.0f * s))] * s;
    for (int i = 1; i < FP4_GROUP; i++) {
        float tie = nudge(seed, between[checkkern_int(seed, 0, 6)] * step);
        x[i] = checkkern_int(seed, 0, 1) ? tie : -tie;
    }
}

/* Numbers of all sizes: zeros, ties between codes, what saturates, infinities and NaN. */
static float *make_rows(struct gpu_case *c, uint64_t *seed, size_t n, float s)
{
    float *x = arena_alloc(c->g->arena, n, sizeof(*x));
    for (size_t i = 0; i < n; i += FP4_GROUP) {
        int kind = checkkern_int(seed, 0, 15);
        float size = ldexpf(s, checkkern_int(seed, -12, 14));
        for (size_t j = i; j < i + FP4_GROUP; j++) {
            x[j] = size * checkkern_float(seed);
            if (kind < 4) /* ties: the block's largest is 6 steps of a power of two */
                x[j] = ldexpf(s, kind) * 0.25f * (float)(j == i ? 24 : checkkern_int(seed, -24, 24));
            if (kind == 5)
                x[j] = 0.0f;
            if (kind == 6 && j % 5 == 0)
                x[j] = j % 2 ? INFINITY : NAN;
        }
        if (kind > 7)
            make_tie(seed, s, x + i);
    }
    return x;
}

/* Through a matrix of ones in its diagonal: every element of a row comes back as it was quantized, to the
 * bit. */
static bool quantize_case(const struct checkkern_gpu *g, uint64_t *seed, int round,
                          struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    int K = 16 * checkkern_int(seed, 1, 9), n_row = checkkern_int(seed, 20, round % 4 ? 60 : 200);
    int real = checkkern_int(seed, 0, 1) ? n_row : checkkern_int(seed, 1, n_row);
    size_t k = (size_t)K, n_x = (size_t)n_row * k;
    bool exact = round % 2;
    float s = exact ? 0x1p-7f : 0.013f * (1.5f + 0.5f * checkkern_float(seed)), one = 1.0f;
    uint8_t *codes = arena_alloc(g->arena, k * k / 2, 1),
            *block = arena_alloc(g->arena, k * k / FP4_GROUP, 1);
    memset(codes, 0, k * k / 2);
    memset(block, 0x38, k * k / FP4_GROUP);
    for (size_t i = 0; i < k; i++)
        codes[(i * k + i) / 2] = i % 2 ? 0x20 : 0x02;
    struct gpu_tiled m = gpu_tiled_put(&c, 1, K, K, codes, block);
    m.global = &one;
    m.input = &s;
    gpu_tiled_scales(&c, &m, 1);
    float *x = make_rows(&c, seed, n_x, s), *row = arena_alloc(g->arena, k, sizeof(float));
    uint16_t *bf16 = arena_alloc(g->arena, n_x, sizeof(*bf16));
    bool wide = round % 3 != 0;
    for (size_t i = 0; i < n_x && !wide; i++)
        x[i] = bf16_to_float(bf16[i] = bf16_from_float(x[i]));
    struct cuda_op op = {.kind = CUDA_OP_LINEAR, .n_row = n_row};
    op.count = gpu_case_in(&c, &real, sizeof(real));
    op.as.linear = (struct cuda_linear){.n_part = 1,
                                        .K = K,
                                        .x = wide ? NULL : gpu_case_in(&c, bf16, n_x * 2),
                                        .x_float = wide ? gpu_case_in(&c, x, n_x * 4) : NULL};
    float *out = gpu_case_out(&c, n_x * 4);
    op.as.linear.part[0] = (struct cuda_linear_part){.w = m.w, .out = out, .n_out = K};
    bool ok = gpu_case_run(&c, &op, 1);
    const float *found = gpu_case_result(&c, out);
    for (int t = 0; t < real && ok; t++) {
        const float *from = x + (size_t)t * k;
        fp4_round_trip_row(row, from, s, k);
        for (size_t i = 0; i < k && ok; i++) {
            double code[FP4_GROUP];
            quantize(from + i / FP4_GROUP * FP4_GROUP, s, code);
            float expected = exact ? row[i] : (float)((double)s * code[i % FP4_GROUP]);
            float got = found[(size_t)t * k + i];
            ok = checkkern_case(r, got == expected,
                                "row %d of %d, element %zu of %d, %g under %g: %.9g, not %.9g", t, n_row, i,
                                K, (double)from[i], (double)s, (double)got, (double)expected);
        }
    }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_quantize(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    if (!can(g, r))
        return true;
    for (int i = 0; i < 2 * g->rounds && ok; i++)
        ok = quantize_case(g, &seed, i, r);
    return ok;
}

/* ---- products -------------------------------------------------------------------------------------- */

static double dot(const float *w, const double *x, int K, double *size)
{
    double sum = 0;
    *size = 0;
    for (int k = 0; k < K; k++) {
        double term = (double)w[k] * x[k];
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

static void quantize_row(const float *x, float s, int K, double *out)
{
    for (int k = 0; k < K; k += FP4_GROUP)
        quantize(x + k, s, out + k);
}

static bool linear_case(const struct checkkern_gpu *g, uint64_t *seed, int round, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    int n_row = checkkern_int(seed, 1, round % 3 ? 40 : 260), n_part = checkkern_int(seed, 1, CUDA_PARTS_MAX);
    int K = 16 * checkkern_int(seed, 1, 20), n_out[CUDA_PARTS_MAX];
    int real = checkkern_int(seed, 0, 1) ? n_row : checkkern_int(seed, 1, n_row);
    size_t n_x = (size_t)n_row * (size_t)K;
    float *x = gpu_case_floats(&c, seed, n_x, 3.0f), *bias[CUDA_PARTS_MAX];
    double *row = arena_alloc(g->arena, (size_t)K, sizeof(double));
    struct gpu_tiled m[CUDA_PARTS_MAX];
    struct cuda_op op = {.kind = CUDA_OP_LINEAR, .n_row = n_row};
    op.count = gpu_case_in(&c, &real, sizeof(real));
    op.as.linear = (struct cuda_linear){.n_part = n_part, .K = K, .x_float = gpu_case_in(&c, x, n_x * 4)};
    for (int i = 0; i < n_part; i++) {
        n_out[i] = checkkern_int(seed, 1, round % 2 ? 200 : 40);
        m[i] = gpu_tiled_make(&c, seed, 1, n_out[i], K, 0.002f);
        bias[i] = checkkern_int(seed, 0, 1) ? gpu_case_floats(&c, seed, (size_t)n_out[i], 1.0f) : NULL;
        op.as.linear.part[i] =
            (struct cuda_linear_part){.w = m[i].w,
                                      .bias = bias[i] ? gpu_case_in(&c, bias[i], (size_t)n_out[i] * 4) : NULL,
                                      .out = gpu_case_out(&c, (size_t)n_row * (size_t)n_out[i] * 4),
                                      .n_out = n_out[i]};
    }
    bool ok = gpu_case_run(&c, &op, 1);
    for (int i = 0; i < n_part; i++)
        for (int t = 0; t < real && ok; t++) {
            const float *out = gpu_case_result(&c, op.as.linear.part[i].out);
            double by = (double)m[i].global[0] * (double)m[i].input[0], size;
            quantize_row(x + (size_t)t * (size_t)K, m[i].input[0], K, row);
            for (int o = 0; o < n_out[i] && ok; o++) {
                double sum = by * dot(m[i].value + (size_t)o * (size_t)K, row, K, &size);
                sum += bias[i] ? (double)bias[i][o] : 0.0;
                double found = (double)out[(size_t)t * (size_t)n_out[i] + (size_t)o];
                ok = checkkern_near(r, found, sum, (size * by + fabs(sum)) * SUM_TOLERANCE + 1e-30);
                checkkern_case(r, ok, "[%d x %d] x [%d], matrix %d: row %d, out %d: %g, expected %g",
                               n_out[i], K, n_row, i, t, o, found, sum);
            }
        }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_linear_w4a4(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    if (!can(g, r))
        return true;
    for (int i = 0; i < g->rounds && ok; i++)
        ok = linear_case(g, &seed, i, r);
    return ok;
}

/* ---- experts --------------------------------------------------------------------------------------- */

struct moe {
    struct gpu_tiled gate, up, down;
    float *x, *weight;
    int32_t *id;
    int n_row, n_used, E, H, I;
};

/* What a block of h becomes under s, and how far off that is where h is by up to `error`: its scale may be
 * another, and codes beside those of h. */
static void quantize_uncertain(const double *h, const double *error, float s, double *out, double *off)
{
    float mid[FP4_GROUP], most[2] = {0, 0};
    double steps[2];
    for (int i = 0; i < FP4_GROUP; i++) {
        mid[i] = (float)h[i];
        most[0] = fmaxf(most[0], (float)fmax(fabs(h[i]) - error[i], 0.0));
        most[1] = fmaxf(most[1], (float)(fabs(h[i]) + error[i]));
    }
    quantize(mid, s, out);
    for (int i = 0; i < 2; i++)
        steps[i] = (double)fp4_e4m3_value[fp4_e4m3_from_float(fminf(most[i] / (6.0f * s), 448.0f))];
    for (int i = 0; i < FP4_GROUP; i++) {
        off[i] = 0;
        for (int k = 0; k < 4; k++) {
            double step = steps[k / 2], x = h[i] + (k % 2 ? error[i] : -error[i]);
            double there =
                step > 0 ? step * (double)fp4_e2m1_value[fp4_e2m1_from_float((float)(x / (step * (double)s)))]
                         : 0.0;
            off[i] = fmax(off[i], fabs(there - out[i]));
        }
    }
}

/* What a pair of a row and an expert adds to its row, and how far off that may be. */
static void add_pair(const struct moe *m, int pair, double *work, double *expected, double *allowed)
{
    int e = m->id[pair], row = pair / m->n_used;
    double *x[2] = {work, work + m->H}, *h = work + 2 * m->H, *h_error = h + m->I, *q = h_error + m->I,
           *off = q + m->I;
    const struct gpu_tiled *w[2] = {&m->gate, &m->up};
    for (int k = 0; k < 2; k++)
        quantize_row(m->x + (size_t)row * (size_t)m->H, w[k]->input[e], m->H, x[k]);
    for (int i = 0; i < m->I; i++) {
        double y[2], size[2];
        for (int k = 0; k < 2; k++) {
            double by = (double)w[k]->global[e] * (double)w[k]->input[e];
            y[k] = by * dot(w[k]->value + (size_t)(e * m->I + i) * (size_t)m->H, x[k], m->H, &size[k]);
            size[k] *= by;
        }
        double silu = y[0] / (1.0 + exp(-y[0]));
        h[i] = silu * y[1];
        h_error[i] =
            SUM_TOLERANCE * (fabs(h[i]) + 1.1 * fabs(y[1]) * size[0] + (fabs(silu) + size[0]) * size[1]);
    }
    for (int i = 0; i < m->I; i += FP4_GROUP)
        quantize_uncertain(h + i, h_error + i, m->down.input[e], q + i, off + i);
    double by = (double)m->down.global[e] * (double)m->down.input[e] * (double)m->weight[pair];
    for (int o = 0; o < m->H; o++) {
        const float *down = m->down.value + (size_t)(e * m->H + o) * (size_t)m->I;
        double size, sum = dot(down, q, m->I, &size), error = size * SUM_TOLERANCE;
        for (int i = 0; i < m->I; i++)
            error += fabs((double)down[i]) * off[i];
        expected[row * m->H + o] += by * sum;
        allowed[row * m->H + o] += fabs(by) * (error + fabs(sum) * SUM_TOLERANCE);
    }
}

static bool moe_case(const struct checkkern_gpu *g, uint64_t *seed, int round, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    c.no_graph = true;
    struct moe m = {.n_row = checkkern_int(seed, 1, round % 3 ? 12 : 150),
                    .n_used = checkkern_int(seed, 1, 4),
                    .E = checkkern_int(seed, 1, 9),
                    .H = 16 * checkkern_int(seed, 1, 7),
                    .I = 16 * checkkern_int(seed, 1, 6)};
    int n_pair = m.n_row * m.n_used,
        real = checkkern_int(seed, 0, 1) ? m.n_row : checkkern_int(seed, 1, m.n_row);
    size_t H = (size_t)m.H, I = (size_t)m.I, n = (size_t)real * H;
    m.gate = gpu_tiled_make(&c, seed, m.E, m.I, m.H, 0.002f);
    m.up = gpu_tiled_make(&c, seed, m.E, m.I, m.H, 0.002f);
    m.down = gpu_tiled_make(&c, seed, m.E, m.H, m.I, 2000.0f);
    m.x = gpu_case_floats(&c, seed, (size_t)m.n_row * H, 2.0f);
    m.weight = gpu_case_floats(&c, seed, (size_t)n_pair, 1.0f);
    m.id = arena_alloc(g->arena, (size_t)n_pair, sizeof(int32_t));
    for (int i = 0; i < n_pair; i++) /* now and then all to one, or to none that is here */
        m.id[i] = round % 5 == 4 ? m.E / 2 : round % 5 == 3 ? m.E : checkkern_int(seed, -1, m.E - 1);
    struct cuda_op op = {.kind = CUDA_OP_MOE_W4A4, .n_row = m.n_row};
    op.count = gpu_case_in(&c, &real, sizeof(real));
    float *out = gpu_case_out(&c, (size_t)m.n_row * H * 4);
    op.as.moe_w4a4 = (struct cuda_moe_w4a4){.gate = m.gate.w,
                                            .up = m.up.w,
                                            .down = m.down.w,
                                            .x = gpu_case_in(&c, m.x, (size_t)m.n_row * H * 4),
                                            .id = gpu_case_in(&c, m.id, (size_t)n_pair * 4),
                                            .weight = gpu_case_in(&c, m.weight, (size_t)n_pair * 4),
                                            .out = out,
                                            .n_used = m.n_used,
                                            .n_expert = m.E,
                                            .hidden = m.H,
                                            .inner = m.I};
    bool ok = gpu_case_run(&c, &op, 1);
    double *expected = arena_alloc(g->arena, n, sizeof(double)),
           *allowed = arena_alloc(g->arena, n, sizeof(double));
    double *work = arena_alloc(g->arena, 2 * H + 4 * I, sizeof(double));
    memset(expected, 0, n * sizeof(double));
    memset(allowed, 0, n * sizeof(double));
    for (int pair = 0; pair < real * m.n_used && ok; pair++)
        if (m.id[pair] >= 0 && m.id[pair] < m.E)
            add_pair(&m, pair, work, expected, allowed);
    ok = ok && gpu_case_near(&c, "experts", gpu_case_result(&c, out), expected, allowed, n);
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_moe_w4a4(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    if (!can(g, r))
        return true;
    for (int i = 0; i < 2 * g->rounds && ok; i++)
        ok = moe_case(g, &seed, i, r);
    return ok;
}
