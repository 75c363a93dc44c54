/* The KV cache, and attention of every CPU level that this machine has, against float64 on odd shapes; and
 * the promise that a token's result does not depend on what it is batched with, nor on threads. */
#include "fp4/fp4.h"
#include "kernels/kv.h"
#include "kernels/ops_case.h"

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
static void test_rotation_agrees_between_levels(void **state)
{
    (void)state;
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
        cmocka_unit_test(test_kv_every_element_has_its_own_place),
        cmocka_unit_test(test_kv_load_returns_what_was_stored),
        cmocka_unit_test(test_attention_is_exact_and_batch_invariant),
        cmocka_unit_test(test_attention_nan_stays_with_its_token),
        cmocka_unit_test(test_attention_decodes_every_fp8_code),
        cmocka_unit_test(test_attention_reaches_32k),
        cmocka_unit_test(test_rotation_agrees_between_levels),
        cmocka_unit_test(test_qkv_matches_double),
    };
    return cmocka_run_group_tests(tests, open_pools, close_pools);
}
