/* The sampler's passes on every CPU level: the same bits on rows that are made to mislead them, the nucleus
 * the smallest in float64, and the same answers. */
#include "unit/sampler_case.h"

#define N_LARGE                                                                                \
    40009 /* long enough that the nucleus looks at a sample first, and no multiple of anything \
           */

enum {
    ROW_RANDOM,
    ROW_PEAKED,
    ROW_EQUAL,
    ROW_SPIKE,
    ROW_MASKED,
    ROW_DENORMAL,
    ROW_HUGE,
    ROW_TWO,
    ROW_UP,
    ROW_NAN,
    N_ROW
};

static void adversarial_row(float *x, int n, int kind)
{
    uint64_t rng = 100 + (uint64_t)kind;
    for (int i = 0; i < n; i++) {
        float a = test_random_float(&rng), b = test_random_float(&rng);
        switch (kind) {
        case ROW_RANDOM:
            x[i] = a + b;
            break;
        case ROW_PEAKED:
            x[i] = 20 * a * b * b * b * b;
            break;
        case ROW_EQUAL:
            x[i] = 1.5f;
            break;
        case ROW_SPIKE:
            x[i] = i == n / 2 ? 9 : -2;
            break;
        case ROW_MASKED:
            x[i] = a > -0.999f ? -INFINITY : b;
            break;
        case ROW_DENORMAL:
            x[i] = a * 1e-39f;
            break;
        case ROW_HUGE:
            x[i] = a * 3e38f;
            break;
        case ROW_TWO:
            x[i] = i % 3 ? 0 : 0.5f;
            break;
        case ROW_UP:
            x[i] = (float)i / (float)n * 10;
            break;
        default:
            x[i] = i % 2 ? NAN : 3 * a;
            break;
        }
    }
}

/* Each pass of each level against that of the plainest, bit for bit, on lengths around every block. */
static void test_sampler_passes_have_the_same_bits_on_every_level(void **state)
{
    (void)state;
    const int length[] = {1, 3, 15, 16, 17, 63, 64, 511, 512, 513, 1100, N_LARGE};
    float *x = malloc(N_LARGE * sizeof(float)), *e[2], *band[2];
    for (int i = 0; i < 2; i++) {
        e[i] = malloc(N_LARGE * sizeof(float));
        band[i] = malloc((N_LARGE + SAMPLER_SLACK) * sizeof(float));
        assert_non_null(e[i]);
        assert_non_null(band[i]);
    }
    assert_non_null(x);
    for (int level = CPU_SCALAR + 1; level <= (int)cpu_detect(); level++)
        for (int kind = 0; kind < N_ROW; kind++)
            for (size_t l = 0; l < sizeof(length) / sizeof(length[0]); l++) {
                const struct sampler_ops *op[2] = {sampler_ops_at(CPU_SCALAR),
                                                   sampler_ops_at((enum cpu_level)level)};
                int n = length[l], at[2], next[2], before[2], held[2];
                double total[2], mass[2], above[2], sum[2][N_LARGE / SAMPLER_BLOCK + 1];
                double sum_above[2][N_LARGE / SAMPLER_BLOCK + 1];
                int32_t n_in[2][N_LARGE / SAMPLER_BLOCK + 1];
                float max[2], peak[2][N_LARGE / SAMPLER_BLOCK + 1];
                size_t n_block = (size_t)sampler_blocks(n);
                adversarial_row(x, n, kind);
                for (int i = 0; i < 2; i++) {
                    int also;
                    max[i] = op[i]->max(x, n, &at[i], NULL);
                    assert_true(op[i]->max(x, n, &also, peak[i]) == max[i]);
                    assert_int_equal(also, at[i]);
                }
                assert_memory_equal(&max[0], &max[1], sizeof(float));
                assert_int_equal(at[0], at[1]);
                assert_memory_equal(peak[0], peak[1], n_block * sizeof(float));
                for (int k = 0; k < n; k++)
                    assert_true(isnan(x[k]) || peak[0][k / SAMPLER_BLOCK] >= x[k]);
                if (!isfinite(max[0]))
                    continue;
                for (int i = 0; i < 2; i++) {
                    total[i] = op[i]->weigh(x, n, max[0], 1.25f, 1e-3f, e[i], sum[i]);
                    before[i] = op[i]->count_before(x, n, n * 2 / 3);
                    next[i] = op[i]->next_above(x, n, 0, max[0] - 0.01f);
                }
                assert_memory_equal(e[0], e[1], (size_t)n * sizeof(float));
                assert_memory_equal(sum[0], sum[1], n_block * sizeof(double));
                assert_memory_equal(&total[0], &total[1], sizeof(double));
                assert_int_equal(before[0], before[1]);
                assert_int_equal(next[0], next[1]);
                for (int i = 0; i < 2; i++)
                    mass[i] = op[i]->mass_from(e[0], n, e[0][n / 2]);
                assert_memory_equal(&mass[0], &mass[1], sizeof(double));
                for (int i = 0; i < 2; i++)
                    held[i] = op[i]->band(e[0], n, 0.1f, 0.7f, band[i], &above[i]);
                assert_memory_equal(&above[0], &above[1], sizeof(double));
                assert_int_equal(held[0], held[1]);
                assert_memory_equal(band[0], band[1], (size_t)held[0] * sizeof(float));
                /* The same band without the weights in between, and what they sum to. */
                const struct sampler_weights w = {x, n, max[0], 1.25f, 1e-3f};
                for (int i = 0; i < 2; i++) {
                    const struct sampler_sums to = {sum[i], sum_above[i], n_in[i]};
                    memset(band[i], 0, (size_t)n * sizeof(float));
                    assert_int_equal(op[i]->weigh_band(&w, 0.1f, 0.7f, band[i], &to), held[0]);
                }
                assert_memory_equal(band[0], band[1], (size_t)held[0] * sizeof(float));
                assert_memory_equal(sum[0], sum[1], n_block * sizeof(double));
                assert_memory_equal(sum_above[0], sum_above[1], n_block * sizeof(double));
                assert_memory_equal(n_in[0], n_in[1], n_block * sizeof(int32_t));
                assert_true(sampler_total(sum[0], n) == total[0]);
                for (int k = 0, last = 0; k < n; k++) {
                    bool in = e[0][k] >= 0.1f && e[0][k] < 0.7f;
                    assert_true(!in || band[0][last] == e[0][k]);
                    last += in;
                    n_in[0][k / SAMPLER_BLOCK] -= in;
                }
                for (size_t k = 0; k < n_block; k++)
                    assert_int_equal(n_in[0][k], 0);
                int n_here = n < SAMPLER_BLOCK ? n : SAMPLER_BLOCK;
                for (int i = 0; i < 2; i++)
                    above[i] = op[i]->above(e[0], n_here, e[0][n_here / 2], &n_in[i][0]);
                assert_memory_equal(&above[0], &above[1], sizeof(double));
                assert_int_equal(n_in[0][0], n_in[1][0]);
            }
    for (int i = 0; i < 2; i++) {
        free(e[i]);
        free(band[i]);
    }
    free(x);
}

/* The weights against float64, to the roundings of their exponents; the nucleus: large enough, and too small
 * without its least. */
static void test_sampler_nucleus_is_the_smallest_in_float64(void **state)
{
    (void)state;
    const float share[] = {1e-6f, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f};
    float *x = malloc(N_LARGE * sizeof(float)), *w = malloc(N_LARGE * sizeof(float));
    struct nucleus_work work[2];
    for (int i = 0; i < 2; i++)
        assert_true(nucleus_work_open(&work[i], N_LARGE));
    assert_true(x && w);
    const struct sampler_ops *ops = sampler_ops_at(cpu_level());
    struct pool *pool;
    assert_int_equal(pool_open(&pool, 3, NULL), NYB_OK);
    const struct sampler_spread spread[2] = {{ops, NULL}, {ops, pool}};
    for (int kind = 0; kind < N_ROW; kind++)
        for (int n = 300; n <= N_LARGE; n += N_LARGE - 300) {
            int at;
            adversarial_row(x, n, kind);
            struct sampler_weights of = {.x = x, .n = n, .scale = 1.25f};
            of.max = ops->max(x, n, &at, NULL);
            if (!isfinite(of.max))
                continue;
            assert_true(x[at] == of.max);
            double total = ops->weigh(x, n, of.max, 1.25f, 0, w, NULL), exact = 0;
            for (int i = 0; i < n; i++) {
                double z = isnan(x[i]) ? -INFINITY : ((double)x[i] - (double)of.max) * 1.25, e = exp(z);
                exact += e;
                if (fabs((double)w[i] - e) > 2e-7 * (1 - z) * e + 3e-38 && z > -INFINITY)
                    fail_msg("row %d: weight %d is %g, not %g", kind, i, (double)w[i], e);
            }
            assert_true(fabs(total - exact) < 2e-6 * exact);
            for (int i = 0; i < 2; i++)
                assert_true(sampler_spread_weigh(&spread[i], &of, work[i].sum.all) == total);
            for (size_t k = 0; k < sizeof(share) / sizeof(share[0]); k++) {
                double target = total * (double)share[k], above = 0;
                struct nucleus in[2];
                for (int i = 0; i < 2; i++) {
                    const struct sampler_glance glance = nucleus_glance(&work[i]);
                    bool look = nucleus_wants_sample(n);
                    int again;
                    assert_true(sampler_spread_max(&spread[i], x, n, &again, look ? &glance : NULL) ==
                                of.max);
                    assert_int_equal(again, at);
                    if (look && k % 2) /* a sample that misleads costs time, not the result */
                        for (int b = 0; b < SAMPLER_SAMPLE; b++)
                            work[i].sample[b] = b % 3 ? of.max : -30;
                    in[i] = nucleus_find(&spread[i], &of, share[k], &work[i]);
                }
                assert_true(in[0].cut == in[1].cut && in[0].mass == in[1].mass && in[0].n_eq == in[1].n_eq);
                int equal = 0;
                for (int b = 0, i = 0; b < sampler_blocks(n); b++) {
                    double here = 0;
                    int equal_here = 0;
                    for (; i < n && i < (b + 1) * SAMPLER_BLOCK; i++) {
                        here += w[i] > in[0].cut ? (double)w[i] : 0;
                        equal_here += w[i] == in[0].cut;
                    }
                    assert_true(fabs(in[0].above[b] - here) <= 2e-6 * here);
                    assert_true(in[1].above[b] == in[0].above[b]);
                    assert_int_equal(in[0].equal[b], equal_here);
                    assert_int_equal(in[1].equal[b], equal_here);
                    above += here;
                    equal += equal_here;
                }
                double held = above + in[0].n_eq * (double)in[0].cut;
                if (above > target + 1e-6 * total || held < target - 1e-6 * total || in[0].n_eq > equal)
                    fail_msg("row %d, n %d, top_p %g: %g above %g and %d at it, wanted %g", kind, n,
                             (double)share[k], above, (double)in[0].cut, in[0].n_eq, target);
            }
        }
    pool_close(pool);
    free(x);
    free(w);
    for (int i = 0; i < 2; i++)
        nucleus_work_close(&work[i]);
}

/* Tokens and logprobs on every level. */
static void test_sampler_answers_do_not_depend_on_the_level(void **state)
{
    (void)state;
    enum { TOP = 5, DRAWS = 4 };
    float *x = malloc(N_LARGE * sizeof(float)), *row = malloc(N_LARGE * sizeof(float));
    assert_true(x && row);
    struct sampler *s;
    assert_int_equal(sampler_open(&s, N_LARGE, 1, NULL), NYB_OK);
    int32_t allowed[] = {0, 7, 20000, N_LARGE - 1};
    struct params mode[6];
    for (int m = 0; m < 6; m++) {
        mode[m] = plain;
        mode[m].seed = 77;
        mode[m].n_logprob = m == 3 ? -1 : TOP;
    }
    mode[0].temperature = 0;
    mode[2].top_p = mode[3].top_p = mode[4].top_p = 0.95f;
    mode[3].min_p = 0.02f;
    mode[4].top_k = 200;
    mode[5].allowed = allowed;
    mode[5].n_allowed = 4;
    int distinct = 0;
    for (int kind = 0; kind < N_ROW; kind++)
        for (int m = 0; m < 6; m++)
            for (int d = 0; d < DRAWS; d++) {
                struct nyb_logprob first[1 + TOP] = {{0}}, lp[1 + TOP] = {{0}};
                int32_t token = 0, out[DRAWS] = {0};
                adversarial_row(x, N_LARGE, kind);
                for (int level = CPU_SCALAR; level <= (int)cpu_detect(); level++) {
                    memcpy(row, x, N_LARGE * sizeof(float));
                    const struct sampler_input in = {.p = &mode[m], .out = out, .n_out = d, .logits = row};
                    sampler_use(s, (enum cpu_level)level);
                    int32_t t = sampler_row(s, 0, &in, level == CPU_SCALAR ? first : lp);
                    token = level == CPU_SCALAR ? t : token;
                    assert_int_equal(t, token);
                    for (int i = 0; level > CPU_SCALAR && mode[m].n_logprob >= 0 && t >= 0 && i <= TOP; i++) {
                        assert_int_equal(lp[i].token, first[i].token);
                        assert_int_equal(lp[i].rank, first[i].rank);
                        assert_memory_equal(&lp[i].logprob, &first[i].logprob, sizeof(float));
                    }
                }
                distinct += token > 0;
            }
    assert_true(distinct > N_ROW * 6 * DRAWS / 2);
    sampler_close(s);
    free(x);
    free(row);
}

/* Rows of every kind drawn together, in rounds of as many as there are threads: the tokens of each alone. */
static void test_sampler_draws_rows_together(void **state)
{
    (void)state;
    enum { ROWS = N_ROW, MODES = 5 };
    const struct draw mode[MODES] = {{.scale = 0, .top_p = 1},
                                     {.scale = 1, .top_p = 1, .uniform = 0.3},
                                     {.scale = 1.25f, .top_p = 0.95f, .uniform = 0.7},
                                     {.scale = 1, .top_p = 0.5f, .min_p = 0.02f, .uniform = 0.999},
                                     {.scale = 100, .top_p = 0.9f, .uniform = 0.01}};
    const int threads[] = {1, 2, 4, 7}, length[] = {N_LARGE, 5000};
    float *x = malloc(ROWS * N_LARGE * sizeof(float));
    assert_non_null(x);
    int distinct = 0;
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++)
        for (size_t l = 0; l < sizeof(length) / sizeof(length[0]); l++) {
            struct sampler *s;
            struct pool *pool;
            struct sampler_drawn row[ROWS];
            int n = length[l];
            assert_int_equal(sampler_open(&s, n, threads[t], NULL), NYB_OK);
            assert_int_equal(pool_open(&pool, threads[t], NULL), NYB_OK);
            for (int first = 0; first < MODES; first++) { /* each kind under each mode */
                for (int i = 0; i < ROWS; i++) {
                    adversarial_row(x + (size_t)i * N_LARGE, n, i);
                    row[i] = (struct sampler_drawn){
                        .draw = &mode[(first + i) % MODES], .logits = x + (size_t)i * N_LARGE, .owner = i};
                }
                sampler_choose_together(s, pool, ROWS, row);
                for (int i = 0; i < ROWS; i++) {
                    assert_int_equal(row[i].token,
                                     sampler_choose(s, 0, row[i].draw, x + (size_t)i * N_LARGE));
                    distinct += row[i].token > 0;
                }
            }
            for (int i = 0; i < n; i++)
                x[i] = -INFINITY;
            sampler_choose_together(s, pool, 2, row);
            assert_int_equal(row[0].token, -1);
            sampler_close(s);
            pool_close(pool);
        }
    assert_true(distinct > 200);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler_passes_have_the_same_bits_on_every_level),
        cmocka_unit_test(test_sampler_nucleus_is_the_smallest_in_float64),
        cmocka_unit_test(test_sampler_answers_do_not_depend_on_the_level),
        cmocka_unit_test(test_sampler_draws_rows_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
