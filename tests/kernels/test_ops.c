/* Norm, router and combine of every CPU level that this machine has, against float64 on odd shapes. */
#include "kernels/ops_case.h"

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

/* row.h promises the same bits on every level. */
static void test_norm_and_combine_agree_between_levels(void **state)
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
    free(x);
    free(w);
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
        cmocka_unit_test(test_norm_and_combine_agree_between_levels),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
