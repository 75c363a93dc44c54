/* Checks that attention gives the same bits, and leaves the same cache, whether rotation and the way into the
 * cache are in its launch or in one of their own. The kernel for one row, which has both, adds up in another
 * order. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_case.h"

#define POS_MAX 2400
#define EXTRA   2

/* Rows that are alone in their sequences, and a cache that holds all keys but theirs. */
struct step {
    int type, n_head, n_kv, d, rotary, n_row, extra, stride; /* extra: rows that are not real */
    bool interleaved, norm;
    int32_t *pos, *slot, *table;
    struct cuda_tile *single;
    size_t cache; /* bytes of keys, and of values */
};

/* Lengths at which something begins or ends: blocks, spans, a warp's and a block's last, what is whole. */
static int some_position(uint64_t *seed, int most)
{
    static const int near[] = {1, 16, 32, 64, 128, 256, 512, 1024, 2048};
    int n = 1, at;
    while (n < (int)COUNT_OF(near) && near[n] < most)
        n++;
    at = near[checkkern_int(seed, 0, n - 1)] + checkkern_int(seed, -2, 1);
    return checkkern_int(seed, 0, 3) ? (at < 0 ? 0 : at) : checkkern_int(seed, 0, most - 1);
}

static struct step make_step(struct gpu_case *c, uint64_t *seed, int round)
{
    static const int head_dim[] = {128, 64, 128, 32}, rows[] = {7, 31, 10, 20, 22, 1, 40, 12};
    struct step s = {.type = round % 2 ? CUDA_KV_FP8 : CUDA_KV_BF16,
                     .d = head_dim[round / 2 % 4],
                     .n_row = rows[round % 8],
                     .extra = EXTRA,
                     .interleaved = checkkern_int(seed, 0, 1),
                     .norm = checkkern_int(seed, 0, 1)};
    bool few = s.n_row <= 12, wide = few && s.d == 128 && round % 3 == 0; /* more than 16 heads a KV head */
    s.n_kv = s.n_row > 20 ? 3 : wide ? 1 : checkkern_int(seed, 1, 2);
    s.n_head = s.n_kv * (wide ? 18 : few ? checkkern_int(seed, 1, 10) : 2);
    s.rotary = 2 * checkkern_int(seed, 0, s.d / 2);
    if (round % 5 == 1) { /* one row alone, most of which have a kernel of their own */
        s.type = CUDA_KV_BF16;
        s.d = 128;
        s.n_row = 1;
        s.extra = 0;
        s.n_kv = checkkern_int(seed, 1, 6);
        s.n_head = s.n_kv * checkkern_int(seed, 1, 9);
        s.rotary = 64 * checkkern_int(seed, 1, 2);
        s.norm = checkkern_int(seed, 0, 3) > 0;
        s.interleaved = checkkern_int(seed, 0, 3) == 0;
    }
    s.stride = POS_MAX / CUDA_KV_BLOCK;
    size_t all = (size_t)(s.n_row + s.extra);
    s.pos = arena_alloc(c->g->arena, all, sizeof(*s.pos));
    s.slot = arena_alloc(c->g->arena, all, sizeof(*s.slot));
    s.single = arena_alloc(c->g->arena, all, sizeof(*s.single));
    s.table = arena_alloc(c->g->arena, (size_t)(s.n_row * s.stride), sizeof(*s.table));
    int n_block = 0;
    for (int i = 0; i < s.n_row + s.extra; i++) {
        bool real = i < s.n_row;
        s.pos[i] = real ? some_position(seed, !few               ? 100
                                              : i < 2 && s.extra ? POS_MAX
                                              : s.extra          ? 300
                                                                 : 2060)
                        : 0x7ffffff;
        s.slot[i] = 0x7ffffff;
        s.single[i] = real ? (struct cuda_tile){s.n_row - 1 - i, 1, s.n_row - 1 - i, 0}
                           : (struct cuda_tile){0x7ffffff, 1, 0x7ffffff, 0};
        for (int b = 0; real && b < s.stride; b++)
            s.table[i * s.stride + b] = b * CUDA_KV_BLOCK <= s.pos[i] ? n_block++ : -1;
        if (real)
            s.slot[i] =
                s.table[i * s.stride + s.pos[i] / CUDA_KV_BLOCK] * CUDA_KV_BLOCK + s.pos[i] % CUDA_KV_BLOCK;
    }
    s.cache = cuda_kv_block_bytes(s.type, s.n_kv, s.d) * (size_t)n_block;
    return s;
}

/* Keys, or values, of all tokens but the rows' own: there, and behind those, is NaN. */
static uint8_t *make_cache(struct gpu_case *c, uint64_t *seed, const struct step *s)
{
    size_t width = s->type == CUDA_KV_FP8 ? 1 : 2, n = s->cache / width;
    size_t per_block = (size_t)(CUDA_KV_BLOCK * s->n_kv * s->d);
    uint8_t *cache = arena_alloc(c->g->arena, n, width);
    for (size_t i = 0; i < n; i++) {
        if (width == 1)
            cache[i] = (uint8_t)(checkkern_int(seed, 0, 0x6f) | checkkern_int(seed, 0, 1) << 7);
        else
            ((uint16_t *)cache)[i] =
                (uint16_t)(0x3c00 + checkkern_int(seed, 0, 0x3ff) + (checkkern_int(seed, 0, 1) << 15));
    }
    for (int i = 0; i < s->n_row; i++) /* of whole blocks whose first token is the row's own all is NaN */
        if (s->slot[i] % CUDA_KV_BLOCK == 0)
            memset(cache + (size_t)(s->slot[i] / CUDA_KV_BLOCK) * per_block * width, 0x7f, per_block * width);
    return cache;
}

/* Where q, k and v go: a cache of its own each time. */
struct way {
    struct cuda_op qkv, attention;
};

static struct way make_way(struct gpu_case *c, const struct step *s, const float *q, const float *k,
                           const float *v, const float *norm, const float *angle, const uint8_t *keys,
                           const uint8_t *values)
{
    size_t all = (size_t)(s->n_row + s->extra), d = (size_t)s->d, head = (size_t)s->n_head * d,
           kv = (size_t)s->n_kv * d, half = (size_t)s->rotary / 2;
    float scale[2] = {0.02f, 0.03f};
    int32_t n_split = 1;
    for (int i = 0; i < s->n_row; i++)
        n_split = s->pos[i] / CUDA_SPLIT_KEYS >= n_split ? s->pos[i] / CUDA_SPLIT_KEYS + 1 : n_split;
    struct way w = {.qkv = {.kind = CUDA_OP_QKV, .n_row = (int32_t)all},
                    .attention = {.kind = CUDA_OP_ATTENTION, .n_row = (int32_t)all}};
    struct cuda_kv cache = {.k = gpu_case_in_out(c, keys, s->cache),
                            .v = gpu_case_in_out(c, values, s->cache),
                            .scale = gpu_case_in(c, scale, sizeof(scale)),
                            .type = s->type,
                            .n_kv_head = s->n_kv,
                            .head_dim = s->d};
    const int32_t *count = gpu_case_in(c, &s->n_row, sizeof(s->n_row));
    w.qkv.count = w.attention.count = count;
    w.qkv.as.qkv = (struct cuda_qkv){.q = gpu_case_in_out(c, q, all * head * 4),
                                     .k = gpu_case_in_out(c, k, all * kv * 4),
                                     .v = gpu_case_in_out(c, v, all * kv * 4),
                                     .q_norm = s->norm ? gpu_case_in(c, norm, d * 4) : NULL,
                                     .k_norm = s->norm ? gpu_case_in(c, norm + d, d * 4) : NULL,
                                     .cos = gpu_case_in(c, angle, (POS_MAX * half + 1) * 4),
                                     .sin = gpu_case_in(c, angle + POS_MAX * half, (POS_MAX * half + 1) * 4),
                                     .pos = gpu_case_in(c, s->pos, all * 4),
                                     .slot = gpu_case_in(c, s->slot, all * 4),
                                     .q_out = gpu_case_out(c, all * head * 2),
                                     .kv = cache,
                                     .n_head = s->n_head,
                                     .rotary_dim = s->rotary,
                                     .interleaved = s->interleaved,
                                     .eps = 1e-6f};
    w.attention.as.attention =
        (struct cuda_attention){.q = w.qkv.as.qkv.q_out,
                                .y = gpu_case_out(c, all * head * 2),
                                .kv = cache,
                                .pos = w.qkv.as.qkv.pos,
                                .block_table = gpu_case_in(c, s->table, (size_t)(s->n_row * s->stride) * 4),
                                .stride = gpu_case_in(c, &s->stride, 4),
                                .single = gpu_case_in(c, s->single, all * sizeof(*s->single)),
                                .single_count = count,
                                .tile_count = count,
                                .n_single = (int32_t)all,
                                .n_split = n_split,
                                .n_head = s->n_head,
                                .scale = 1.0f / sqrtf((float)s->d)};
    return w;
}

static bool same(struct gpu_case *c, const struct step *s, const char *what, const void *a, const void *b,
                 size_t bytes)
{
    const uint8_t *x = gpu_case_result(c, a), *y = gpu_case_result(c, b);
    size_t at = 0;
    while (at < bytes && x[at] == y[at])
        at++;
    return checkkern_case(c->report, at == bytes,
                          "%s in one launch: other bits in byte %zu of %zu (cache type %d, %d heads of %d "
                          "over %d, %d rows, the first at %d)",
                          what, at, bytes, s->type, s->n_head, s->d, s->n_kv, s->n_row, s->pos[0]);
}

/* Rows whose sums have another order. */
static bool near(struct gpu_case *c, const struct step *s, const uint16_t *a, const uint16_t *b, size_t n)
{
    const uint16_t *x = gpu_case_result(c, a), *y = gpu_case_result(c, b);
    size_t at = 0;
    double worst = 0.0;
    for (size_t i = 0; i < n; i++) {
        double u = bf16_to_float(x[i]), v = bf16_to_float(y[i]), off = fabs(u - v) / (fabs(v) * 0.008 + 1e-3);
        if (!(off <= worst))
            worst = off, at = i;
    }
    return checkkern_case(
        c->report, worst <= 1.0,
        "a row in one launch: element %zu of %zu is off by %.2f of the tolerance (%d heads over "
        "%d, at %d)",
        at, n, worst, s->n_head, s->n_kv, s->pos[0]);
}

/* A row alone, which a kernel of its own takes. */
static bool is_one(const struct step *s)
{
    bool turns = s->norm && !s->interleaved && (s->rotary == 64 || s->rotary == 128);
    return s->n_row + s->extra == 1 && s->type == CUDA_KV_BF16 && s->d == 128 && s->n_head / s->n_kv <= 8 &&
           s->pos[0] < 2048 && turns;
}

/* Which is which shows in the rounded queries, which only a launch of their own writes. */
static bool were_joined(struct gpu_case *c, const struct step *s, const struct way *one,
                        const struct way *two)
{
    const uint16_t *q = gpu_case_result(c, one->qkv.as.qkv.q_out),
                   *other = gpu_case_result(c, two->qkv.as.qkv.q_out);
    size_t bytes = (size_t)(s->n_row * s->n_head * s->d) * sizeof(*q);
    bool joined = memcmp(q, other, bytes) != 0,
         expected = s->n_row + s->extra > CUDA_JOINED_ABOVE || is_one(s);
    return checkkern_case(c->report, joined == expected, "%d rows of heads of %d: %s", s->n_row, s->d,
                          joined ? "one launch instead of two" : "two launches instead of one");
}

bool checkkern_cuda_joined(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++) {
        struct gpu_case c;
        gpu_case_begin(&c, g, r);
        struct step s = make_step(&c, &seed, i);
        size_t all = (size_t)(s.n_row + s.extra), head = all * (size_t)(s.n_head * s.d),
               kv = all * (size_t)(s.n_kv * s.d);
        const float *q = gpu_case_floats(&c, &seed, head, 2.0f), *k = gpu_case_floats(&c, &seed, kv, 1.0f),
                    *v = gpu_case_floats(&c, &seed, kv, 1.0f),
                    *norm = gpu_case_floats(&c, &seed, 2 * (size_t)s.d, 1.0f),
                    *angle = gpu_case_floats(&c, &seed, (size_t)(POS_MAX * s.rotary) + 1, 1.0f);
        const uint8_t *keys = make_cache(&c, &seed, &s), *values = make_cache(&c, &seed, &s);
        struct way one = make_way(&c, &s, q, k, v, norm, angle, keys, values),
                   two = make_way(&c, &s, q, k, v, norm, angle, keys, values);
        /* those that are not neighbours in the array are launches of their own */
        const struct cuda_op op[] = {two.qkv, one.qkv, one.attention, two.attention};
        ok = gpu_case_run(&c, op, 4) && were_joined(&c, &s, &one, &two) &&
             (is_one(&s) ? near(&c, &s, one.attention.as.attention.y, two.attention.as.attention.y, head)
                         : same(&c, &s, "rows", one.attention.as.attention.y, two.attention.as.attention.y,
                                head * 2)) &&
             same(&c, &s, "keys", one.qkv.as.qkv.kv.k, two.qkv.as.qkv.kv.k, s.cache) &&
             same(&c, &s, "values", one.qkv.as.qkv.kv.v, two.qkv.as.qkv.kv.v, s.cache);
        gpu_case_end(&c);
    }
    return ok;
}
