/* Attention on the matrix unit (kernels/cpu/attention_tiles.h), run on the emulator of amx_unit.h: values
 * against float64, and the same bits for a token alone and in company. */
#ifndef NYB_TESTS_AMX_ATTENTION_H
#define NYB_TESTS_AMX_ATTENTION_H

#include "kernels/amx_unit.h"
#include "kernels/attention.h"

/* ---- the vector work of kernels/cpu/attention_amx.c, element by element ------------------------- */

static void rows_query(uint16_t *to, const float *x, int d)
{
    for (int i = 0; i < (d + 31) / 32 * 32; i++) {
        float v = i < d ? x[i] : 0.0f;
        uint16_t high = bf16_from_float(v), *at = to + i / 32 * 1024 + i % 32;
        at[0] = bf16_from_float(v - bf16_to_float(high));
        at[512] = high;
    }
}

/* Scores and weights lie in tiles of 16 rows and 16 or 32 keys. */
static void rows_top(const float *score, int n_key, const int *sees, int n, float *top)
{
    for (int r = 0; r < n; r++) {
        top[r] = -INFINITY;
        for (int key = 0; key < sees[r]; key++)
            top[r] = fmaxf(top[r], score[key / 16 * 256 + r * 16 + key % 16]);
        assert_true(sees[r] <= n_key);
    }
}

static void rows_weigh(const float *score, int n_key, const int *sees, int n, float scale, const float *top,
                       uint16_t *prob, float *l)
{
    for (int r = 0; r < n; r++) {
        l[r] = 0.0f;
        for (int key = 0; key < (n_key + 31) / 32 * 32; key++) {
            float s = key < sees[r] ? score[key / 16 * 256 + r * 16 + key % 16] : -INFINITY;
            uint16_t p = bf16_from_float(exp2f(fmaf(s, scale, -top[r])));
            prob[key / 32 * 512 + r * 32 + key % 32] = p;
            l[r] += bf16_to_float(p);
        }
    }
}

static void fp8_decode(uint8_t *dst, const uint8_t *src, size_t n, const uint8_t *next)
{
    (void)next;
    for (size_t e = 0; e < 64 * n; e++) {
        uint16_t bits = bf16_from_float(fp4_e4m3_value[src[e / 64 * 64 + kv_fp8_shuffle(e % 64)]]);
        memcpy(dst + 2 * e, &bits, sizeof(bits));
    }
}
#include "kernels/cpu/attention_tiles.h"

/* ---- cases --------------------------------------------------------------------------------------- */

/* One sequence of n_key cached tokens in scattered blocks; the last n_tok of them ask. */
struct talk {
    struct kv_layer kv;
    int n_key, n_tok, n_head;
    bool round_q;
    int32_t *table, *pos;
    float *q, *y, *again; /* (n_tok, n_head, head_dim) */
    size_t width;
};

static struct talk talk_make(struct arena *arena, uint64_t *seed, enum kv_type type, int n_key, int n_tok,
                             int group, int d)
{
    struct talk s = {.n_key = n_key, .n_tok = n_tok, .n_head = 2 * group, .width = (size_t)(2 * group * d)};
    int n_block = (n_key + KV_BLOCK - 1) / KV_BLOCK;
    size_t keys = kv_block_key_bytes(type, 2, d) * (size_t)n_block,
           values = kv_block_value_bytes(type, 2, d) * (size_t)n_block, n = s.width * (size_t)n_tok;
    s.kv = (struct kv_layer){
        type, arena_alloc(arena, keys, 1), arena_alloc(arena, values, 1), n_block, 2, d, 0.02f, 0.03f};
    memset(s.kv.k, 0xff, keys); /* no numbers, in every type */
    memset(s.kv.v, 0xff, values);
    s.table = arena_alloc(arena, (size_t)n_block, sizeof(*s.table));
    for (int b = 0; b < n_block; b++)
        s.table[b] = n_block - 1 - b;
    float k[256], v[256];
    assert_true(d <= 256);
    for (int p = 0; p < n_key; p++)
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < d; i++) {
                k[i] = test_random_float(seed);
                v[i] = test_random_float(seed);
            }
            kv_store(&s.kv, s.table[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK, h, k, v);
        }
    s.pos = arena_alloc(arena, (size_t)n_tok, sizeof(*s.pos));
    for (int t = 0; t < n_tok; t++)
        s.pos[t] = n_key - n_tok + t;
    s.q = arena_alloc(arena, n, sizeof(float));
    s.y = arena_alloc(arena, n, sizeof(float));
    s.again = arena_alloc(arena, n, sizeof(float));
    for (size_t i = 0; i < n; i++)
        s.q[i] = 2 * test_random_float(seed);
    return s;
}

/* Tokens [from, to) in one call. */
static void talk_attend(struct pool *pool, struct arena *arena, const struct talk *s, int from, int to,
                        float *y)
{
    static const struct attention_kernel kernel = {tiles_work_bytes, tiles_split, UNIT_ROWS};
    int32_t start[] = {0, to - from};
    struct batch b = {.n_seq = 1,
                      .n_tok = to - from,
                      .n_block_max = s->kv.n_block,
                      .pos = s->pos + from,
                      .seq_start = start,
                      .block_table = s->table};
    struct attention_args a = {.q = s->q + (size_t)from * s->width,
                               .y = y + (size_t)from * s->width,
                               .kv = &s->kv,
                               .batch = &b,
                               .n_head = s->n_head,
                               .scale = 1 / sqrtf((float)s->kv.head_dim),
                               .round_q = s->round_q};
    attention_run(pool, arena, &a, &kernel);
    assert_false(unit.configured);
}

static void talk_check_row(const struct talk *s, int t, int head)
{
    int d = s->kv.head_dim, kv_head = head / (s->n_head / 2);
    const float *q = s->q + (size_t)t * s->width + (size_t)(head * d);
    const float *y = s->y + (size_t)t * s->width + (size_t)(head * d);
    double want[256] = {0}, sum = 0;
    float k[256], v[256];
    for (int p = 0; p <= s->pos[t]; p++) {
        kv_load(&s->kv, s->table[p / KV_BLOCK] * KV_BLOCK + p % KV_BLOCK, kv_head, k, v);
        double score = 0;
        for (int i = 0; i < d; i++)
            score += (double)(s->round_q ? bf16_to_float(bf16_from_float(q[i])) : q[i]) * (double)k[i];
        double weight = exp(score / sqrt((double)d));
        sum += weight;
        for (int i = 0; i < d; i++)
            want[i] += weight * (double)v[i];
    }
    for (int i = 0; i < d; i++) /* |v| <= 1, weights are rounded by 2^-9 */
        if (!(fabs((double)y[i] - want[i] / sum) <= 0x1p-9))
            fail_msg("%d keys, token %d, head %d of %d: y[%d] is %g, expected %g", s->n_key, t, head, d, i,
                     (double)y[i], want[i] / sum);
}

static void talk_alone(struct pool *pool, struct arena *arena, const struct talk *s)
{
    for (int t = 0; t < s->n_tok; t++)
        talk_attend(pool, arena, s, t, t + 1, s->again);
}

static void check_attention(enum kv_type type)
{
    static const struct {
        int n_key, n_tok, group, d;
    } shape[] = {
        {1, 1, 1, 8},      {16, 16, 3, 32},   {17, 9, 1, 40}, {33, 5, 8, 64},   {77, 40, 2, 24},
        {100, 10, 20, 16}, {150, 30, 4, 128}, {31, 31, 5, 8}, {530, 24, 8, 32}, {1100, 3, 2, 48},
    };
    uint64_t seed = 3;
    struct pool *pool;
    struct arena arena;
    assert_int_equal(pool_open(&pool, 1, NULL), NYB_OK); /* there is one emulated unit */
    arena_init(&arena, 1 << 20);
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        struct talk s =
            talk_make(&arena, &seed, type, shape[i].n_key, shape[i].n_tok, shape[i].group, shape[i].d);
        s.round_q = i % 4 == 3;
        talk_attend(pool, &arena, &s, 0, s.n_tok, s.y);
        for (int t = 0; t < s.n_tok; t += 1 + t / 4)
            for (int head = 0; head < s.n_head; head += 3)
                talk_check_row(&s, t, head);
        talk_alone(pool, &arena, &s);
        assert_memory_equal(s.y, s.again, s.width * (size_t)s.n_tok * sizeof(float));
        arena_reset(&arena);
    }
    arena_free(&arena);
    pool_close(pool);
}

static void test_attention_bf16(void **state)
{
    (void)state;
    check_attention(KV_BF16);
}

static void test_attention_fp8(void **state)
{
    (void)state;
    check_attention(KV_FP8);
}

/* A value that is no number, or infinite, reaches those that see its token, and nobody else. */
static void test_attention_odd_values(void **state)
{
    (void)state;
    enum { D = 40, KEYS = 21, TOKENS = 12, BAD = 14 };
    uint64_t seed = 9;
    struct pool *pool;
    struct arena arena;
    assert_int_equal(pool_open(&pool, 1, NULL), NYB_OK);
    arena_init(&arena, 1 << 20);
    for (int round = 0; round < 4; round++) {
        struct talk s = talk_make(&arena, &seed, round < 2 ? KV_BF16 : KV_FP8, KEYS, TOKENS, 2, D);
        float k[D] = {0}, v[D] = {0};
        v[7] = round % 2 && round < 2 ? INFINITY : NAN;
        for (int h = 0; h < 2; h++)
            kv_store(&s.kv, s.table[BAD / KV_BLOCK] * KV_BLOCK + BAD % KV_BLOCK, h, k, v);
        talk_attend(pool, &arena, &s, 0, s.n_tok, s.y);
        talk_alone(pool, &arena, &s);
        for (int t = 0; t < s.n_tok; t++)
            for (size_t i = 0; i < s.width; i++) {
                size_t at = (size_t)t * s.width + i;
                bool reached = s.pos[t] >= BAD && i % D == 7;
                assert_int_equal(!isfinite(s.y[at]), reached);
                assert_int_equal(isinf(s.y[at]), isinf(s.again[at]));
                if (!reached)
                    assert_memory_equal(&s.y[at], &s.again[at], sizeof(float));
            }
        arena_reset(&arena);
    }
    arena_free(&arena);
    pool_close(pool);
}

#endif
