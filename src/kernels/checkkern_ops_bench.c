/* Timings of the operators beside the grouped product, on the sizes of a 30B-A3B model: hidden 2048, 128
 * experts of which 8, 32 heads and 4 KV heads of 128. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/checkkern.h"
#include "kernels/kv.h"
#include "kernels/ops.h"

#define TRIES        7
#define HIDDEN       2048
#define HEADS        32
#define KV_HEADS     4
#define HEAD_DIM     128
#define SPREAD_BYTES ((size_t)128 << 20) /* of cache: beyond the last-level cache */

typedef void bench_fn(const struct checkkern_env *env, void *arg);

/* Best of TRIES, of `repeat` calls each: seconds a call. */
static double time_best(const struct checkkern_env *env, bench_fn *fn, void *arg, int repeat)
{
    double best = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        uint64_t start = clock_ns();
        for (int j = 0; j < repeat; j++)
            fn(env, arg);
        best = fmin(best, (double)(clock_ns() - start) * 1e-9 / repeat);
    }
    return best;
}

static float *make_floats(const struct checkkern_env *env, size_t n)
{
    uint64_t seed = env->seed;
    float *x = arena_alloc(env->arena, n, sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = checkkern_float(&seed);
    return x;
}

static float *make_equal(const struct checkkern_env *env, size_t n, float value)
{
    float *x = arena_alloc(env->arena, n, sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = value;
    return x;
}

static void call_norm(const struct checkkern_env *env, void *arg)
{
    kernels_at(env->level)->rmsnorm(env->pool, arg);
}

void checkkern_bench_norm(const struct checkkern_env *env, struct checkkern_bench *out)
{
    static const int rows[] = {1, 32, 512};
    for (int i = 0; i < 3; i++) {
        char name[64];
        size_t count = (size_t)rows[i] * HIDDEN;
        struct norm_args a = {.x = make_floats(env, count),
                              .weight = make_floats(env, HIDDEN),
                              .residual = make_floats(env, count),
                              .y = make_floats(env, count),
                              .m = rows[i],
                              .n = HIDDEN,
                              .eps = 1e-6f};
        double seconds = time_best(env, call_norm, &a, 200 / rows[i] + 2);
        snprintf(name, sizeof(name), "rmsnorm %d x %d (%.2f us)", rows[i], HIDDEN, seconds * 1e6);
        checkkern_add(out, name, seconds, 4.0 * (double)count * 4, 4.0 * (double)count, CHECKKERN_F32);
    }
}

static void call_router(const struct checkkern_env *env, void *arg)
{
    kernels_at(env->level)->router(env->pool, arg);
}

void checkkern_bench_router(const struct checkkern_env *env, struct checkkern_bench *out)
{
    static const int rows[] = {1, 32};
    for (int i = 0; i < 2; i++) {
        char name[64];
        size_t m = (size_t)rows[i];
        struct router_args a = {.logits = make_floats(env, m * 128),
                                .m = rows[i],
                                .n_expert = 128,
                                .top_k = 8,
                                .n_group = 1,
                                .normalize = true,
                                .scaling = 1,
                                .expert = arena_alloc(env->arena, m * 8, 4),
                                .weight = arena_alloc(env->arena, m * 8, 4)};
        double seconds = time_best(env, call_router, &a, 200);
        snprintf(name, sizeof(name), "router %d x 128, top 8 (%.2f us)", rows[i], seconds * 1e6);
        checkkern_add(out, name, seconds, (double)m * 128 * 4, (double)m * 128 * 20, CHECKKERN_F32);
    }
}

static void call_combine(const struct checkkern_env *env, void *arg)
{
    kernels_at(env->level)->combine(env->pool, arg);
}

void checkkern_bench_combine(const struct checkkern_env *env, struct checkkern_bench *out)
{
    static const int rows[] = {1, 32};
    for (int i = 0; i < 2; i++) {
        char name[64];
        size_t m = (size_t)rows[i];
        int32_t *slot = arena_alloc(env->arena, m * 8, sizeof(*slot));
        for (size_t s = 0; s < m * 8; s++)
            slot[s] = (int32_t)s;
        struct combine_args a = {make_floats(env, m * 8 * HIDDEN),
                                 slot,
                                 make_floats(env, m * 8),
                                 NULL,
                                 make_floats(env, m * HIDDEN),
                                 rows[i],
                                 HIDDEN,
                                 8};
        double seconds = time_best(env, call_combine, &a, 100);
        snprintf(name, sizeof(name), "combine %d x 8 x %d (%.2f us)", rows[i], HIDDEN, seconds * 1e6);
        checkkern_add(out, name, seconds, (double)m * 9 * HIDDEN * 4, (double)m * 16 * HIDDEN, CHECKKERN_F32);
    }
}

/* As many layers' caches as fill SPREAD_BYTES, used in turn, so that each call reads memory. */
struct cache_bench {
    struct kv_layer *layer;
    int n_layer, next;
    struct qkv_args qkv;
    struct attention_args attention;
};

static void make_cache(const struct checkkern_env *env, struct cache_bench *b, enum kv_type type, int n_block)
{
    size_t keys = kv_block_key_bytes(type, KV_HEADS, HEAD_DIM) * (size_t)n_block;
    size_t bytes = keys + kv_block_value_bytes(type, KV_HEADS, HEAD_DIM) * (size_t)n_block;
    *b = (struct cache_bench){.n_layer = (int)(SPREAD_BYTES / bytes) + 1};
    b->layer = arena_alloc(env->arena, (size_t)b->n_layer, sizeof(*b->layer));
    for (int l = 0; l < b->n_layer; l++) {
        uint8_t *k = arena_alloc(env->arena, bytes, 1);
        memset(k, 0x3c, bytes); /* about 0.01 in every type but FP8, where it is 1.5 */
        b->layer[l] = (struct kv_layer){type, k, k + keys, n_block, KV_HEADS, HEAD_DIM, 1, 1};
    }
}

static void call_qkv(const struct checkkern_env *env, void *arg)
{
    struct cache_bench *b = arg;
    kernels_at(env->level)->qkv(env->pool, &b->qkv);
}

void checkkern_bench_qkv(const struct checkkern_env *env, struct checkkern_bench *out)
{
    static const int rows[] = {1, 32, 512};
    for (int i = 0; i < 3; i++) {
        char name[64];
        struct cache_bench b;
        size_t m = (size_t)rows[i];
        int n_block = (rows[i] + KV_BLOCK - 1) / KV_BLOCK;
        make_cache(env, &b, kv_kept(kernels_at(env->level), KV_BF16), n_block);
        int32_t *pos = arena_alloc(env->arena, m, sizeof(*pos));
        for (int t = 0; t < rows[i]; t++)
            pos[t] = t;
        /* In place, call after call: weights and rotations that neither grow nor fade the values. */
        const float *norm = make_equal(env, HEAD_DIM, 1.0f);
        const float *cosine = make_equal(env, m * HEAD_DIM / 2, 0.8f);
        const float *sine = make_equal(env, m * HEAD_DIM / 2, 0.6f);
        b.qkv = (struct qkv_args){make_floats(env, m * HEADS * HEAD_DIM),
                                  make_floats(env, m * KV_HEADS * HEAD_DIM),
                                  make_floats(env, m * KV_HEADS * HEAD_DIM),
                                  norm,
                                  norm,
                                  1e-6f,
                                  cosine,
                                  sine,
                                  ROPE_HALF,
                                  HEAD_DIM,
                                  HEADS,
                                  KV_HEADS,
                                  HEAD_DIM,
                                  rows[i],
                                  pos,
                                  pos,
                                  b.layer};
        double seconds = time_best(env, call_qkv, &b, 200 / rows[i] + 2);
        double moved = (double)m * HEAD_DIM * (8 * HEADS + 12 * KV_HEADS);
        snprintf(name, sizeof(name), "qkv %d tokens, bf16 cache (%.2f us)", rows[i], seconds * 1e6);
        checkkern_add(out, name, seconds, moved, (double)m * HEAD_DIM * (HEADS + KV_HEADS) * 10,
                      CHECKKERN_F32);
    }
}

static void call_attention(const struct checkkern_env *env, void *arg)
{
    struct cache_bench *b = arg;
    struct arena scratch;
    arena_init(&scratch, 1 << 20);
    b->attention.kv = &b->layer[b->next++ % b->n_layer];
    kernels_at(env->level)->attention(env->pool, &scratch, &b->attention);
    arena_free(&scratch);
}

/* The last n_tok tokens of n_key. */
static void bench_attention(const struct checkkern_env *env, struct checkkern_bench *out, enum kv_type type,
                            bool round_q, int n_key, int n_tok)
{
    char name[64];
    struct cache_bench b;
    int n_block = (n_key + KV_BLOCK - 1) / KV_BLOCK;
    make_cache(env, &b, type, n_block);
    int32_t *table = arena_alloc(env->arena, (size_t)n_block, 4),
            *pos = arena_alloc(env->arena, (size_t)n_tok, 4);
    double product = 0; /* multiply-adds */
    for (int i = 0; i < n_block; i++)
        table[i] = (int32_t)((i * 7919ll) % n_block); /* scattered; 7919 is prime */
    for (int t = 0; t < n_tok; t++) {
        pos[t] = n_key - n_tok + t;
        product += 2.0 * (pos[t] + 1) * HEADS * HEAD_DIM;
    }
    int32_t start[] = {0, n_tok};
    struct batch batch = {.n_seq = 1,
                          .n_tok = n_tok,
                          .n_block_max = n_block,
                          .pos = pos,
                          .seq_start = start,
                          .block_table = table};
    float *q = make_floats(env, (size_t)n_tok * HEADS * HEAD_DIM);
    b.attention = (struct attention_args){
        .q = q,
        .y = make_floats(env, (size_t)n_tok * HEADS * HEAD_DIM),
        .batch = &batch,
        .n_head = HEADS,
        .scale = 0.0883883f,
        .round_q = round_q,
    };
    double seconds = time_best(env, call_attention, &b, n_tok > 1 ? 2 : b.n_layer);
    snprintf(name, sizeof(name), "attention %s%s %s, %d keys (%.0f us)", kv_type_name(type),
             round_q ? ", q rounded," : "", n_tok > 1 ? "prefill 512" : "decode", n_key, seconds * 1e6);
    double bytes = (double)(kv_block_key_bytes(type, KV_HEADS, HEAD_DIM) +
                            kv_block_value_bytes(type, KV_HEADS, HEAD_DIM)) *
                   n_block;
    bool f32 = type == KV_F32 || env->level < CPU_AVX512; /* which has products of bf16 */
    checkkern_add(out, name, seconds, bytes, 2 * product,
                  f32                     ? CHECKKERN_F32
                  : env->level >= CPU_AMX ? CHECKKERN_TILE
                                          : CHECKKERN_BF16);
}

static void bench_type(const struct checkkern_env *env, struct checkkern_bench *out, enum kv_type type)
{
    for (int round_q = 0; round_q < (type == KV_F32 || type == KV_I16 ? 1 : 2); round_q++) {
        bench_attention(env, out, type, round_q, env->level == CPU_SCALAR ? 512 : 4096, 1);
        if (env->level == CPU_SCALAR)
            return; /* correct, not fast: one figure says so */
        bench_attention(env, out, type, round_q, 32768, 1);
        bench_attention(env, out, type, round_q, 512, 512);
        bench_attention(env, out, type, round_q, 4096, 512);
    }
}

void checkkern_bench_attention_f32(const struct checkkern_env *env, struct checkkern_bench *out)
{
    bench_type(env, out, KV_F32);
}

void checkkern_bench_attention_bf16(const struct checkkern_env *env, struct checkkern_bench *out)
{
    bench_type(env, out, kv_kept(kernels_at(env->level), KV_BF16));
}

void checkkern_bench_attention_fp8(const struct checkkern_env *env, struct checkkern_bench *out)
{
    bench_type(env, out, KV_FP8);
}
