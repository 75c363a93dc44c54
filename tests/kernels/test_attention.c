/* Attention of every CPU level that this machine has, against float64 on odd shapes; and the promise that a
 * token's result does not depend on what it is batched with, nor on threads. */
#include "fp4/fp4.h"
#include "kernels/attention_case.h"

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

/* Decode, prefill and anything between; alone or together; one thread or several: the same bits. */
static void test_attention_is_exact_and_batch_invariant(void **state)
{
    (void)state;
    FOR_EACH_LEVEL(level)
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        const struct shape *s = &shapes[i];
        struct world w;
        if (!level_reads(level, s->type))
            continue;
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
    for (int type = KV_F32; type <= KV_I16; type++)
        for (int bad = 29; bad < 31; bad++) { /* odd and even: both halves of a bf16 pair */
            if (!level_reads(level, (enum kv_type)type))
                continue;
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
    size_t keys = kv_block_key_bytes(KV_FP8, 1, D), values = kv_block_value_bytes(KV_FP8, 1, D);
    struct kv_layer kv = {KV_FP8, calloc(1, keys), malloc(values), 1, 1, D, 1, 0.25f};
    memset(kv.v, 0xff, values);
    for (size_t i = 0; i < D; i++)
        kv.v[kv_value_index(KV_FP8, (size_t)kv_pad(KV_FP8, D), i, 0)] = (uint8_t)i;
    int32_t pos = 0, table = 0, start[] = {0, 1};
    struct batch b = {
        .n_seq = 1, .n_tok = 1, .n_block_max = 1, .pos = &pos, .seq_start = start, .block_table = &table};
    struct attention_args a = {.q = zero, .y = y, .kv = &kv, .batch = &b, .n_head = 1, .scale = 1};
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
    for (int type = KV_F32; type <= KV_I16; type++) {
        if (!level_reads(level, (enum kv_type)type))
            continue;
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
            struct attention_args a = {
                .q = w.rotated + last, .y = y[p], .kv = &w.kv, .batch = &b, .n_head = HEADS, .scale = 0.25f};
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

/* A key or a query that is not finite makes its scores no numbers; one that is large or small does not. */
static void test_attention_integer_keys_of_any_size(void **state)
{
    (void)state;
    enum { D = 32, KEYS = 5 };
    static const float size[] = {1e-38f, 1e-25f, 1, 1e15f, 1e37f, INFINITY, NAN};
    size_t keys = kv_block_key_bytes(KV_I16, 1, D), values = kv_block_value_bytes(KV_I16, 1, D);
    FOR_EACH_LEVEL(level)
    for (int of_query = 0; of_query < 2; of_query++)
        for (size_t n = 0; n < sizeof(size) / sizeof(*size); n++) {
            if (!level_reads(level, KV_I16) || (of_query && size[n] < 1e-30f)) /* which counts as zeros */
                continue;
            struct kv_layer kv = {KV_I16, malloc(keys), malloc(values), 1, 1, D, 1, 1};
            float q[D] = {0}, k[D] = {0}, v[D] = {0}, y[D];
            int32_t pos = KEYS - 1, table = 0, start[] = {0, 1};
            struct batch b = {.n_seq = 1,
                              .n_tok = 1,
                              .n_block_max = 1,
                              .pos = &pos,
                              .seq_start = start,
                              .block_table = &table};
            const float scale = of_query && isfinite(size[n]) ? 1 / size[n] : 1;
            struct attention_args a = {.q = q, .y = y, .kv = &kv, .batch = &b, .n_head = 1, .scale = scale};
            struct arena arena;
            arena_init(&arena, 4096);
            memset(kv.k, 0xff, keys);
            memset(kv.v, 0xff, values);
            for (int p = 0; p < KEYS; p++) {
                k[3] = p != 1 ? 0.5f : of_query ? 1.5f : size[n];
                v[0] = (float)p;
                kv_store(&kv, p, 0, k, v);
            }
            q[3] = of_query ? size[n] : 1.0f;
            kernels_at((enum cpu_level)level)->attention(pools[0], &arena, &a);
            /* A small key has less weight than the rest, a large one has all. */
            double e = exp(of_query ? 1 : (double)size[n] - 0.5);
            double want = size[n] > 10 && !of_query ? 1 : (9 + e) / (4 + e);
            if (isfinite(size[n]))
                assert_close("any size", level, y[0], want, 1e-2);
            else
                assert_true(isnan(y[0]));
            arena_free(&arena);
            free(kv.k);
            free(kv.v);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_is_exact_and_batch_invariant),
        cmocka_unit_test(test_attention_nan_stays_with_its_token),
        cmocka_unit_test(test_attention_decodes_every_fp8_code),
        cmocka_unit_test(test_attention_reaches_32k),
        cmocka_unit_test(test_attention_integer_keys_of_any_size),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
