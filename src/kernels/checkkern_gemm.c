/* Checks of the grouped product: values, poison around y, the same bits for any m, rows, threads and jobs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/checkkern.h"
#include "kernels/checkkern_gemm.h"
#include "kernels/gemm_tile.h"

void checkkern_make_weight(struct arena *arena, uint64_t *seed, enum weight_type type, int n, int k,
                           struct weight *w)
{
    size_t row_bytes = weight_row_bytes(type, k), bytes = (size_t)n * row_bytes;
    *w = (struct weight){.type = type, .n = n, .k = k, .global_scale = 0.5f + 0.4f * checkkern_float(seed)};
    w->near = checkkern_random(seed) & 1; /* where it lies changes no bit */
    w->data = arena_alloc(arena, weight_data_bytes(type, n, k), 1);
    uint8_t *rows = arena_alloc(arena, bytes, 1), *scales = NULL;
    for (size_t i = 0; i < (size_t)n * (size_t)k; i++) {
        float f = checkkern_float(seed);
        uint16_t half;
        switch (type) {
        case WEIGHT_NVFP4:
            if (i % 2 == 0)
                rows[i / 2] = (uint8_t)checkkern_random(seed);
            break;
        case WEIGHT_FP8: /* subnormals, too */
            rows[i] = fp4_e4m3_from_float(i % 7 == 0 ? f * 0.02f : f * 4.0f);
            break;
        case WEIGHT_BF16:
            half = bf16_from_float(f);
            memcpy(rows + 2 * i, &half, 2);
            break;
        case WEIGHT_F16:
            half = f16_from_float(f);
            memcpy(rows + 2 * i, &half, 2);
            break;
        default:
            memcpy(rows + 4 * i, &f, 4);
        }
    }
    if (type == WEIGHT_NVFP4) {
        size_t n_scale = (size_t)n * (size_t)k / FP4_GROUP;
        scales = arena_alloc(arena, n_scale, 1);
        for (size_t i = 0; i < n_scale; i++) /* 0x00 and subnormals .. 3.75 */
            scales[i] = (uint8_t)checkkern_int(seed, 0, 0x47);
    }
    weight_write(w, 0, n, rows, scales);
}

float *checkkern_make_rows(struct arena *arena, uint64_t *seed, int m, int k)
{
    float *x = arena_alloc(arena, (size_t)m * (size_t)k, sizeof(*x));
    for (size_t i = 0; i < (size_t)m * (size_t)k; i++)
        x[i] = checkkern_float(seed) * (i % 37 == 5 ? 8.0f : 1.0f);
    return x;
}

/* The values that x stands for in this mode with this weight: (k). */
static void true_operand(const struct operand *op, int row, enum compute mode, const struct weight *w,
                         const float *x, double *dst)
{
    static const uint8_t order[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    size_t at = (size_t)row * (size_t)op->k_pad;
    for (int i = 0; i < op->k; i++) {
        int k = i;
        double v = (double)x[i];
        if (mode == COMPUTE_INT8 && w->type == WEIGHT_NVFP4) {
            k = (i & ~7) + order[i & 7]; /* of the element in place i */
            v = checkkern_int8(op, row, i) * checkkern_int8_step(op, row, i);
        } else if (mode == COMPUTE_BF16 && w->type == WEIGHT_NVFP4 && op->i16) {
            size_t group = (at + (size_t)i) / FP4_GROUP;
            v = op->i16[at + (size_t)i] * (double)op->i16_group[group].unit;
        } else if (mode == COMPUTE_INT8 || mode == COMPUTE_BF16) {
            v = (double)bf16_to_float(bf16_from_float(x[i]));
        }
        dst[k] = v;
    }
    if (mode == COMPUTE_W4A4 && w->type == WEIGHT_NVFP4 && w->input_scale > 0.0f) {
        float *rounded = malloc((size_t)op->k * sizeof(*rounded));
        fp4_round_trip_row(rounded, x, w->input_scale, (size_t)op->k);
        for (int i = 0; i < op->k; i++)
            dst[i] = (double)rounded[i];
        free(rounded);
    }
}

/* One output and the sum of its terms' magnitudes, which its rounding error is measured by. */
static double true_dot(const float *w, const double *x, int k, double *magnitude)
{
    double sum = 0.0;
    *magnitude = 0.0;
    for (int i = 0; i < k; i++) {
        sum += (double)w[i] * x[i];
        *magnitude += fabs((double)w[i] * x[i]);
    }
    return sum;
}

/* fp32 sums of up to a thousand terms, relative to the sum of magnitudes. int32 sums are exact. */
#define TOLERANCE 5e-7
#define GUARD     5 /* columns of y beyond n, which must stay as they are */

struct gemm_case {
    const struct checkkern_env *env;
    enum compute mode;
    struct weight w, up;
    bool gated, accumulate;
    float *bias;
    const float *x; /* (m, k) */
    struct operand op;
    int m, ldy;
};

static struct gemm_job case_job(const struct gemm_case *c, float *y)
{
    return (struct gemm_job){.w = &c->w,
                             .up = c->gated ? &c->up : NULL,
                             .x = &c->op,
                             .m = c->m,
                             .y = y,
                             .ldy = c->ldy,
                             .bias = c->bias,
                             .accumulate = c->accumulate};
}

static void true_weights(const struct gemm_case *c, const struct weight *w, int row, int col, float *w_row)
{
    weight_row_to_float(w, col, w_row);
    if (c->mode == COMPUTE_INT8 && w->type == WEIGHT_NVFP4)
        checkkern_int8_weights(&c->op, row, w, col, w_row);
}

static double true_output(const struct gemm_case *c, int row, int col, const double *x, float *w_row,
                          double *tolerance)
{
    double magnitude, v;
    true_weights(c, &c->w, row, col, w_row);
    v = true_dot(w_row, x, c->w.k, &magnitude);
    *tolerance = TOLERANCE * magnitude + 1e-30;
    if (c->gated) {
        double up_magnitude, silu = v / (1.0 + exp(-v)), slope = 1.1;
        true_weights(c, &c->up, row, col, w_row);
        double up = true_dot(w_row, x, c->w.k, &up_magnitude);
        *tolerance =
            slope * *tolerance * fabs(up) + TOLERANCE * (fabs(silu) * up_magnitude + fabs(silu * up));
        *tolerance += 1e-30;
        v = silu * up;
    }
    if (c->bias)
        v += (double)c->bias[col];
    if (c->accumulate)
        v += 1.0;
    *tolerance += TOLERANCE * fabs(v);
    return v;
}

static bool check_values(const struct gemm_case *c, const float *y, struct checkkern_report *r)
{
    bool ok = true;
    double *x = malloc((size_t)c->w.k * sizeof(*x));
    float *w_row = malloc((size_t)c->w.k * sizeof(*w_row));
    for (int i = 0; ok && i < c->m; i++) {
        const float *row = y + (size_t)i * (size_t)c->ldy;
        true_operand(&c->op, i, c->mode, &c->w, c->x + (size_t)i * (size_t)c->w.k, x);
        for (int col = 0; ok && col < c->w.n; col++) {
            double tolerance, v = true_output(c, i, col, x, w_row, &tolerance);
            ok = checkkern_case(r, checkkern_near(r, (double)row[col], v, tolerance),
                                "m=%d n=%d k=%d gated=%d: y[%d,%d] = %g, expected %g +- %g", c->m, c->w.n,
                                c->w.k, c->gated, i, col, (double)row[col], v, tolerance);
        }
        for (int col = c->w.n; ok && col < c->ldy; col++)
            ok = checkkern_case(r, checkkern_is_poison(row[col]), "m=%d n=%d k=%d: wrote y[%d,%d]", c->m,
                                c->w.n, c->w.k, i, col);
    }
    free(x);
    free(w_row);
    return ok;
}

/* y: poison, but 1 where the product is added to it. */
static float *fresh_output(const struct gemm_case *c)
{
    float *y = arena_alloc(c->env->arena, (size_t)c->m * (size_t)c->ldy, sizeof(*y));
    for (int i = 0; i < c->m * c->ldy; i++)
        y[i] = c->accumulate && i % c->ldy < c->w.n ? 1.0f : checkkern_poison();
    return y;
}

static void run_case(const struct gemm_case *c, struct pool *pool, const struct gemm_job *job, int n_job)
{
    gemm_run_with(gemm_table_for(c->env->level), pool, c->env->arena, c->mode, job, n_job);
}

/* Fewer rows at a time, picked by index, and on the caller's thread only: the same bits. */
static bool check_invariance(const struct gemm_case *c, const float *y, uint64_t *seed,
                             struct checkkern_report *r)
{
    struct pool *single;
    if (pool_open(&single, 1, NULL))
        return checkkern_case(r, false, "no pool");
    bool ok = true;
    for (int first = 0, count; ok && first < c->m; first += count) {
        count = checkkern_int(seed, 1, first % 2 ? 3 : 11);
        count = count < c->m - first ? count : c->m - first;
        struct gemm_case part = *c;
        part.m = count;
        int32_t *rows = arena_alloc(c->env->arena, (size_t)count, sizeof(*rows));
        for (int i = 0; i < count; i++)
            rows[i] = first + count - 1 - i;
        float *z = fresh_output(&part);
        struct gemm_job job = case_job(&part, z);
        job.row = rows;
        run_case(c, single, &job, 1);
        for (int i = 0; i < count; i++) {
            const float *whole = y + (size_t)rows[i] * (size_t)c->ldy,
                        *alone = z + (size_t)i * (size_t)c->ldy;
            ok &= checkkern_case(r, !memcmp(whole, alone, (size_t)c->w.n * sizeof(*alone)),
                                 "n=%d k=%d: row %d of %d differs when %d are computed at once", c->w.n,
                                 c->w.k, rows[i], c->m, count);
        }
    }
    pool_close(single);
    return ok;
}

/* Strict products of rows where they lie have the bits of those that are copied. */
static bool check_in_place(const struct gemm_case *c, const float *y, struct checkkern_report *r)
{
    struct gemm_case here = *c;
    if (c->mode != COMPUTE_STRICT || !gemm_operand_floats(c->x, c->m, c->w.k, &here.op))
        return true;
    float *other = fresh_output(&here);
    struct gemm_job job = case_job(&here, other);
    run_case(&here, c->env->pool, &job, 1);
    bool same = true;
    for (int i = 0; i < c->m; i++)
        same &= !memcmp(y + i * c->ldy, other + i * c->ldy, (size_t)c->w.n * sizeof(*y));
    return checkkern_case(r, same, "m %d, n %d, k %d, rows where they lie", c->m, c->w.n, c->w.k);
}

static bool check_case(struct gemm_case *c, uint64_t *seed, struct checkkern_report *r)
{
    const struct gemm_table *table = gemm_table_for(c->env->level);
    c->x = checkkern_make_rows(c->env->arena, seed, c->m, c->w.k);
    c->ldy = c->w.n + checkkern_int(seed, 0, GUARD);
    gemm_prepare_with(table, c->env->pool, c->env->arena, c->mode, c->x, c->m, c->w.k, &c->op);
    float *y = fresh_output(c);
    struct gemm_job job = case_job(c, y);
    run_case(c, c->env->pool, &job, 1);
    return check_values(c, y, r) && check_in_place(c, y, r) && check_invariance(c, y, seed, r);
}

static void make_bias(struct gemm_case *c, uint64_t *seed)
{
    c->bias = checkkern_make_rows(c->env->arena, seed, 1, c->w.n);
}

static bool check_type(const struct checkkern_env *env, struct checkkern_report *r, enum weight_type type,
                       enum compute mode)
{
    uint64_t seed = env->seed;
    for (int round = 0; round < env->rounds && !r->failed; round++) {
        struct gemm_case c = {.env = env, .mode = mode};
        int n = checkkern_int(&seed, 1, 83), k = checkkern_int(&seed, 1, 210);
        if (round == 0)
            n = 96, k = 1024;
        if (type == WEIGHT_NVFP4)
            k = (k + 15) / 16 * 16;
        /* Every height of a tile once, more rows than a block has, then the many-row path. */
        c.m = round < 14 ? round + 1 : checkkern_int(&seed, 9, 70);
        if (round == 14)
            c.m = GEMM_BLOCK_ROW + 41;
        c.gated = round % 3 == 1;
        c.accumulate = round % 4 == 2;
        checkkern_make_weight(env->arena, &seed, type, n, k, &c.w);
        checkkern_make_weight(env->arena, &seed, type, n, k, &c.up);
        c.w.input_scale = 0.004f;
        if (!c.gated && round % 2)
            make_bias(&c, &seed);
        check_case(&c, &seed, r);
        arena_reset(env->arena);
    }
    return !r->failed;
}

#define CHECK_TYPE(name, type, mode)                                                        \
    bool checkkern_gemm_##name(const struct checkkern_env *env, struct checkkern_report *r) \
    {                                                                                       \
        return check_type(env, r, WEIGHT_##type, COMPUTE_##mode);                           \
    }
CHECK_TYPE(nvfp4_bf16, NVFP4, BF16)
CHECK_TYPE(nvfp4_strict, NVFP4, STRICT)
CHECK_TYPE(nvfp4_int8, NVFP4, INT8)
CHECK_TYPE(nvfp4_w4a4, NVFP4, W4A4)
CHECK_TYPE(fp8_bf16, FP8, BF16)
CHECK_TYPE(fp8_strict, FP8, STRICT)
CHECK_TYPE(bf16_bf16, BF16, BF16)
CHECK_TYPE(bf16_strict, BF16, STRICT)
CHECK_TYPE(bf16_int8, BF16, INT8)
CHECK_TYPE(f16_bf16, F16, BF16)
CHECK_TYPE(f16_strict, F16, STRICT)
CHECK_TYPE(f32_bf16, F32, BF16)
CHECK_TYPE(f32_strict, F32, STRICT)

/* Under 1 % relative error for int8 activations, outliers included; none of it from kernels but from
 * rounding. */
bool checkkern_gemm_int8_error(const struct checkkern_env *env, struct checkkern_report *r)
{
    enum { M = 4, N = 64, K = 512 };
    uint64_t seed = env->seed + 4;
    float *y[2];
    struct gemm_case c = {.env = env, .m = M, .ldy = N};
    checkkern_make_weight(env->arena, &seed, WEIGHT_NVFP4, N, K, &c.w);
    c.x = checkkern_make_rows(env->arena, &seed, M, K);
    for (int i = 0; i < 2; i++) {
        c.mode = i ? COMPUTE_INT8 : COMPUTE_STRICT;
        gemm_prepare_with(gemm_table_for(env->level), env->pool, env->arena, c.mode, c.x, M, K, &c.op);
        y[i] = fresh_output(&c);
        struct gemm_job job = case_job(&c, y[i]);
        run_case(&c, env->pool, &job, 1);
    }
    double error = 0.0, norm = 0.0;
    for (int i = 0; i < M * N; i++) {
        error += (double)((y[1][i] - y[0][i]) * (y[1][i] - y[0][i]));
        norm += (double)(y[0][i] * y[0][i]);
    }
    error = sqrt(error / norm);
    return checkkern_case(r, checkkern_near(r, error, 0.0, 0.01), "int8 differs from strict by %g", error);
}

/* Bit for bit, but one NaN is as good as another. */
static bool same_row(const float *a, const float *b, int n)
{
    for (int i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(*a)) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

/* Rows among the others with what kernels could take in different ways: no number, an infinite one (16-bit
 * integers make either NaN, int8 in blocks no finite number), numbers so small that they may vanish, and so
 * large that sums overflow. */
#define ROW_NAN      5
#define ROW_INFINITE 20
#define SPOILED_ROWS 48 /* at least */

static void spoil_rows(float *x, int k)
{
    for (int i = 0; i < k; i++) {
        x[33 * k + i] = ldexpf(x[33 * k + i], -90);
        x[34 * k + i] = ldexpf(x[34 * k + i], i % 32 < 16 ? -82 : 3);
        x[47 * k + i] = ldexpf(x[47 * k + i], i % 32 < 16 ? -20 : 118);
    }
    x[ROW_NAN * k + 3] = (float)NAN;
    x[ROW_INFINITE * k + k - 1] = -INFINITY;
}

/* Rows 0 .. m - 1 at once for every m up to 70: each as if it were alone. */
static bool check_row_counts(const struct gemm_case *whole, struct checkkern_report *r)
{
    struct gemm_case c = *whole;
    float *alone = fresh_output(&c);
    enum gemm_form form = gemm_form_for(gemm_table_for(c.env->level), c.w.type, c.mode);
    c.m = 1;
    for (int32_t i = 0; i < whole->m; i++) {
        struct gemm_job job = case_job(&c, alone + (size_t)i * (size_t)c.ldy);
        job.row = &i;
        run_case(&c, c.env->pool, &job, 1);
        bool lost = i == ROW_NAN || i == ROW_INFINITE;
        for (int col = 0; lost && (form == GEMM_I16 || form == GEMM_I8B) && col < c.w.n; col++)
            checkkern_case(r, form == GEMM_I16 ? isnan(job.y[col]) : !isfinite(job.y[col]),
                           "row %d, column %d is %g", i, col, (double)job.y[col]);
    }
    for (c.m = 1; c.m <= whole->m; c.m++) {
        float *y = fresh_output(&c);
        struct gemm_job job = case_job(&c, y);
        run_case(&c, c.env->pool, &job, 1);
        for (int i = 0; i < c.m; i++) {
            size_t at = (size_t)i * (size_t)c.ldy;
            checkkern_case(r, same_row(y + at, alone + at, c.w.n),
                           "%s %s gated=%d: row %d of %d differs alone", weight_type_name(c.w.type),
                           compute_name(c.mode), c.gated, i, c.m);
        }
    }
    return !r->failed;
}

/* Rows of one matrix, spoiled where there are many. */
static void check_rows_of(const struct checkkern_env *env, uint64_t *seed, enum weight_type type,
                          enum compute mode, bool gated, int m, int k, struct checkkern_report *r)
{
    enum { N = 40 }; /* three panels: those taken in halves share the middle one */
    struct gemm_case c = {.env = env, .m = m, .ldy = N, .gated = gated, .mode = mode};
    checkkern_make_weight(env->arena, seed, type, N, k, &c.w);
    checkkern_make_weight(env->arena, seed, type, N, k, &c.up);
    c.w.input_scale = 0.004f;
    float *x = checkkern_make_rows(env->arena, seed, m, k);
    if (m >= SPOILED_ROWS)
        spoil_rows(x, k);
    c.x = x;
    gemm_prepare_with(gemm_table_for(env->level), env->pool, env->arena, c.mode, c.x, m, k, &c.op);
    check_row_counts(&c, r);
    arena_reset(env->arena);
}

bool checkkern_gemm_rows(const struct checkkern_env *env, struct checkkern_report *r)
{
    enum { M = 70, K = 112 };            /* a block of four groups of NVFP4, and three more */
    enum { FEW = ROW_NAN, LONG = 4112 }; /* a panel that leaves no room for x in a first cache */
    uint64_t seed = env->seed + 5;
    for (int i = 0; i < 2 * WEIGHT_TYPE_COUNT * COMPUTE_COUNT && !r->failed; i++)
        check_rows_of(env, &seed, (enum weight_type)(i / 2 / COMPUTE_COUNT),
                      (enum compute)(i / 2 % COMPUTE_COUNT), i % 2, M, K, r);
    for (int i = 0; i < COMPUTE_COUNT && !r->failed; i++)
        check_rows_of(env, &seed, WEIGHT_NVFP4, (enum compute)i, false, FEW, LONG, r);
    return !r->failed;
}

/* Many jobs of different shapes, types and row counts, some empty, in one call: each as if it were alone. */
bool checkkern_gemm_grouped(const struct checkkern_env *env, struct checkkern_report *r)
{
    enum { N_JOB = 9 };
    uint64_t seed = env->seed + 1;
    for (int round = 0; round < env->rounds && !r->failed; round++) {
        enum compute mode = (enum compute)(round % COMPUTE_COUNT);
        int k = 16 * checkkern_int(&seed, 1, 12), m = checkkern_int(&seed, 1, 40);
        struct gemm_case c[N_JOB];
        struct gemm_job job[N_JOB], alone;
        float *y[N_JOB];
        const float *x = checkkern_make_rows(env->arena, &seed, m, k);
        struct operand op;
        gemm_prepare_with(gemm_table_for(env->level), env->pool, env->arena, mode, x, m, k, &op);
        for (int i = 0; i < N_JOB; i++) {
            c[i] = (struct gemm_case){.env = env, .mode = mode, .x = x, .op = op};
            c[i].m = i % 4 == 3 ? 0 : checkkern_int(&seed, 1, m);
            checkkern_make_weight(env->arena, &seed,
                                  i ? (enum weight_type)(i % WEIGHT_TYPE_COUNT) : WEIGHT_NVFP4,
                                  checkkern_int(&seed, 1, 70), k, &c[i].w);
            c[i].w.input_scale = i % 2 ? 0.004f : 0.0f;
            c[i].ldy = c[i].w.n;
            y[i] = fresh_output(&c[i]);
            job[i] = case_job(&c[i], y[i]);
        }
        run_case(&c[0], env->pool, job, N_JOB);
        for (int i = 0; i < N_JOB; i++) {
            float *z = fresh_output(&c[i]);
            alone = case_job(&c[i], z);
            run_case(&c[i], env->pool, &alone, 1);
            size_t bytes = (size_t)c[i].m * (size_t)c[i].ldy * sizeof(*z);
            checkkern_case(r, !memcmp(y[i], z, bytes), "job %d (%s, m=%d) differs when run alone", i,
                           weight_type_name(c[i].w.type), c[i].m);
        }
        arena_reset(env->arena);
    }
    return !r->failed;
}

/* Writing panels in pieces and reading them back gives the same bytes; padding rows are zero. */
bool checkkern_weight(const struct checkkern_env *env, struct checkkern_report *r)
{
    uint64_t seed = env->seed + 2;
    for (int round = 0; round < env->rounds * WEIGHT_TYPE_COUNT && !r->failed; round++) {
        enum weight_type type = (enum weight_type)(round % WEIGHT_TYPE_COUNT);
        int n = checkkern_int(&seed, 1, 70), k = 16 * checkkern_int(&seed, 1, 11);
        if (type != WEIGHT_NVFP4)
            k -= checkkern_int(&seed, 0, 15);
        size_t row_bytes = weight_row_bytes(type, k), n_scale = type == WEIGHT_NVFP4 ? (size_t)k / 16 : 0;
        size_t data_bytes = weight_data_bytes(type, n, k);
        uint8_t *rows = arena_alloc(env->arena, (size_t)n, row_bytes);
        uint8_t *scales = arena_alloc(env->arena, (size_t)n, n_scale + 1);
        for (size_t i = 0; i < (size_t)n * row_bytes; i++)
            rows[i] = (uint8_t)checkkern_random(&seed);
        for (size_t i = 0; i < (size_t)n * n_scale; i++)
            scales[i] = (uint8_t)checkkern_random(&seed) & 0x7f;
        struct weight w = {.type = type, .n = n, .k = k, .global_scale = 1.0f};
        w.data = arena_alloc(env->arena, data_bytes, 1);
        memset(w.data, 0xcc, data_bytes);
        int split = n > 16 ? checkkern_int(&seed, 0, (n - 1) / 16) * 16 : 0; /* second part first */
        weight_write(&w, split, n - split, rows + (size_t)split * row_bytes,
                     scales + (size_t)split * n_scale);
        weight_write(&w, 0, split, rows, scales);
        uint8_t *back = arena_alloc(env->arena, row_bytes, 1),
                *back_scale = arena_alloc(env->arena, n_scale, 1);
        for (int i = 0; i < n; i++) {
            weight_read(&w, i, back, back_scale);
            checkkern_case(r,
                           !memcmp(back, rows + (size_t)i * row_bytes, row_bytes) &&
                               !memcmp(back_scale, scales + (size_t)i * n_scale, n_scale),
                           "%s n=%d k=%d: row %d reads back differently", weight_type_name(type), n, k, i);
        }
        arena_reset(env->arena);
    }
    return !r->failed;
}
