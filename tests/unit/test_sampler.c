/* The sampler against a plain reference that sorts everything in float64: which tokens are possible, how
 * often each comes (chi-square on fixed seeds), penalties, bans, logprobs. And the generator's published
 * vectors. */
#include <time.h>

#include "engine/rng.h"
#include "unit/sampler_case.h"

/* ---- reference ------------------------------------------------------------------------------------- */

struct entry {
    double x, p;
    int id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    return x->x != y->x ? (x->x > y->x ? -1 : 1) : x->id - y->id;
}

/* The probability of each token (vocab); returns how many are possible. */
static int reference(const struct params *p, const float *logits, int vocab, double *prob)
{
    static struct entry e[VOCAB_MAX];
    int n = vocab;
    for (int i = 0; i < n; i++)
        e[i] = (struct entry){(double)logits[i], 0, i};
    qsort(e, (size_t)n, sizeof(*e), by_logit);
    for (int i = 0; i < n; i++)
        e[i].p = exp((e[i].x - e[0].x) / (double)p->temperature);
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    while (e[n - 1].p < (double)p->min_p || e[n - 1].p == 0)
        n--;
    double total = 0, at = 0;
    for (int i = 0; i < n; i++)
        total += e[i].p;
    for (int i = 0; i < n && p->top_p < 1; i++)
        if ((at += e[i].p) >= total * (double)p->top_p)
            n = i + 1;
    total = 0;
    for (int i = 0; i < n; i++)
        total += e[i].p;
    memset(prob, 0, (size_t)vocab * sizeof(*prob));
    for (int i = 0; i < n; i++)
        prob[e[i].id] = e[i].p / total;
    return n;
}

/* Chi-square of counts; cells with fewer than 5 expected are pooled. Its distance from the mean in standard
 * deviations, by Wilson and Hilferty's cube root. */
static double chi_square_z(const int *count, const double *prob, int n, int draws)
{
    double chi = 0, pool_e = 0, pool_c = 0;
    int cells = 0;
    for (int i = 0; i < n; i++) {
        double e = prob[i] * draws;
        if (e < 5) {
            pool_e += e;
            pool_c += count[i];
            continue;
        }
        chi += (count[i] - e) * (count[i] - e) / e;
        cells++;
    }
    if (pool_e >= 5) {
        chi += (pool_c - pool_e) * (pool_c - pool_e) / pool_e;
        cells++;
    }
    double dof = cells - 1;
    if (dof < 1)
        return 0;
    double v = 2 / (9 * dof);
    return (cbrt(chi / dof) - (1 - v)) / sqrt(v);
}

/* ---- tests ------------------------------------------------------------------------------------------ */

/* Known answers of philox4x32-10 as published with Random123. */
static void test_sampler_philox_vectors(void **state)
{
    (void)state;
    const struct {
        uint32_t counter[4], key[2], out[4];
    } row[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        rng_philox(row[i].counter, row[i].key, out);
        assert_memory_equal(out, row[i].out, sizeof(out));
    }
}

static void test_sampler_draws_follow_the_distribution(void **state)
{
    (void)state;
    const struct {
        float temperature, top_p, min_p;
        int top_k, vocab;
        float spread;
    } row[] = {
        {1, 1, 0, 0, 100, 2},
        {0.7f, 1, 0, 0, 33, 3},
        {2, 1, 0, 0, 1000, 2},
        {1, 0.9f, 0, 0, 100, 2},
        {1, 0.5f, 0, 0, 1000, 3},
        {1, 0.999f, 0, 0, 517, 4},
        {1, 1, 0.05f, 0, 100, 3},
        {0.8f, 0.9f, 0.1f, 0, 300, 3},
        {1, 1, 0, 10, 100, 2},
        {1, 0.8f, 0, 50, 1000, 2},
        {0.6f, 0.95f, 0.02f, 20, 4096, 4},
        {1.5f, 1, 0, 1, 50, 2},
        {1, 1e-6f, 0, 0, 50, 2},
        {1, 0.9f, 0, 0, 64, 0},
        {1, 1, 0, 0, 3, 1},
    };
    enum { DRAWS = 20000 };
    static float logits[VOCAB_MAX];
    static double prob[VOCAB_MAX];
    static int count[VOCAB_MAX];
    uint64_t rng = 11;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct sampler *s;
        assert_int_equal(sampler_open(&s, row[i].vocab, 1, NULL), NYB_OK);
        struct params p = plain;
        p.temperature = row[i].temperature;
        p.top_p = row[i].top_p;
        p.min_p = row[i].min_p;
        p.top_k = row[i].top_k;
        p.seed = 1000 + i;
        random_logits(logits, row[i].vocab, row[i].spread, &rng);
        if (row[i].vocab > 60)
            logits[40] = logits[50] = -INFINITY;
        reference(&p, logits, row[i].vocab, prob);
        memset(count, 0, sizeof(count));
        for (int d = 0; d < DRAWS; d++) {
            int32_t token = draw(s, &p, logits, row[i].vocab, d);
            assert_true(token >= 0 && token < row[i].vocab);
            if (prob[token] == 0)
                fail_msg("row %zu: token %d is not possible", i, token);
            count[token]++;
        }
        double z = chi_square_z(count, prob, row[i].vocab, DRAWS);
        if (!(fabs(z) < 4))
            fail_msg("row %zu: chi-square is %.2f standard deviations off", i, z);
        sampler_close(s);
    }
}

/* The chi-square must be able to fail: draws of one temperature against the distribution of another. */
static void test_sampler_chi_square_notices_a_wrong_distribution(void **state)
{
    (void)state;
    enum { N = 100, DRAWS = 20000 };
    float logits[N];
    double prob[N];
    int count[N] = {0};
    uint64_t rng = 12;
    random_logits(logits, N, 2, &rng);
    struct sampler *s;
    assert_int_equal(sampler_open(&s, N, 1, NULL), NYB_OK);
    struct params p = plain;
    for (int d = 0; d < DRAWS; d++)
        count[draw(s, &p, logits, N, d)]++;
    p.temperature = 1.1f;
    reference(&p, logits, N, prob);
    assert_true(chi_square_z(count, prob, N, DRAWS) > 6);
    sampler_close(s);
}

/* Equal logits at the border: the lowest ids are in, and only as many as needed. */
static void test_sampler_ties_go_to_the_lowest_id(void **state)
{
    (void)state;
    enum { N = 40 };
    float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = i == 25 ? 3 : i % 2 ? 1 : -50;
    struct sampler *s;
    assert_int_equal(sampler_open(&s, N, 1, NULL), NYB_OK);
    struct params p = plain;
    double prob[N];
    for (int by_k = 0; by_k < 2; by_k++) {
        p.top_k = by_k ? 4 : 0;
        p.top_p = by_k ? 1 : 0.6f;
        int n = reference(&p, logits, N, prob);
        assert_true(n > 1 && n < 20);
        bool seen[N] = {false};
        for (int d = 0; d < 4000; d++)
            seen[draw(s, &p, logits, N, d)] = true;
        for (int i = 0; i < N; i++)
            assert_int_equal(seen[i], prob[i] > 0);
    }
    p = plain;
    p.temperature = 0;
    logits[30] = logits[12] = 3;
    assert_int_equal(draw(s, &p, logits, N, 0), 12);
    sampler_close(s);
}

static void test_sampler_same_seed_same_token_whatever_the_worker(void **state)
{
    (void)state;
    enum { N = 500 };
    float logits[N], row[N];
    uint64_t rng = 13;
    random_logits(logits, N, 3, &rng);
    struct sampler *s;
    assert_int_equal(sampler_open(&s, N, 3, NULL), NYB_OK);
    struct params p = plain;
    p.seed = 42;
    int32_t out[64] = {0};
    int distinct = 0;
    int32_t last = -1;
    for (int d = 0; d < 64; d++) {
        int32_t token[3];
        for (int w = 0; w < 3; w++) {
            memcpy(row, logits, sizeof(row));
            const struct sampler_input in = {.p = &p, .out = out, .n_out = d, .logits = row};
            token[w] = sampler_row(s, w, &in, NULL);
        }
        assert_true(token[0] == token[1] && token[1] == token[2]);
        distinct += token[0] != last;
        last = token[0];
    }
    assert_true(distinct > 50);
    sampler_close(s);
}

/* A row whose passes a pool shares out: the same token, and the same logits afterwards. */
static void test_sampler_shares_out_a_long_row(void **state)
{
    (void)state;
    enum { N = 70001 };
    const struct {
        float temperature, top_p, min_p;
    } mode[] = {{0, 1, 0},       {0.8f, 1, 0},     {0.8f, 0.95f, 0},
                {1.5f, 0.5f, 0}, {1, 0.9f, 0.01f}, {0.01f, 0.95f, 0}};
    float *logits = malloc(N * sizeof(float)), *alone = malloc(N * sizeof(float)),
          *shared = malloc(N * sizeof(float));
    uint64_t rng = 21;
    struct sampler *s;
    struct pool *pool;
    assert_int_equal(sampler_open(&s, N, 1, NULL), NYB_OK);
    assert_int_equal(pool_open(&pool, 5, NULL), NYB_OK);
    for (int round = 0; round < 24; round++) {
        random_logits(logits, N, round % 2 ? 0.5f : 8, &rng);
        logits[(int)(test_random(&rng) % N)] = NAN;
        if (round % 4 == 0) /* the first of equals wins, whichever piece it is in */
            logits[600] = logits[65000] = logits[65001] = 30;
        if (round == 23)
            for (int i = 0; i < N; i++)
                logits[i] = -INFINITY;
        struct params p = plain;
        p.temperature = mode[round % 6].temperature;
        p.top_p = mode[round % 6].top_p;
        p.min_p = mode[round % 6].min_p;
        p.seed = (uint64_t)round;
        memcpy(alone, logits, N * sizeof(float));
        memcpy(shared, logits, N * sizeof(float));
        struct sampler_input in = {.p = &p, .logits = alone};
        int32_t want = sampler_row(s, 0, &in, NULL);
        in.logits = shared;
        in.pool = pool;
        assert_int_equal(sampler_row(s, 0, &in, NULL), want);
        assert_memory_equal(alone, shared, N * sizeof(float));
        if (round % 12 == 0)
            assert_int_equal(want, 600);
    }
    pool_close(pool);
    sampler_close(s);
    free(logits);
    free(alone);
    free(shared);
}

/* Penalties, bias and bans against the formulas, written out over a dense count. */
static void test_sampler_changes_to_logits_match_the_formulas(void **state)
{
    (void)state;
    enum { N = 60, PROMPT = 20, OUT = 30 };
    struct sampler *s;
    struct arena arena;
    arena_init(&arena, 4096);
    assert_int_equal(sampler_open(&s, N, 1, NULL), NYB_OK);
    uint64_t rng = 14;
    int changed = 0;
    for (int round = 0; round < 500; round++) {
        float logits[N], expected[N];
        int32_t prompt[PROMPT], out[OUT];
        int in_prompt[N] = {0}, n_out[N] = {0};
        random_logits(logits, N, 2, &rng);
        struct params p = plain;
        p.temperature = 0;
        p.repetition = 1 + 0.5f * (float)(test_random(&rng) % 3);
        p.presence = 0.5f * (float)(test_random(&rng) % 5) - 1;
        p.frequency = 0.25f * (float)(test_random(&rng) % 5) - 0.5f;
        p.max_tokens = OUT;
        struct nyb_logit_bias bias[2] = {{(int32_t)(test_random(&rng) % N), 1.5},
                                         {(int32_t)(test_random(&rng) % N), -100}};
        p.bias = bias;
        p.n_bias = 2;
        for (int i = 0; i < PROMPT; i++)
            in_prompt[prompt[i] = (int32_t)(test_random(&rng) % N)] = 1;
        struct history *h = history_new(&arena, prompt, PROMPT, OUT, N);
        for (int i = 0; i < OUT; i++) {
            n_out[out[i] = (int32_t)(test_random(&rng) % N)]++;
            history_add_output(h, out[i]);
        }
        for (int i = 0; i < N; i++) {
            float x = logits[i];
            for (int b = 0; b < 2; b++)
                x += bias[b].token == i ? (float)bias[b].bias : 0;
            if (in_prompt[i] || n_out[i])
                x = x > 0 ? x / p.repetition : x * p.repetition;
            x -= p.frequency * (float)n_out[i] + (n_out[i] ? p.presence : 0);
            expected[i] = x;
        }
        int best = 0, raw_best = 0;
        for (int i = 1; i < N; i++) {
            best = expected[i] > expected[best] ? i : best;
            raw_best = logits[i] > logits[raw_best] ? i : raw_best;
        }
        const struct sampler_input in = {.p = &p, .history = h, .out = out, .n_out = OUT, .logits = logits};
        assert_int_equal(sampler_row(s, 0, &in, NULL), best);
        changed += best != raw_best;
        arena_reset(&arena);
    }
    assert_true(changed > 100);
    arena_free(&arena);
    sampler_close(s);
}

static void test_sampler_bans(void **state)
{
    (void)state;
    enum { N = 16 };
    struct sampler *s;
    assert_int_equal(sampler_open(&s, N, 1, NULL), NYB_OK);
    float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = (float)(N - i); /* 0 is best, then 1, ... */
    const int32_t eos[] = {0}, pair[] = {8, 1}, single[] = {2};
    int32_t stop_token[] = {3}, out[] = {9, 8};
    struct params_run bad[] = {{pair, 2}, {single, 1}};
    struct params p = plain;
    p.temperature = 0;
    p.eos = eos;
    p.n_eos = 1;
    p.stop_token = stop_token;
    p.n_stop_token = 1;
    p.bad = bad;
    p.n_bad = 2;
    p.min_tokens = 3;
    float row[N];
    struct sampler_input in = {.p = &p, .out = out, .n_out = 2, .logits = row};
    memcpy(row, logits, sizeof(row));
    assert_int_equal(sampler_row(s, 0, &in, NULL), 4); /* 0 eos, 1 after 8, 2, 3 stop: all banned */
    in.n_out = 1;                                      /* ... 9: 1 may come */
    memcpy(row, logits, sizeof(row));
    assert_int_equal(sampler_row(s, 0, &in, NULL), 1);
    p.min_tokens = 1;
    memcpy(row, logits, sizeof(row));
    assert_int_equal(sampler_row(s, 0, &in, NULL), 0);
    sampler_close(s);
}

static void test_sampler_logprobs_are_of_the_raw_logits(void **state)
{
    (void)state;
    enum { N = 301, TOP = 7 };
    float logits[N], raw[N];
    uint64_t rng = 15;
    random_logits(raw, N, 4, &rng);
    raw[5] = raw[6] = 8.5f; /* a tie for the second place */
    raw[100] = 9;
    struct nyb_logit_bias bias[] = {{200, 100}};
    struct params p = plain;
    p.temperature = 0.5f;
    p.bias = bias;
    p.n_bias = 1;
    p.n_logprob = TOP;
    struct sampler *s;
    assert_int_equal(sampler_open(&s, N, 1, NULL), NYB_OK);
    struct nyb_logprob lp[1 + TOP];
    memcpy(logits, raw, sizeof(raw));
    const struct sampler_input in = {.p = &p, .logits = logits};
    assert_int_equal(sampler_row(s, 0, &in, lp), 200);
    double total = 0;
    int rank = 1;
    for (int i = 0; i < N; i++) {
        total += exp((double)raw[i]);
        rank += raw[i] > raw[200];
    }
    assert_int_equal(lp[0].token, 200);
    assert_int_equal(lp[0].rank, rank);
    assert_int_equal(lp[1].token, 100);
    assert_int_equal(lp[2].token, 5);
    assert_int_equal(lp[3].token, 6);
    for (int i = 0; i <= TOP; i++) {
        double want = (double)raw[lp[i].token] - log(total);
        assert_true(fabs((double)lp[i].logprob - want) < 1e-5);
        assert_true(i < 2 || lp[i].logprob <= lp[i - 1].logprob);
        assert_true(i == 0 || lp[i].rank == i);
    }
    sampler_close(s);
}

static void test_sampler_refuses_logits_that_leave_nothing(void **state)
{
    (void)state;
    enum { N = 10 };
    float nan[N], none[N], inf[N];
    for (int i = 0; i < N; i++) {
        nan[i] = NAN;
        none[i] = -INFINITY;
        inf[i] = i == 3 ? INFINITY : 0;
    }
    struct sampler *s;
    assert_int_equal(sampler_open(&s, N, 1, NULL), NYB_OK);
    for (int mode = 0; mode < 3; mode++) {
        struct params p = plain;
        p.temperature = mode == 0 ? 0 : 1;
        p.top_k = mode == 2 ? 3 : 0;
        assert_int_equal(draw(s, &p, nan, N, 0), -1);
        assert_int_equal(draw(s, &p, none, N, 0), -1);
        assert_int_equal(draw(s, &p, inf, N, 0), -1);
        nan[4] = 1; /* one number among NaNs is a choice */
        assert_int_equal(draw(s, &p, nan, N, 0), 4);
        nan[4] = NAN;
    }
    sampler_close(s);
}

/* At the size of real vocabularies: right against the reference's threshold, and a printed time. */
static void test_sampler_large_vocabulary(void **state)
{
    (void)state;
    enum { N = 151936, ROUNDS = 20 };
    float *logits = malloc(N * sizeof(float)), *row = malloc(N * sizeof(float));
    assert_non_null(logits);
    assert_non_null(row);
    uint64_t rng = 16;
    random_logits(logits, N, 6, &rng);
    struct sampler *s;
    assert_int_equal(sampler_open(&s, N, 1, NULL), NYB_OK);
    const struct {
        const char *name;
        float temperature, top_p;
        int top_k;
    } mode[] = {{"greedy", 0, 1, 0},
                {"temperature", 1, 1, 0},
                {"top_p 0.95", 0.8f, 0.95f, 0},
                {"top_p 0.95 of flat logits", 0.8f, 0.95f, 0},
                {"top_k 40", 0.8f, 1, 40},
                {"top_k 1000, top_p 0.9", 0.8f, 0.9f, 1000}};
    for (size_t m = 0; m < sizeof(mode) / sizeof(mode[0]); m++) {
        struct params p = plain;
        p.temperature = mode[m].temperature;
        p.top_p = mode[m].top_p;
        p.top_k = mode[m].top_k;
        struct timespec a, b;
        double best_us = 1e9;
        for (int i = 0; i < ROUNDS; i++) {
            for (int t = 0; t < N; t++) /* as random weights give them */
                row[t] = m == 3 ? logits[t] / 6 : logits[t];
            int32_t out[ROUNDS] = {0};
            const struct sampler_input in = {.p = &p, .out = out, .n_out = i, .logits = row};
            clock_gettime(CLOCK_MONOTONIC, &a);
            int32_t token = sampler_row(s, 0, &in, NULL);
            clock_gettime(CLOCK_MONOTONIC, &b);
            double us = (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3;
            best_us = us < best_us ? us : best_us;
            assert_true(token >= 0);
            int above = 0;
            for (int t = 0; t < N && p.top_k; t++)
                above += logits[t] > logits[token];
            assert_true(!p.top_k || above < p.top_k);
        }
        print_message("%d tokens, %s: %.0f us\n", N, mode[m].name, best_us);
    }
    sampler_close(s);
    free(logits);
    free(row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler_philox_vectors),
        cmocka_unit_test(test_sampler_draws_follow_the_distribution),
        cmocka_unit_test(test_sampler_chi_square_notices_a_wrong_distribution),
        cmocka_unit_test(test_sampler_ties_go_to_the_lowest_id),
        cmocka_unit_test(test_sampler_same_seed_same_token_whatever_the_worker),
        cmocka_unit_test(test_sampler_shares_out_a_long_row),
        cmocka_unit_test(test_sampler_changes_to_logits_match_the_formulas),
        cmocka_unit_test(test_sampler_bans),
        cmocka_unit_test(test_sampler_logprobs_are_of_the_raw_logits),
        cmocka_unit_test(test_sampler_refuses_logits_that_leave_nothing),
        cmocka_unit_test(test_sampler_large_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
