/* Timings of the grouped product on the shapes of a 30B-A3B model, from memory: a call's weights are spread
 * over more than the last cache holds, and each repetition takes the next ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/checkkern.h"
#include "kernels/checkkern_gemm.h"
#include "kernels/gemm_tile.h"
#include "kernels/weight_layout.h"

#define SPREAD_BYTES ((size_t)192 << 20) /* of weights that one row count goes through */
#define TRIES        5
#define MAX_ROW      512
#define CALL_EXPERTS 8                  /* one token's, in a call */
#define CALL_BYTES   ((size_t)16 << 20) /* of weights in a call at most, as a slice of the roofline's read */

struct shape {
    int n, k;
    bool gated;
};

/* Experts of one shape that share their contents, so that making them is quick; addresses differ. */
struct experts {
    int n;
    struct weight *w, *up;
    uint8_t *data;
};

/* As weights have them, where the system allows; before anything is written there. */
static void want_huge_pages(uint8_t *p, size_t bytes)
{
    const size_t huge = (size_t)2 << 20, skip = huge - (uintptr_t)p % huge;
    if (bytes > skip + huge)
        madvise(p + skip, (bytes - skip) / huge * huge, MADV_HUGEPAGE);
}

static struct experts make_experts(const struct checkkern_env *env, enum weight_type type,
                                   const struct shape *s)
{
    uint64_t seed = env->seed;
    size_t bytes = weight_data_bytes(type, s->n, s->k), one = bytes * (s->gated ? 2 : 1);
    struct experts e = {.n = (int)(SPREAD_BYTES / one) + 1};
    struct weight first;
    checkkern_make_weight(env->arena, &seed, type, s->n, s->k, &first);
    e.w = arena_alloc(env->arena, (size_t)e.n, sizeof(*e.w));
    e.up = arena_alloc(env->arena, (size_t)e.n, sizeof(*e.up));
    e.data = arena_alloc(env->arena, (size_t)e.n, one);
    want_huge_pages(e.data, (size_t)e.n * one);
    for (int i = 0; i < e.n; i++) {
        e.w[i] = e.up[i] = first;
        e.w[i].data = e.data + (size_t)i * one;
        memcpy(e.w[i].data, first.data, bytes);
        e.up[i].data = e.w[i].data + (s->gated ? bytes : 0);
        if (s->gated)
            memcpy(e.up[i].data, first.data, bytes);
    }
    return e;
}

struct timing {
    const struct checkkern_env *env;
    enum compute mode;
    const struct experts *e;
    const struct operand *op;
    const struct shape *s;
    struct arena scratch;
    float *y; /* (CALL_EXPERTS, MAX_ROW, n) */
};

/* One call: experts first .. first + n - 1 with m rows each. */
static double time_call(struct timing *t, int m, int first, int n)
{
    struct gemm_job job[CALL_EXPERTS];
    size_t rows = (size_t)m * (size_t)t->s->n;
    for (int i = 0; i < n; i++)
        job[i] = (struct gemm_job){.w = &t->e->w[first + i],
                                   .up = t->s->gated ? &t->e->up[first + i] : NULL,
                                   .x = t->op,
                                   .m = m,
                                   .y = t->y + (size_t)i * rows,
                                   .ldy = t->s->n};
    arena_reset(&t->scratch);
    uint64_t start = clock_ns();
    gemm_run_with(gemm_table_for(t->env->level), t->env->pool, &t->scratch, t->mode, job, n);
    return (double)(clock_ns() - start) * 1e-9;
}

/* The best call of several rounds over all experts: a call is short, so that one among many goes undisturbed.
 */
static double best_call(struct timing *t, int m, int n_call)
{
    double best = 1e30;
    int tries = t->env->level == CPU_SCALAR ? 1 : TRIES, n_expert = m <= 8 ? t->e->n : 4 * n_call;
    for (int i = 0; i < tries; i++)
        for (int first = 0; first + n_call <= n_expert && first + n_call <= t->e->n; first += n_call) {
            double seconds = time_call(t, m, first, n_call);
            best = seconds < best ? seconds : best;
        }
    return best;
}

/* The arithmetic that such a product goes through at this level. */
static enum checkkern_unit unit_of(enum cpu_level level, enum weight_type type, enum compute mode)
{
    const struct gemm_table *table = gemm_table_for(level);
    switch (gemm_form_for(table, type, mode)) {
    case GEMM_BF16:
        return table->block[type][GEMM_BF16].fn ? CHECKKERN_TILE : CHECKKERN_BF16;
    case GEMM_I16:
        return CHECKKERN_BF16;
    case GEMM_I8:
    case GEMM_I8B:
        return CHECKKERN_I8;
    default:
        return CHECKKERN_F32;
    }
}

static void bench_shape(const struct checkkern_env *env, struct checkkern_bench *out, enum weight_type type,
                        enum compute mode, const struct shape *s)
{
    static const int rows[] = {1, 2, 4, 6, 8, 12, 16, 32, 64, 128, MAX_ROW};
    uint64_t seed = env->seed;
    struct experts e = make_experts(env, type, s);
    const float *x = checkkern_make_rows(env->arena, &seed, MAX_ROW, s->k);
    struct operand op;
    gemm_prepare_with(gemm_table_for(env->level), env->pool, env->arena, mode, x, MAX_ROW, s->k, &op);
    struct timing t = {.env = env, .mode = mode, .e = &e, .op = &op, .s = s};
    arena_init(&t.scratch, 1 << 20);
    t.y = arena_alloc(env->arena, (size_t)CALL_EXPERTS * MAX_ROW * (size_t)s->n, sizeof(*t.y));
    enum checkkern_unit unit = unit_of(env->level, type, mode);
    for (size_t r = 0; r < COUNT_OF(rows); r++) {
        int m = rows[r], n_call = m <= 8 ? CALL_EXPERTS : m <= 32 ? 2 : 1;
        int fit = (int)(CALL_BYTES / (weight_data_bytes(type, s->n, s->k) * (s->gated ? 2 : 1)));
        n_call = n_call <= fit ? n_call : fit > 0 ? fit : 1;
        if (env->level == CPU_SCALAR && m > 1)
            break; /* correct, not fast: one figure says so */
        double best = best_call(&t, m, n_call), matrices = n_call * (s->gated ? 2.0 : 1.0);
        char name[64];
        snprintf(name, sizeof(name), "%s %s n=%d k=%d%s m=%d", weight_type_name(type), compute_name(mode),
                 s->n, s->k, s->gated ? " gate+up" : "", m);
        checkkern_add(out, name, best, matrices * (double)weight_data_bytes(type, s->n, s->k),
                      matrices * 2.0 * s->n * (double)s->k * m, unit);
    }
    arena_free(&t.scratch);
    arena_reset(env->arena);
}

static void bench_experts(const struct checkkern_env *env, struct checkkern_bench *out, enum compute mode)
{
    static const struct shape shape[] = {{768, 2048, true}, {2048, 768, false}};
    for (size_t i = 0; i < COUNT_OF(shape); i++)
        bench_shape(env, out, WEIGHT_NVFP4, mode, &shape[i]);
}

static void bench_head(const struct checkkern_env *env, struct checkkern_bench *out, enum weight_type type,
                       enum compute mode)
{
    static const struct shape shape = {4096, 2048, false};
    bench_shape(env, out, type, mode, &shape);
}

#define BENCH(name, call)                                                                          \
    void checkkern_bench_gemm_##name(const struct checkkern_env *env, struct checkkern_bench *out) \
    {                                                                                              \
        call;                                                                                      \
    }
BENCH(nvfp4_bf16, bench_experts(env, out, COMPUTE_BF16))
BENCH(nvfp4_strict, bench_experts(env, out, COMPUTE_STRICT))
BENCH(nvfp4_int8, bench_experts(env, out, COMPUTE_INT8))
BENCH(fp8_bf16, bench_head(env, out, WEIGHT_FP8, COMPUTE_BF16))
BENCH(bf16_bf16, bench_head(env, out, WEIGHT_BF16, COMPUTE_BF16))
BENCH(f16_bf16, bench_head(env, out, WEIGHT_F16, COMPUTE_BF16))
BENCH(f32_strict, bench_head(env, out, WEIGHT_F32, COMPUTE_STRICT))

/* Permuting on write: bytes in, as many out. */
void checkkern_bench_weight(const struct checkkern_env *env, struct checkkern_bench *out)
{
    enum { N = 4096, K = 2048 };
    for (int type = 0; type < WEIGHT_TYPE_COUNT; type++) {
        enum weight_type t = (enum weight_type)type;
        size_t row_bytes = weight_row_bytes(t, K);
        uint8_t *rows = arena_calloc(env->arena, N, row_bytes), *scales = arena_calloc(env->arena, N, K / 16);
        struct weight w = {.type = t, .n = N, .k = K};
        w.data = arena_calloc(env->arena, weight_data_bytes(t, N, K), 1);
        double best = 1e30;
        for (int i = 0; i < TRIES; i++) {
            uint64_t start = clock_ns();
            weight_write(&w, 0, N, rows, scales);
            double seconds = (double)(clock_ns() - start) * 1e-9;
            best = seconds < best ? seconds : best;
        }
        char name[64];
        snprintf(name, sizeof(name), "%s write, one thread", weight_type_name(t));
        checkkern_add(out, name, best, 2.0 * N * (double)row_bytes, 0.0, CHECKKERN_F32);
        arena_reset(env->arena);
    }
}

void checkkern_bench_prepare(const struct checkkern_env *env, struct checkkern_bench *out)
{
    enum { K = 2048 };
    uint64_t seed = env->seed;
    const float *x = checkkern_make_rows(env->arena, &seed, MAX_ROW, K);
    struct arena arena;
    arena_init(&arena, 16 << 20);
    for (int mode = 0; mode < COMPUTE_W4A4; mode++) {
        double best = 1e30;
        for (int i = 0; i < TRIES; i++) {
            struct operand op;
            uint64_t start = clock_ns();
            gemm_prepare_with(gemm_table_for(env->level), env->pool, &arena, (enum compute)mode, x, MAX_ROW,
                              K, &op);
            double seconds = (double)(clock_ns() - start) * 1e-9;
            best = seconds < best ? seconds : best;
            arena_reset(&arena);
        }
        char name[64];
        snprintf(name, sizeof(name), "prepare %s m=%d k=%d", compute_name((enum compute)mode), MAX_ROW, K);
        checkkern_add(out, name, best, 4.0 * MAX_ROW * K, 0.0, CHECKKERN_F32);
    }
    arena_free(&arena);
    arena_reset(env->arena);
}
