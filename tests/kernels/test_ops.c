/* Every operator of every CPU level that this machine has, against float64 on odd shapes; and the promise
 * that a token's result does not depend on what it is batched with, nor on threads. */
#include "test.h"

#include <math.h>

#include "base/pool.h"
#include "fp4/fp4.h"
#include "kernels/kv.h"
#include "kernels/ops.h"

static struct pool *pools[3]; /* 1, 2 and 5 threads: 5 is more than many machines have cores */

static int open_pools(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 5};
    for (int i = 0; i < 3; i++)
        if (pool_open(&pools[i], threads[i], NULL) != NYB_OK)
            return -1;
    return 0;
}

static int close_pools(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        pool_close(pools[i]);
    return 0;
}

/* (n) floats in [-scale, scale), on the heap: a read past the end is seen by ASan */
static float *random_floats(uint64_t *seed, size_t n, float scale)
{
    float *x = malloc((n ? n : 1) * sizeof(float));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * test_random_float(seed);
    return x;
}

static float *poisoned_floats(size_t n)
{
    float *x = malloc((n ? n : 1) * sizeof(float));
    assert_non_null(x);
    memset(x, 0xff, n * sizeof(float)); /* NaN */
    return x;
}

static void assert_close(const char *what, int level, float got, double want, double tolerance)
{
    if (!(fabs((double)got - want) <= tolerance))
        fail_msg("%s, %s: got %.9g, expected %.9g within %g", what, cpu_level_name((enum cpu_level)level),
                 (double)got, want, tolerance);
}

#define FOR_EACH_LEVEL(level) for (int level = 0; level <= (int)cpu_detect(); level++)

/* ---- rmsnorm ------------------------------------------------------------------------------------- */

static void check_norm(int level, int m, int n, bool with_residual)
{
    uint64_t seed = (uint64_t)(n * 3 + m);
    size_t count = (size_t)m * (size_t)n;
    float *x = random_floats(&seed, count, 3), *w = random_floats(&seed, (size_t)n, 1);
    float *r0 = random_floats(&seed, count, 2), *first = NULL;
    for (int p = 0; p < 3; p++) {
        float *y = poisoned_floats(count), *r = malloc(count * sizeof(float));
        memcpy(r, r0, count * sizeof(float));
        struct norm_args a = {
            .x = x, .weight = w, .residual = with_residual ? r : NULL, .y = y, .m = m, .n = n, .eps = 1e-5f};
        kernels_at((enum cpu_level)level)->rmsnorm(pools[p], &a);
        for (int t = 0; t < m; t++) {
            const float *row = (with_residual ? r : x) + (size_t)t * (size_t)n;
            double sum = 0;
            for (int i = 0; i < n; i++) {
                size_t at = (size_t)t * (size_t)n + (size_t)i;
                assert_true(row[i] == (with_residual ? r0[at] + x[at] : x[at]));
                sum += (double)row[i] * (double)row[i];
            }
            double inverse = 1 / sqrt(sum / n + (double)1e-5f);
            for (int i = 0; i < n; i++)
                assert_close("rmsnorm", level, y[(size_t)t * (size_t)n + (size_t)i],
                             (double)row[i] * inverse * (double)w[i], 2e-6);
        }
        if (first)
            assert_memory_equal(first, y, count * sizeof(float));
        else
            first = y;
        if (first != y)
            free(y);
        free(r);
    }
    free(first);
    free(x);
    free(w);
    free(r0);
}

static void test_norm_matches_double(void **state)
{
    (void)state;
    static const int sizes[] = {1, 7, 16, 33, 64, 100, 256, 2048, 2051};
    FOR_EACH_LEVEL(level)
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        check_norm(level, 1, sizes[s], false);
        check_norm(level, 5, sizes[s], true);
    }
}

/* ---- combine ------------------------------------------------------------------------------------- */

static void check_combine(int level, int m, int n, int top_k, bool with_shared)
{
    uint64_t seed = (uint64_t)(n * 7 + m);
    size_t rows = (size_t)(m * top_k), width = (size_t)n, count = (size_t)m * width;
    float *part = random_floats(&seed, rows * width, 2), *w = random_floats(&seed, rows, 1);
    float *shared = random_floats(&seed, count, 1);
    int32_t *slot = malloc(rows * sizeof(*slot));
    for (size_t i = 0; i < rows; i++)
        slot[i] = (int32_t)((i * 5 + 3) % rows);
    for (int p = 0; p < 3; p++) {
        float *y = poisoned_floats(count);
        struct combine_args a = {part, slot, w, with_shared ? shared : NULL, y, m, n, top_k};
        kernels_at((enum cpu_level)level)->combine(pools[p], &a);
        for (size_t t = 0; t < (size_t)m; t++)
            for (size_t i = 0; i < width; i++) {
                double want = with_shared ? (double)shared[t * width + i] : 0;
                for (size_t s = 0; s < (size_t)top_k; s++) {
                    size_t at = t * (size_t)top_k + s;
                    want += (double)w[at] * (double)part[(size_t)slot[at] * width + i];
                }
                assert_close("combine", level, y[t * width + i], want, 4e-6);
            }
        free(y);
    }
    free(part);
    free(w);
    free(shared);
    free(slot);
}

static void test_combine_matches_double(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    {
        check_combine(level, 1, 2048, 8, false);
        check_combine(level, 3, 1037, 4, true);
        check_combine(level, 9, 17, 1, true);
        check_combine(level, 2, 5, 6, false);
    }
}

/* ---- router -------------------------------------------------------------------------------------- */

/* Scores by hand: softmax or sigmoid in float64. */
static void router_scores(const struct router_args *a, const float *logit, double *score)
{
    double sum = 0;
    for (int e = 0; e < a->n_expert; e++) {
        score[e] = a->score == ROUTER_SIGMOID ? 1 / (1 + exp(-(double)logit[e])) : exp((double)logit[e]);
        sum += score[e];
    }
    if (a->score == ROUTER_SOFTMAX)
        for (int e = 0; e < a->n_expert; e++)
            score[e] /= sum;
}

static int compare_descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Groups by sorting, a way of its own: the two best of each, then the best groups, then 0 for the rest. */
static void router_mask(const struct router_args *a, double *choice)
{
    int size = a->n_expert / a->n_group;
    double total[64], ranked[64], sorted[256];
    for (int g = 0; g < a->n_group; g++) {
        memcpy(sorted, choice + g * size, (size_t)size * sizeof(double));
        qsort(sorted, (size_t)size, sizeof(double), compare_descending);
        ranked[g] = total[g] = sorted[0] + (size > 1 ? sorted[1] : 0);
    }
    qsort(ranked, (size_t)a->n_group, sizeof(double), compare_descending);
    for (int e = 0; e < a->n_expert; e++)
        if (total[e / size] < ranked[a->top_group - 1])
            choice[e] = 0;
}

static void check_router_row(int level, const struct router_args *a, int row)
{
    double score[256], choice[256], sorted[256], sum = 0;
    const int32_t *expert = a->expert + row * a->top_k;
    const float *weight = a->weight + row * a->top_k;
    router_scores(a, a->logits + row * a->n_expert, score);
    for (int e = 0; e < a->n_expert; e++)
        choice[e] = score[e] + (a->bias ? (double)a->bias[e] : 0);
    if (a->n_group > 1)
        router_mask(a, choice);
    memcpy(sorted, choice, sizeof(sorted));
    qsort(sorted, (size_t)a->n_expert, sizeof(double), compare_descending);
    for (int i = 0; i < a->top_k; i++) {
        assert_in_range(expert[i], 0, a->n_expert - 1);
        for (int j = 0; j < i; j++)
            assert_int_not_equal(expert[i], expert[j]);
        assert_close("router choice", level, (float)choice[expert[i]], sorted[i], 1e-6);
        sum += score[expert[i]];
    }
    double by = a->softmax_topk ? sum
                : !a->normalize ? 1
                : a->norm_add   ? sum + (double)a->norm_min
                                : fmax(sum, (double)a->norm_min);
    for (int i = 0; i < a->top_k; i++)
        assert_close("router weight", level, weight[i], score[expert[i]] / by * (double)a->scaling, 2e-6);
}

static void check_router(int level, struct router_args a, bool with_bias)
{
    uint64_t seed = (uint64_t)(a.n_expert + a.top_k);
    float *logits = random_floats(&seed, (size_t)(a.m * a.n_expert), 4);
    float *bias = random_floats(&seed, (size_t)a.n_expert, 0.3f);
    for (int p = 0; p < 3; p++) {
        a.logits = logits;
        a.bias = with_bias ? bias : NULL;
        a.weight = poisoned_floats((size_t)(a.m * a.top_k));
        a.expert = malloc((size_t)(a.m * a.top_k) * sizeof(int32_t));
        memset(a.expert, 0xff, (size_t)(a.m * a.top_k) * sizeof(int32_t));
        kernels_at((enum cpu_level)level)->router(pools[p], &a);
        for (int row = 0; row < a.m; row++)
            check_router_row(level, &a, row);
        free(a.weight);
        free(a.expert);
    }
    free(logits);
    free(bias);
}

static void test_router_matches_double(void **state)
{
    (void)state;
    struct router_args qwen = {
        .m = 33, .n_expert = 128, .top_k = 8, .n_group = 1, .normalize = true, .scaling = 1};
    struct router_args plain = {.m = 3, .n_expert = 13, .top_k = 5, .n_group = 1, .scaling = 1};
    struct router_args mixtral = {
        .m = 5, .n_expert = 8, .top_k = 2, .n_group = 1, .softmax_topk = true, .scaling = 1};
    struct router_args ernie = {
        .m = 9, .n_expert = 64, .top_k = 6, .n_group = 1, .normalize = true, .norm_min = 0.5f, .scaling = 1};
    struct router_args glm = {.m = 17,
                              .n_expert = 128,
                              .top_k = 8,
                              .n_group = 1,
                              .top_group = 1,
                              .score = ROUTER_SIGMOID,
                              .normalize = true,
                              .norm_add = true,
                              .norm_min = 1e-20f,
                              .scaling = 2.5f};
    struct router_args groups = glm;
    groups.n_expert = 48;
    groups.n_group = 8;
    groups.top_group = 3;
    FOR_EACH_LEVEL(level)
    {
        check_router(level, qwen, false);
        check_router(level, plain, true);
        check_router(level, mixtral, false);
        check_router(level, ernie, true);
        check_router(level, glm, true);
        check_router(level, groups, true);
        check_router(level, groups, false);
    }
}

static void test_router_ties_go_to_the_lowest_index(void **state)
{
    (void)state;
    float logits[] = {1, 2, 2, 0, 2, 1, 2, 0};
    float weight[3];
    int32_t expert[3];
    struct router_args a = {.logits = logits,
                            .m = 1,
                            .n_expert = 8,
                            .top_k = 3,
                            .n_group = 1,
                            .normalize = true,
                            .scaling = 1,
                            .expert = expert,
                            .weight = weight};
    FOR_EACH_LEVEL(level)
    {
        kernels_at((enum cpu_level)level)->router(pools[0], &a);
        assert_int_equal(expert[0], 1);
        assert_int_equal(expert[1], 2);
        assert_int_equal(expert[2], 4);
        assert_close("tied weight", level, weight[2], 1.0 / 3, 1e-7);
    }
}

/* Masked groups compete with 0: with negative biases everywhere they win. transformers does the same. */
static void test_router_masked_groups_count_as_zero(void **state)
{
    (void)state;
    float logits[] = {0, 0, 0, 0}, bias[] = {-0.9f, -0.8f, -0.6f, -0.7f}, weight[2];
    int32_t expert[2];
    struct router_args a = {.logits = logits,
                            .bias = bias,
                            .m = 1,
                            .n_expert = 4,
                            .top_k = 2,
                            .n_group = 2,
                            .top_group = 1,
                            .score = ROUTER_SIGMOID,
                            .scaling = 1,
                            .expert = expert,
                            .weight = weight};
    FOR_EACH_LEVEL(level)
    {
        kernels_at((enum cpu_level)level)->router(pools[0], &a);
        assert_int_equal(expert[0], 0);
        assert_int_equal(expert[1], 1);
    }
}

static void test_router_survives_nan_and_infinity(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    FOR_EACH_LEVEL(level)
    for (int kind = 0; kind < 3; kind++)
        for (int all = 0; all < 2; all++)
            for (int variant = 0; variant < 3; variant++) {
                float logits[24] = {0}, weight[6];
                int32_t expert[6];
                for (int e = 0; e < 24; e += all ? 1 : 7)
                    logits[e] = bad[kind];
                struct router_args a = {.logits = logits,
                                        .m = 1,
                                        .n_expert = 24,
                                        .top_k = 6,
                                        .n_group = variant == 2 ? 4 : 1,
                                        .top_group = 2,
                                        .score = variant == 2 ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                                        .softmax_topk = variant == 1,
                                        .normalize = true,
                                        .scaling = 1,
                                        .expert = expert,
                                        .weight = weight};
                memset(expert, 0xff, sizeof(expert));
                kernels_at((enum cpu_level)level)->router(pools[0], &a);
                for (int i = 0; i < 6; i++) {
                    assert_in_range(expert[i], 0, 23);
                    for (int j = 0; j < i; j++)
                        assert_int_not_equal(expert[i], expert[j]);
                }
            }
}

/* ---- kv cache ------------------------------------------------------------------------------------ */

static void test_kv_every_element_has_its_own_place(void **state)
{
    (void)state;
    for (int type = KV_F32; type <= KV_FP8; type++)
        for (int d = 8; d <= 264; d += 8) {
            size_t bytes = kv_head_bytes((enum kv_type)type, d), size = type == KV_F32    ? 4
                                                                        : type == KV_BF16 ? 2
                                                                                          : 1;
            size_t pad = (size_t)kv_pad((enum kv_type)type, d);
            assert_int_equal(bytes % 64, 0);
            assert_int_equal(kv_block_bytes((enum kv_type)type, 3, d), 3 * bytes);
            for (int value = 0; value < 2; value++) {
                uint8_t *seen = calloc(bytes, 1);
                for (size_t i = 0; i < (size_t)d; i++)
                    for (size_t j = 0; j < KV_BLOCK; j++) {
                        size_t at = value ? kv_value_index((enum kv_type)type, pad, i, j)
                                          : kv_key_index((enum kv_type)type, i, j);
                        assert_true(at < bytes / size);
                        assert_int_equal(seen[at]++, 0);
                    }
                free(seen);
            }
        }
}

static void test_kv_load_returns_what_was_stored(void **state)
{
    (void)state;
    enum { D = 24, HEADS = 2, BLOCKS = 3 };
    for (int type = KV_F32; type <= KV_FP8; type++) {
        size_t bytes = kv_block_bytes((enum kv_type)type, HEADS, D) * BLOCKS;
        struct kv_layer kv = {(enum kv_type)type, malloc(bytes), malloc(bytes), BLOCKS, HEADS, D, 0.5f, 2.0f};
        memset(kv.k, 0xff, bytes);
        memset(kv.v, 0xff, bytes);
        for (int pass = 0; pass < 2; pass++) { /* store everything, then look at everything */
            uint64_t seed = 9;
            for (int slot = 0; slot < BLOCKS * KV_BLOCK; slot++)
                for (int h = 0; h < HEADS; h++) {
                    float *k = random_floats(&seed, D, 4), *v = random_floats(&seed, D, 4), gk[D], gv[D];
                    k[3] = 1e6f;
                    if (!pass)
                        kv_store(&kv, slot, h, k, v);
                    else
                        kv_load(&kv, slot, h, gk, gv);
                    for (int i = 0; pass && i < D; i++) {
                        float want_k = type == KV_F32 ? k[i]
                                       : type == KV_BF16
                                           ? bf16_to_float(bf16_from_float(k[i]))
                                           : 0.5f * fp4_e4m3_value[fp4_e4m3_from_float(k[i] / 0.5f)];
                        float want_v = type == KV_F32 ? v[i]
                                       : type == KV_BF16
                                           ? bf16_to_float(bf16_from_float(v[i]))
                                           : 2.0f * fp4_e4m3_value[fp4_e4m3_from_float(v[i] / 2.0f)];
                        assert_true(gk[i] == want_k && gv[i] == want_v);
                    }
                    free(k);
                    free(v);
                }
        }
        free(kv.k);
        free(kv.v);
    }
}

/* ---- qkv and attention --------------------------------------------------------------------------- */

struct shape {
    enum kv_type type;
    int n_head, n_kv_head, head_dim, rotary_dim;
    enum rope_style style;
    bool norm;
    int n_seq;
    int len[4]; /* tokens of each sequence */
};

/* Sequences with scattered blocks, their inputs, and what comes out for every token. */
struct world {
    const struct shape *s;
    struct kv_layer kv;
    int max_len, n_block_max;
    int32_t *table;   /* (n_seq, n_block_max)                  */
    float *q, *k, *v; /* (n_seq, max_len, heads * head_dim)    */
    float *cosine, *sine, *q_norm, *k_norm;
    float *rotated, *y; /* like q: the query used, the result    */
};

static void world_open(struct world *w, const struct shape *s)
{
    *w = (struct world){.s = s};
    uint64_t seed = (uint64_t)(s->n_head * 100 + s->head_dim);
    for (int i = 0; i < s->n_seq; i++)
        w->max_len = s->len[i] > w->max_len ? s->len[i] : w->max_len;
    w->n_block_max = (w->max_len + KV_BLOCK - 1) / KV_BLOCK;
    int n_block = w->n_block_max * s->n_seq + 3;
    size_t bytes = kv_block_bytes(s->type, s->n_kv_head, s->head_dim) * (size_t)n_block;
    w->kv = (struct kv_layer){s->type,
                              aligned_alloc(64, bytes),
                              aligned_alloc(64, bytes),
                              n_block,
                              s->n_kv_head,
                              s->head_dim,
                              0.02f,
                              0.03f};
    w->table = malloc((size_t)(s->n_seq * w->n_block_max) * sizeof(int32_t));
    for (int i = 0; i < s->n_seq * w->n_block_max; i++) { /* blocks from the end, so that order shows */
        int used = (s->len[i / w->n_block_max] + KV_BLOCK - 1) / KV_BLOCK;
        w->table[i] = i % w->n_block_max < used ? n_block - 1 - i : -1;
    }
    size_t tok = (size_t)(s->n_seq * w->max_len), d = (size_t)s->head_dim, half = (size_t)s->rotary_dim / 2;
    w->q = random_floats(&seed, tok * (size_t)s->n_head * d, 2);
    w->k = random_floats(&seed, tok * (size_t)s->n_kv_head * d, 2);
    w->v = random_floats(&seed, tok * (size_t)s->n_kv_head * d, 2);
    w->q_norm = random_floats(&seed, d, 1.5f);
    w->k_norm = random_floats(&seed, d, 1.5f);
    w->cosine = malloc((size_t)w->max_len * half * sizeof(float) + 4);
    w->sine = malloc((size_t)w->max_len * half * sizeof(float) + 4);
    for (size_t p = 0; p < (size_t)w->max_len; p++)
        for (size_t i = 0; i < half; i++) {
            double angle = (double)p * pow(10000, -(double)i / (double)half);
            w->cosine[p * half + i] = (float)cos(angle);
            w->sine[p * half + i] = (float)sin(angle);
        }
    w->rotated = poisoned_floats(tok * (size_t)s->n_head * d);
    w->y = poisoned_floats(tok * (size_t)s->n_head * d);
}

static void world_close(struct world *w)
{
    free(w->kv.k);
    free(w->kv.v);
    free(w->table);
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->q_norm);
    free(w->k_norm);
    free(w->cosine);
    free(w->sine);
    free(w->rotated);
    free(w->y);
}

/* One step: tokens [from[s], to[s]) of each sequence that has any. */
static void world_step(struct world *w, int level, struct pool *pool, struct arena *arena, const int *from,
                       const int *to)
{
    const struct shape *s = w->s;
    int n_tok = 0, n_seq = 0;
    int32_t start[5] = {0};
    for (int i = 0; i < s->n_seq; i++)
        n_tok += to[i] - from[i];
    int32_t *pos = malloc((size_t)n_tok * 4), *slot = malloc((size_t)n_tok * 4);
    int32_t *table = malloc((size_t)(s->n_seq * w->n_block_max) * 4);
    size_t nq = (size_t)(s->n_head * s->head_dim), nk = (size_t)(s->n_kv_head * s->head_dim);
    float *q = malloc((size_t)n_tok * nq * 4), *k = malloc((size_t)n_tok * nk * 4);
    float *v = malloc((size_t)n_tok * nk * 4), *y = poisoned_floats((size_t)n_tok * nq);
    size_t t = 0;
    for (int i = 0; i < s->n_seq; i++) {
        if (from[i] == to[i])
            continue;
        memcpy(table + n_seq * w->n_block_max, w->table + i * w->n_block_max, (size_t)w->n_block_max * 4);
        for (int p = from[i]; p < to[i]; p++, t++) {
            size_t at = (size_t)(i * w->max_len + p);
            pos[t] = p;
            slot[t] = w->table[i * w->n_block_max + p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK;
            memcpy(q + t * nq, w->q + at * nq, nq * 4);
            memcpy(k + t * nk, w->k + at * nk, nk * 4);
            memcpy(v + t * nk, w->v + at * nk, nk * 4);
        }
        start[++n_seq] = (int32_t)t;
    }
    const struct kernels *kernels = kernels_at((enum cpu_level)level);
    struct qkv_args qa = {q,
                          k,
                          v,
                          s->norm ? w->q_norm : NULL,
                          s->norm ? w->k_norm : NULL,
                          1e-6f,
                          w->cosine,
                          w->sine,
                          s->style,
                          s->rotary_dim,
                          s->n_head,
                          s->n_kv_head,
                          s->head_dim,
                          n_tok,
                          pos,
                          slot,
                          &w->kv};
    kernels->qkv(pool, &qa);
    struct batch b = {.n_seq = n_seq,
                      .n_tok = n_tok,
                      .n_block_max = w->n_block_max,
                      .pos = pos,
                      .slot = slot,
                      .seq_start = start,
                      .block_table = table};
    struct attention_args aa = {q, y, &w->kv, &b, s->n_head, 1 / sqrtf((float)s->head_dim), false};
    kernels->attention(pool, arena, &aa);
    arena_reset(arena);
    t = 0;
    for (int i = 0; i < s->n_seq; i++)
        for (int p = from[i]; p < to[i]; p++, t++) {
            size_t at = (size_t)(i * w->max_len + p);
            memcpy(w->rotated + at * nq, q + t * nq, nq * 4);
            memcpy(w->y + at * nq, y + t * nq, nq * 4);
        }
    free(pos);
    free(slot);
    free(table);
    free(q);
    free(k);
    free(v);
    free(y);
}

/* All tokens in chunks of at most `chunk` (0: random sizes), the sequences side by side or one by one. */
static void world_run(struct world *w, int level, struct pool *pool, int chunk, bool together)
{
    const struct shape *s = w->s;
    struct arena arena;
    arena_init(&arena, 1 << 16);
    size_t bytes = kv_block_bytes(s->type, s->n_kv_head, s->head_dim) * (size_t)w->kv.n_block;
    memset(w->kv.k, 0xff, bytes); /* NaN in all three formats */
    memset(w->kv.v, 0xff, bytes);
    memset(w->y, 0xff, (size_t)(s->n_seq * w->max_len * s->n_head * s->head_dim) * 4);
    uint64_t seed = 77;
    int done[4] = {0}, from[4], to[4];
    for (int active = 0; active < s->n_seq;) {
        bool any = false;
        for (int i = 0; i < s->n_seq; i++) {
            from[i] = to[i] = done[i];
            if (!together && i != active)
                continue;
            int n = chunk ? chunk : (int)(test_random(&seed) % 90);
            to[i] = done[i] + n < s->len[i] ? done[i] + n : s->len[i];
            any |= to[i] > from[i];
            done[i] = to[i];
        }
        if (any)
            world_step(w, level, pool, &arena, from, to);
        while (active < s->n_seq && done[active] == s->len[active])
            active++;
    }
    arena_free(&arena);
}

/* The result of one token and head, from the cache as it is, in float64; also the largest |v|. */
static void attention_double(const struct world *w, int seq, int p, int head, double *want)
{
    const struct shape *s = w->s;
    size_t d = (size_t)s->head_dim;
    const float *q = w->rotated + ((size_t)(seq * w->max_len + p) * (size_t)s->n_head + (size_t)head) * d;
    double *score = malloc((size_t)(p + 1) * sizeof(double)), max = -INFINITY, sum = 0;
    float k[KV_HEAD_DIM_MAX], v[KV_HEAD_DIM_MAX];
    int kv_head = head / (s->n_head / s->n_kv_head);
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j <= p; j++) {
            int32_t block = w->table[seq * w->n_block_max + j / KV_BLOCK];
            kv_load(&w->kv, block * KV_BLOCK + j % KV_BLOCK, kv_head, k, v);
            if (pass == 0) {
                score[j] = 0;
                for (size_t i = 0; i < d; i++)
                    score[j] += (double)q[i] * (double)k[i] / sqrt((double)d);
                max = fmax(max, score[j]);
                continue;
            }
            for (size_t i = 0; j == 0 && i < d; i++)
                want[i] = 0;
            double e = exp(score[j] - max);
            sum += e;
            for (size_t i = 0; i < d; i++)
                want[i] += e * (double)v[i];
        }
    for (size_t i = 0; i < d; i++)
        want[i] /= sum;
    free(score);
}

static void check_attention_double(const struct world *w, int level)
{
    const struct shape *s = w->s;
    /* |v| <= 2. bf16 caches: the probabilities may be rounded to bf16, 2^-9 each. */
    double tolerance = s->type == KV_F32 ? 4e-6 : 6e-3, want[KV_HEAD_DIM_MAX];
    for (int seq = 0; seq < s->n_seq; seq++)
        for (int p = 0; p < s->len[seq]; p += p < 40 || p > s->len[seq] - 4 ? 1 : 61)
            for (int head = 0; head<s->n_head; head += s->n_head> 8 ? 5 : 1) {
                attention_double(w, seq, p, head, want);
                const float *y = w->y + ((size_t)(seq * w->max_len + p) * (size_t)s->n_head + (size_t)head) *
                                            (size_t)s->head_dim;
                for (int i = 0; i < s->head_dim; i++)
                    assert_close("attention", level, y[i], want[i], tolerance);
            }
}

static const struct shape shapes[] = {
    {KV_F32, 4, 2, 32, 32, ROPE_HALF, true, 3, {70, 1, 33}},
    {KV_BF16, 4, 2, 32, 32, ROPE_HALF, true, 3, {70, 1, 33}},
    {KV_FP8, 4, 2, 32, 16, ROPE_HALF, false, 2, {70, 35}},
    {KV_F32, 8, 4, 8, 8, ROPE_INTERLEAVED, false, 2, {129, 64}},
    {KV_BF16, 8, 4, 8, 8, ROPE_INTERLEAVED, false, 2, {129, 64}},
    {KV_FP8, 8, 1, 8, 4, ROPE_INTERLEAVED, false, 1, {97}},
    {KV_BF16, 3, 3, 40, 40, ROPE_HALF, false, 2, {50, 81}},
    {KV_F32, 7, 1, 104, 52, ROPE_HALF, true, 1, {90}},
    {KV_BF16, 12, 1, 128, 64, ROPE_HALF, true, 2, {100, 17}},
    {KV_FP8, 20, 1, 64, 64, ROPE_HALF, false, 1, {66}},
    {KV_BF16, 2, 1, 256, 256, ROPE_HALF, false, 1, {68}},
    {KV_F32, 2, 1, 16, 16, ROPE_HALF, false, 1, {1200}}, /* three splits */
    {KV_BF16, 2, 1, 16, 16, ROPE_HALF, false, 2, {1100, 513}},
    {KV_FP8, 2, 1, 16, 16, ROPE_HALF, false, 1, {600}},
};

/* Decode, prefill and anything between; alone or together; one thread or several: the same bits. */
static void test_attention_is_exact_and_batch_invariant(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        const struct shape *s = &shapes[i];
        struct world w;
        world_open(&w, s);
        size_t bytes = (size_t)(s->n_seq * w.max_len * s->n_head * s->head_dim) * 4;
        float *first = malloc(bytes);
        world_run(&w, level, pools[0], 1 << 20, false); /* one prefill for each sequence */
        check_attention_double(&w, level);
        memcpy(first, w.y, bytes);
        world_run(&w, level, pools[1], 1 << 20, true);
        assert_memory_equal(first, w.y, bytes);
        world_run(&w, level, pools[1], 0, true);
        assert_memory_equal(first, w.y, bytes);
        world_run(&w, level, pools[2], 0, false);
        assert_memory_equal(first, w.y, bytes);
        if (w.max_len < 200 || level > 0)
            world_run(&w, level, pools[s->len[0] % 2], 1, true); /* step by step */
        assert_memory_equal(first, w.y, bytes);
        free(first);
        world_close(&w);
    }
}

/* A NaN in one token's query and value changes that token and, through its value, later ones; no other. */
static void test_attention_nan_stays_with_its_token(void **state)
{
    (void)state;
    static const struct shape base = {KV_BF16, 4, 2, 32, 32, ROPE_HALF, false, 2, {70, 40}};
    FOR_EACH_LEVEL(level)
    for (int type = KV_F32; type <= KV_FP8; type++)
        for (int bad = 29; bad < 31; bad++) { /* odd and even: both halves of a bf16 pair */
            struct shape s = base;
            struct world w;
            s.type = (enum kv_type)type;
            world_open(&w, &s);
            size_t row = (size_t)(s.n_head * s.head_dim), kv_row = (size_t)(s.n_kv_head * s.head_dim);
            size_t bytes = (size_t)(s.n_seq * w.max_len) * row * 4;
            float *clean = malloc(bytes);
            world_run(&w, level, pools[1], 1 << 20, true);
            memcpy(clean, w.y, bytes);
            for (size_t i = 0; i < row; i++)
                w.q[(size_t)bad * row + i] = NAN;
            for (size_t i = 0; i < kv_row; i++)
                w.v[(size_t)bad * kv_row + i] = NAN;
            world_run(&w, level, pools[1], 1 << 20, true);
            assert_memory_equal(clean, w.y, (size_t)bad * row * 4);
            for (size_t i = (size_t)bad * row; i < 70 * row; i++)
                assert_true(isnan(w.y[i]));
            size_t second = (size_t)w.max_len * row;
            assert_memory_equal(clean + second, w.y + second, 40 * row * 4);
            free(clean);
            world_close(&w);
        }
}

/* With one key the weights are 1 and the result is the value: every e4m3 code must come out exactly. */
static void test_attention_decodes_every_fp8_code(void **state)
{
    (void)state;
    enum { D = 256 };
    static const float zero[D];
    float y[D];
    size_t bytes = kv_block_bytes(KV_FP8, 1, D);
    struct kv_layer kv = {KV_FP8, calloc(1, bytes), malloc(bytes), 1, 1, D, 1, 0.25f};
    memset(kv.v, 0xff, bytes);
    for (size_t i = 0; i < D; i++)
        kv.v[kv_value_index(KV_FP8, (size_t)kv_pad(KV_FP8, D), i, 0)] = (uint8_t)i;
    int32_t pos = 0, table = 0, start[] = {0, 1};
    struct batch b = {
        .n_seq = 1, .n_tok = 1, .n_block_max = 1, .pos = &pos, .seq_start = start, .block_table = &table};
    struct attention_args a = {zero, y, &kv, &b, 1, 1, false};
    struct arena arena;
    arena_init(&arena, 4096);
    FOR_EACH_LEVEL(level)
    {
        memset(y, 0, sizeof(y));
        kernels_at((enum cpu_level)level)->attention(pools[0], &arena, &a);
        for (int i = 0; i < D; i++)
            assert_true(i % 128 == 127 ? isnan(y[i]) : y[i] == fp4_e4m3_value[i] * 0.25f);
    }
    arena_free(&arena);
    free(kv.k);
    free(kv.v);
}

/* One token at the end of 32768, with blocks in reverse: 64 splits, folded alike by any number of threads. */
static void test_attention_reaches_32k(void **state)
{
    (void)state;
    enum { KEYS = 32768, D = 16, HEADS = 4, BLOCKS = KEYS / KV_BLOCK };
    FOR_EACH_LEVEL(level)
    for (int type = KV_F32; type <= KV_FP8; type++) {
        struct shape s = {(enum kv_type)type, HEADS, 2, D, 0, ROPE_HALF, false, 1, {KEYS}};
        struct world w;
        world_open(&w, &s);
        for (int p = 0; p < KEYS; p++)
            for (int h = 0; h < 2; h++)
                kv_store(&w.kv, w.table[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK, h, w.k + (2 * p + h) * D,
                         w.v + (2 * p + h) * D);
        size_t last = (size_t)(KEYS - 1) * HEADS * D;
        memcpy(w.rotated + last, w.q + last, HEADS * D * sizeof(float));
        int32_t pos = KEYS - 1, start[] = {0, 1};
        struct batch b = {.n_seq = 1,
                          .n_tok = 1,
                          .n_block_max = BLOCKS,
                          .pos = &pos,
                          .seq_start = start,
                          .block_table = w.table};
        float y[3][HEADS * D];
        double want[D];
        for (int p = 0; p < 3; p++) {
            struct attention_args a = {w.rotated + last, y[p], &w.kv, &b, HEADS, 0.25f, false};
            struct arena arena;
            arena_init(&arena, 4096);
            memset(y[p], 0xff, sizeof(y[p]));
            kernels_at((enum cpu_level)level)->attention(pools[p], &arena, &a);
            assert_memory_equal(y[0], y[p], sizeof(y[0]));
            arena_free(&arena);
        }
        for (int head = 0; head < HEADS; head++) {
            attention_double(&w, 0, KEYS - 1, head, want);
            for (int i = 0; i < D; i++)
                assert_close("attention at 32k", level, y[0][head * D + i], want[i],
                             type == KV_F32 ? 2e-6 : 2e-4);
        }
        world_close(&w);
    }
}

/* row.h promises the same bits on every level. */
static void test_row_operators_agree_between_levels(void **state)
{
    (void)state;
    enum { M = 3, N = 1037 };
    uint64_t seed = 5;
    float *x = random_floats(&seed, M * N, 3), *w = random_floats(&seed, N, 1), y[2][M * N];
    static const int32_t slot[] = {2, 0, 1};
    float out[2][N];
    FOR_EACH_LEVEL(level)
    {
        const struct kernels *k = kernels_at((enum cpu_level)level);
        struct norm_args norm = {.x = x, .weight = w, .y = y[level > 0], .m = M, .n = N, .eps = 1e-6f};
        k->rmsnorm(pools[1], &norm);
        assert_memory_equal(y[0], y[level > 0], sizeof(y[0]));
        struct combine_args combine = {x, slot, w, NULL, out[level > 0], 1, N, 3};
        k->combine(pools[1], &combine);
        assert_memory_equal(out[0], out[level > 0], sizeof(out[0]));
    }
    float *first = NULL;
    FOR_EACH_LEVEL(level)
    {
        struct world world;
        world_open(&world, &shapes[1]);
        world_run(&world, level, pools[1], 9, true);
        size_t bytes = (size_t)(world.max_len * 4 * 32) * 4;
        if (first)
            assert_memory_equal(first, world.rotated, (size_t)shapes[1].len[0] * 4 * 32 * 4);
        else
            memcpy(first = malloc(bytes), world.rotated, bytes);
        world_close(&world);
    }
    free(first);
    free(x);
    free(w);
}

/* A query and the cache's content by hand: norm, then rotation, then rounding. */
static void check_qkv_head(const struct world *w, int level, const float *raw, const float *norm, int p,
                           const float *got, double tolerance)
{
    const struct shape *s = w->s;
    double x[KV_HEAD_DIM_MAX], sum = 0;
    size_t d = (size_t)s->head_dim, half = (size_t)s->rotary_dim / 2;
    for (size_t i = 0; i < d; i++)
        sum += (double)raw[i] * (double)raw[i];
    for (size_t i = 0; i < d; i++)
        x[i] = norm ? (double)raw[i] / sqrt(sum / (double)d + 1e-6) * (double)norm[i] : (double)raw[i];
    for (size_t i = 0; i < half; i++) {
        size_t a = s->style == ROPE_HALF ? i : 2 * i, b = s->style == ROPE_HALF ? i + half : 2 * i + 1;
        double c = (double)w->cosine[(size_t)p * half + i], n = (double)w->sine[(size_t)p * half + i];
        double xa = x[a], xb = x[b];
        x[a] = xa * c - xb * n;
        x[b] = xb * c + xa * n;
    }
    for (size_t i = 0; i < d; i++)
        assert_close("qkv", level, got[i], x[i], tolerance * (1 + fabs(x[i])));
}

static void test_qkv_matches_double(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    for (size_t n = 0; n < 11; n++) {
        struct world w;
        const struct shape *s = &shapes[n];
        world_open(&w, s);
        world_run(&w, level, pools[1], 50, true);
        size_t d = (size_t)s->head_dim;
        double rounding = s->type == KV_F32 ? 4e-6 : 0x1p-8;
        double cached = s->type == KV_FP8 ? 0x1p-3 : rounding;
        for (int p = 0; p < s->len[0]; p++) {
            for (int h = 0; h < s->n_head; h++) {
                size_t at = ((size_t)p * (size_t)s->n_head + (size_t)h) * d;
                check_qkv_head(&w, level, w.q + at, s->norm ? w.q_norm : NULL, p, w.rotated + at, rounding);
            }
            for (int h = 0; h < s->n_kv_head; h++) {
                size_t at = ((size_t)p * (size_t)s->n_kv_head + (size_t)h) * d;
                float k[KV_HEAD_DIM_MAX], v[KV_HEAD_DIM_MAX];
                kv_load(&w.kv, w.table[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK, h, k, v);
                check_qkv_head(&w, level, w.k + at, s->norm ? w.k_norm : NULL, p, k, cached);
                for (size_t i = 0; i < d; i++)
                    assert_close("v", level, v[i], (double)w.v[at + i], cached * 2);
            }
        }
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_matches_double),
        cmocka_unit_test(test_combine_matches_double),
        cmocka_unit_test(test_router_matches_double),
        cmocka_unit_test(test_router_ties_go_to_the_lowest_index),
        cmocka_unit_test(test_router_masked_groups_count_as_zero),
        cmocka_unit_test(test_router_survives_nan_and_infinity),
        cmocka_unit_test(test_kv_every_element_has_its_own_place),
        cmocka_unit_test(test_kv_load_returns_what_was_stored),
        cmocka_unit_test(test_attention_is_exact_and_batch_invariant),
        cmocka_unit_test(test_attention_nan_stays_with_its_token),
        cmocka_unit_test(test_attention_decodes_every_fp8_code),
        cmocka_unit_test(test_attention_reaches_32k),
        cmocka_unit_test(test_row_operators_agree_between_levels),
        cmocka_unit_test(test_qkv_matches_double),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
