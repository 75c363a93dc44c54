/* Sequences in a paged cache, and the steps in which their queries, keys and values are worked on. */
#ifndef NYB_ATTENTION_CASE_H
#define NYB_ATTENTION_CASE_H

#include "kernels/attention.h"
#include "kernels/kv.h"
#include "kernels/ops_case.h"

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

static inline void world_open(struct world *w, const struct shape *s)
{
    *w = (struct world){.s = s};
    uint64_t seed = (uint64_t)(s->n_head * 100 + s->head_dim);
    for (int i = 0; i < s->n_seq; i++)
        w->max_len = s->len[i] > w->max_len ? s->len[i] : w->max_len;
    w->n_block_max = (w->max_len + KV_BLOCK - 1) / KV_BLOCK;
    int n_block = w->n_block_max * s->n_seq + 3;
    size_t keys = kv_block_key_bytes(s->type, s->n_kv_head, s->head_dim) * (size_t)n_block,
           values = kv_block_value_bytes(s->type, s->n_kv_head, s->head_dim) * (size_t)n_block;
    w->kv = (struct kv_layer){s->type,
                              aligned_alloc(64, keys),
                              aligned_alloc(64, values),
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

static inline void world_close(struct world *w)
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
static inline void world_step(struct world *w, int level, struct pool *pool, struct arena *arena,
                              const int *from, const int *to)
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
    struct batch b = {.n_seq = n_seq,
                      .n_tok = n_tok,
                      .n_block_max = w->n_block_max,
                      .pos = pos,
                      .slot = slot,
                      .seq_start = start,
                      .block_table = table};
    struct attention_args aa = {.q = q,
                                .y = y,
                                .kv = &w->kv,
                                .batch = &b,
                                .n_head = s->n_head,
                                .scale = 1 / sqrtf((float)s->head_dim),
                                .rotate = kernels->qkv_head};
    if (attention_may_rotate(pool, &aa))
        aa.qkv = &qa;
    else
        kernels->qkv(pool, &qa);
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
static inline void world_run(struct world *w, int level, struct pool *pool, int chunk, bool together)
{
    const struct shape *s = w->s;
    struct arena arena;
    arena_init(&arena, 1 << 16);
    size_t keys = kv_block_key_bytes(s->type, s->n_kv_head, s->head_dim) * (size_t)w->kv.n_block,
           values = kv_block_value_bytes(s->type, s->n_kv_head, s->head_dim) * (size_t)w->kv.n_block;
    memset(w->kv.k, 0xff, keys); /* NaN in all three formats */
    memset(w->kv.v, 0xff, values);
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

/* The plain kernels read every cache. */
static inline bool level_reads(int level, enum kv_type type)
{
    return type != KV_I16 || level == CPU_SCALAR || kernels_at((enum cpu_level)level)->integer_keys;
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
    {KV_I16, 4, 2, 32, 32, ROPE_HALF, true, 3, {70, 1, 33}},
    {KV_I16, 8, 4, 8, 8, ROPE_INTERLEAVED, false, 2, {129, 64}},
    {KV_I16, 3, 3, 40, 40, ROPE_HALF, false, 2, {50, 81}},
    {KV_I16, 12, 1, 128, 64, ROPE_HALF, true, 2, {100, 17}},
    {KV_I16, 2, 1, 1024, 256, ROPE_HALF, false, 1, {68}},
    {KV_I16, 2, 1, 16, 16, ROPE_HALF, false, 2, {1100, 513}},
};

#endif
