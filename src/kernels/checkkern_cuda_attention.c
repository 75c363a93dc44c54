/* Checks of what happens to q, k and v on a GPU, and of attention over the cache that this leaves. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_case.h"

#define SEQ_MAX       4
#define EXTRA_MAX     12
#define KEYS_MAX      2200
#define KEYS_WHOLE    2048 /* more of a sequence are cut into parts */
#define BF16_ROUNDING 0x1p-8

/* Some sequences; all their tokens go through qkv, sequence after sequence, and the last ones ask. */
struct scene {
    int type, n_head, n_kv, d, rotary, n_seq, n_key[SEQ_MAX], n_ask[SEQ_MAX], n_token, n_ask_all, stride;
    bool interleaved, norm;
    float scale[2]; /* of keys and values in the cache */
    float *q, *k, *v, *q_norm, *k_norm, *cosine, *sine;
    int32_t *pos, *slot, *table; /* by token; table [n_seq][stride] */
    struct cuda_qkv qkv;
};

static const int head_dim_table[] = {32, 128, 64, 24, 128, 96, 32, 64};

/* One sequence that asks for one row: of several spans for each warp, or cut into parts, with either type of
 * cache. */
static bool is_long(int round)
{
    return round % 6 >= 4;
}
static int long_keys(uint64_t *seed, int round)
{
    bool cut = round % 12 == 5 || round % 12 == 10;
    return cut ? checkkern_int(seed, KEYS_WHOLE + 1, KEYS_MAX)
               : checkkern_int(seed, KEYS_WHOLE / 2, KEYS_WHOLE);
}

static void make_sequences(struct gpu_case *c, uint64_t *seed, int round, struct scene *s)
{
    s->n_seq = is_long(round) ? 1 : checkkern_int(seed, 1, SEQ_MAX);
    for (int i = 0; i < s->n_seq; i++) {
        s->n_key[i] =
            is_long(round) ? long_keys(seed, round) : checkkern_int(seed, 1, round % 3 == 2 ? 400 : 90);
        s->n_ask[i] = is_long(round) || checkkern_int(seed, 0, 1)
                          ? 1
                          : checkkern_int(seed, 1, s->n_key[i] < 150 ? s->n_key[i] : 150);
        s->n_token += s->n_key[i];
        s->n_ask_all += s->n_ask[i];
        int blocks = (s->n_key[i] + CUDA_KV_BLOCK - 1) / CUDA_KV_BLOCK;
        s->stride = blocks > s->stride ? blocks : s->stride;
    }
    s->table = arena_alloc(c->g->arena, (size_t)(s->n_seq * s->stride), sizeof(int32_t));
    s->pos = arena_alloc(c->g->arena, (size_t)s->n_token, sizeof(int32_t));
    s->slot = arena_alloc(c->g->arena, (size_t)s->n_token, sizeof(int32_t));
    for (int i = 0, token = 0; i < s->n_seq; i++) {
        for (int b = 0; b < s->stride; b++) /* blocks of the sequences take turns, from the last on */
            s->table[i * s->stride + b] =
                b * CUDA_KV_BLOCK < s->n_key[i] ? s->n_seq * (s->stride - 1 - b) + i : -1;
        for (int p = 0; p < s->n_key[i]; p++, token++) {
            s->pos[token] = p;
            s->slot[token] = s->table[i * s->stride + p / CUDA_KV_BLOCK] * CUDA_KV_BLOCK + p % CUDA_KV_BLOCK;
        }
    }
}

static struct scene make_scene(struct gpu_case *c, uint64_t *seed, int round)
{
    struct scene s = {.type = round % 8 == 7 ? CUDA_KV_F32
                              : round % 2    ? CUDA_KV_FP8
                                             : CUDA_KV_BF16,
                      .d = head_dim_table[checkkern_int(seed, 0, 7)],
                      .n_kv = is_long(round) ? 1 : checkkern_int(seed, 1, 3),
                      .interleaved = checkkern_int(seed, 0, 1),
                      .norm = checkkern_int(seed, 0, 1),
                      .scale = {0.02f, 0.03f}};
    s.n_head =
        s.n_kv * checkkern_int(seed, 1, round % 5 == 4 ? 20 : 8); /* more than eight: two tiles of heads */
    s.rotary = 2 * checkkern_int(seed, 0, s.d / 2);
    if (round % 2 == 0) /* then keys are what they were, rounded: attention can be held to more */
        s.rotary = 0, s.norm = false;
    make_sequences(c, seed, round, &s);
    size_t n = (size_t)s.n_token, half = (size_t)s.rotary / 2, d = (size_t)s.d;
    s.q = gpu_case_floats(c, seed, n * (size_t)s.n_head * d, 2.0f);
    s.k = gpu_case_floats(c, seed, n * (size_t)s.n_kv * d, 1.0f);
    s.v = gpu_case_floats(c, seed, n * (size_t)s.n_kv * d, 1.0f);
    s.q_norm = gpu_case_floats(c, seed, d, 1.0f);
    s.k_norm = gpu_case_floats(c, seed, d, 1.0f);
    s.cosine = gpu_case_floats(c, seed, KEYS_MAX * half + 1, 1.0f);
    s.sine = gpu_case_floats(c, seed, KEYS_MAX * half + 1, 1.0f);
    return s;
}

/* The operator that fills the cache; its rows end with some that do not count. */
static struct cuda_op qkv_op(struct gpu_case *c, struct scene *s)
{
    enum { EXTRA = 3 };
    size_t n = (size_t)s->n_token, all = n + EXTRA, d = (size_t)s->d, head = (size_t)s->n_head * d;
    size_t kv = (size_t)s->n_kv * d, half = (size_t)s->rotary / 2;
    size_t cache = cuda_kv_block_bytes(s->type, s->n_kv, s->d) * (size_t)(s->n_seq * s->stride);
    int32_t *at = arena_alloc(c->g->arena, all, sizeof(*at)),
            *where = arena_alloc(c->g->arena, all, sizeof(*at));
    for (size_t t = 0; t < all; t++) {
        at[t] = t < n ? s->pos[t] : 0x7ffffff;
        where[t] = t < n ? s->slot[t] : 0x7ffffff;
    }
    float *q = arena_alloc(c->g->arena, all * head, 4), *k = arena_alloc(c->g->arena, all * kv, 4),
          *v = arena_alloc(c->g->arena, all * kv, 4);
    memcpy(q, s->q, n * head * 4);
    memcpy(k, s->k, n * kv * 4);
    memcpy(v, s->v, n * kv * 4);
    memset(q + n * head, 0, EXTRA * head * 4);
    memset(k + n * kv, 0, EXTRA * kv * 4);
    memset(v + n * kv, 0, EXTRA * kv * 4);
    struct cuda_op op = {.kind = CUDA_OP_QKV, .n_row = (int32_t)all};
    op.count = gpu_case_in(c, &s->n_token, sizeof(s->n_token));
    float one[2] = {1.0f, 1.0f};
    s->qkv = (struct cuda_qkv){.q = gpu_case_in(c, q, all * head * 4),
                               .k = gpu_case_in_out(c, k, all * kv * 4), /* may be changed */
                               .v = gpu_case_in_out(c, v, all * kv * 4),
                               .q_norm = s->norm ? gpu_case_in(c, s->q_norm, d * 4) : NULL,
                               .k_norm = s->norm ? gpu_case_in(c, s->k_norm, d * 4) : NULL,
                               .cos = gpu_case_in(c, s->cosine, (KEYS_MAX * half + 1) * 4),
                               .sin = gpu_case_in(c, s->sine, (KEYS_MAX * half + 1) * 4),
                               .pos = gpu_case_in(c, at, all * 4),
                               .slot = gpu_case_in(c, where, all * 4),
                               .q_out = gpu_case_out(c, all * head * 2),
                               .kv = {.k = gpu_case_out(c, cache),
                                      .v = gpu_case_out(c, cache),
                                      .scale = gpu_case_in(c, s->type == CUDA_KV_FP8 ? s->scale : one, 8),
                                      .type = s->type,
                                      .n_kv_head = s->n_kv,
                                      .head_dim = s->d},
                               .n_head = s->n_head,
                               .rotary_dim = s->rotary,
                               .interleaved = s->interleaved,
                               .eps = 1e-6f};
    op.as.qkv = s->qkv;
    return op;
}

/* A head after norm and rotation, in double. */
static void finish(const struct scene *s, const float *x, const float *norm, int pos, double *out)
{
    double square = 0;
    int half = s->rotary / 2;
    for (int i = 0; i < s->d; i++)
        square += (double)x[i] * (double)x[i];
    for (int i = 0; i < s->d; i++)
        out[i] = s->norm ? (double)x[i] / sqrt(square / s->d + 1e-6) * (double)norm[i] : (double)x[i];
    for (int i = 0; i < half; i++) {
        double *a = out + (s->interleaved ? 2 * i : i), *b = out + (s->interleaved ? 2 * i + 1 : i + half);
        double u = *a, v = *b, c = (double)s->cosine[pos * half + i], n = (double)s->sine[pos * half + i];
        *a = u * c - v * n;
        *b = v * c + u * n;
    }
}

static bool check_q(struct gpu_case *c, const struct scene *s)
{
    const uint16_t *out = gpu_case_result(c, s->qkv.q_out);
    double *x = arena_alloc(c->g->arena, (size_t)s->d, sizeof(double));
    for (int h = 0; h < s->n_token * s->n_head; h++) {
        finish(s, s->q + h * s->d, s->q_norm, s->pos[h / s->n_head], x);
        for (int i = 0; i < s->d; i++) {
            double found = (double)bf16_to_float(out[h * s->d + i]);
            bool ok = checkkern_near(c->report, found, x[i], BF16_ROUNDING * fabs(x[i]) + 1e-5);
            if (!checkkern_case(c->report, ok, "q of token %d, head %d, dimension %d: %g, expected %g",
                                h / s->n_head, h % s->n_head, i, found, x[i]))
                return false;
        }
    }
    return true;
}

bool checkkern_cuda_qkv(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < g->rounds && ok; i++) {
        struct gpu_case c;
        gpu_case_begin(&c, g, r);
        struct scene s = make_scene(&c, &seed, 2 * i + 1);
        struct cuda_op op = qkv_op(&c, &s);
        ok = gpu_case_run(&c, &op, 1) && check_q(&c, &s);
        gpu_case_end(&c);
    }
    return ok;
}

/* ---- attention ------------------------------------------------------------------------------------- */

/* What the cache gives back for x. */
static double stored(const struct scene *s, double x, int which)
{
    if (s->type == CUDA_KV_F32)
        return x;
    if (s->type == CUDA_KV_BF16)
        return (double)bf16_to_float(bf16_from_float((float)x));
    float inverse = 1.0f / s->scale[which];
    return (double)(fp4_e4m3_value[fp4_e4m3_from_float((float)x * inverse)] * s->scale[which]);
}

/* One head of one row over n keys from token `first` on. What may be off: the weights and the result are
 * rounded to bf16, and keys that were computed may be rounded to a neighbour of ours. */
static void attend(const struct scene *s, const uint16_t *q, int first, int n, int kv_head, double *weight,
                   double *key, double *y, double *allowed)
{
    double max = -INFINITY, sum = 0, step = s->type == CUDA_KV_FP8 ? 0x1p-3 : 0x1p-7;
    double slack = 2.0 * BF16_ROUNDING;
    for (int j = 0; j < n; j++) {
        size_t at = (size_t)((first + j) * s->n_kv + kv_head) * (size_t)s->d;
        double score = 0, off = 0;
        finish(s, s->k + at, s->k_norm, s->pos[first + j], key);
        for (int i = 0; i < s->d; i++) {
            double x = (double)bf16_to_float(q[i]), k = stored(s, key[i], 0);
            score += x * k;
            off += x * k * x * k;
        }
        weight[j] = score / sqrt((double)s->d);
        max = fmax(max, weight[j]);
        if (s->rotary || s->norm) /* some tens of keys' elements at most fall to the other side */
            slack = fmax(slack, step * sqrt(off) / sqrt((double)s->d));
    }
    for (int j = 0; j < n; j++)
        sum += weight[j] = exp(weight[j] - max);
    for (int i = 0; i < s->d; i++) {
        y[i] = allowed[i] = 0;
        for (int j = 0; j < n; j++) {
            size_t at = (size_t)((first + j) * s->n_kv + kv_head) * (size_t)s->d + (size_t)i;
            double term = weight[j] / sum * stored(s, (double)s->v[at], 1);
            y[i] += term;
            allowed[i] += fabs(term) * slack;
        }
    }
}

/* One row sequences are `single`, others are cut into tiles; both lists end with some that do not count: of
 * `single` `extra`, which may make it a step of more than eight rows, for which there are kernels and parts
 * of their own. `tile`: rows of a tile, 20 or more; n_split: at least. */
struct lists {
    struct cuda_tile single[SEQ_MAX + EXTRA_MAX], tile[SEQ_MAX * 8];
    int n_single, n_tile, n_image, n_split, n_extra;
};

static struct lists make_lists(const struct scene *s, int extra, int n_split, int tile)
{
    struct lists l = {.n_split = n_split, .n_extra = extra};
    for (int i = 0, row = 0; i < s->n_seq; row += s->n_ask[i++]) {
        if (s->n_ask[i] == 1) {
            int splits = (s->n_key[i] + CUDA_SPLIT_KEYS - 1) / CUDA_SPLIT_KEYS;
            l.single[l.n_single++] = (struct cuda_tile){row, 1, i, 0};
            l.n_split = splits > l.n_split ? splits : l.n_split;
            continue;
        }
        for (int at = 0; at < s->n_ask[i]; at += tile) {
            int n = s->n_ask[i] - at < tile ? s->n_ask[i] - at : tile;
            l.tile[l.n_tile++] = (struct cuda_tile){row + at, n, i, l.n_image};
        }
        l.n_image += (s->n_key[i] + CUDA_IMAGE_KEYS - 1) / CUDA_IMAGE_KEYS;
    }
    l.tile[l.n_tile] = (struct cuda_tile){0x7ffffff, 1, 0x7ffffff, 0};
    for (int i = 0; i < l.n_extra; i++)
        l.single[l.n_single + i] = l.tile[l.n_tile];
    return l;
}

/* Rows up to a power of two have the same order of sums. */
static int row_class(int n)
{
    int rows = 1;
    while (rows < n)
        rows *= 2;
    return rows;
}

static struct cuda_op attention_op(struct gpu_case *c, const struct scene *s, const uint16_t *q,
                                   const struct lists *l, bool images, const int32_t *pos)
{
    size_t n = (size_t)(s->n_ask_all * s->n_head * s->d);
    struct cuda_op op = {.kind = CUDA_OP_ATTENTION, .n_row = s->n_ask_all};
    op.as.attention = (struct cuda_attention){
        .q = gpu_case_in(c, q, n * 2),
        .y = gpu_case_out(c, n * 2),
        .kv = s->qkv.kv,
        .pos = gpu_case_in(c, pos, (size_t)s->n_ask_all * 4),
        .block_table = gpu_case_in(c, s->table, (size_t)(s->n_seq * s->stride) * 4),
        .stride = gpu_case_in(c, &s->stride, 4),
        .single = gpu_case_in(c, l->single, (size_t)(l->n_single + l->n_extra) * sizeof(l->single[0])),
        .tile = gpu_case_in(c, l->tile, (size_t)(l->n_tile + 1) * sizeof(l->tile[0])),
        .single_count = gpu_case_in(c, &l->n_single, 4),
        .tile_count = gpu_case_in(c, &l->n_tile, 4),
        .n_single = l->n_single + l->n_extra,
        .n_tile = l->n_tile + 1,
        .n_image = images ? l->n_image : 0,
        .n_split = l->n_split,
        .n_head = s->n_head,
        .scale = 1.0f / sqrtf((float)s->d)};
    return op;
}

static bool check_y(struct gpu_case *c, const struct scene *s, const uint16_t *q, const uint16_t *y)
{
    double *weight = arena_alloc(c->g->arena, KEYS_MAX, sizeof(double)),
           *work = arena_alloc(c->g->arena, 3 * (size_t)s->d, sizeof(double));
    for (int i = 0, first = 0, row = 0; i < s->n_seq; first += s->n_key[i++])
        for (int t = 0; t < s->n_ask[i]; t++, row++)
            for (int h = 0; h < s->n_head; h++) {
                size_t at = (size_t)(row * s->n_head + h) * (size_t)s->d;
                int n = s->n_key[i] - s->n_ask[i] + t + 1;
                double *expected = work + s->d, *allowed = expected + s->d;
                if (t % 7 && h % 5) /* enough of them */
                    continue;
                attend(s, q + at, first, n, h / (s->n_head / s->n_kv), weight, work, expected, allowed);
                for (int k = 0; k < s->d; k++) {
                    double found = (double)bf16_to_float(y[at + (size_t)k]);
                    bool ok = checkkern_near(c->report, found, expected[k], allowed[k] + 1e-6);
                    if (!checkkern_case(
                            c->report, ok,
                            "cache type %d, %d heads of %d over %d: row %d (of %d), head %d, %d keys, "
                            "dimension %d: %g, expected %g",
                            s->type, s->n_head, s->d, s->n_kv, row, s->n_ask[i], h, n, k, found, expected[k]))
                        return false;
                }
            }
    return true;
}

/* Whether rows have the same bits however their sequence is cut into tiles, whatever else is in the step, and
 * with images of keys and values or without. */
static bool check_cuts(struct gpu_case *c, const struct scene *s, const uint16_t *y, const uint16_t *other)
{
    size_t width = (size_t)(s->n_head * s->d);
    for (int i = 0, row = 0; i < s->n_seq; row += s->n_ask[i++])
        for (int t = 0; t < s->n_ask[i]; t++) {
            size_t at = (size_t)(row + t) * width;
            bool ok = memcmp(y + at, other + at, width * sizeof(*y)) == 0;
            if (!checkkern_case(
                    c->report, ok,
                    "cache type %d, %d heads of %d over %d: row %d (of %d): other bits in a tile of "
                    "other rows, beside other rows, or by images",
                    s->type, s->n_head, s->d, s->n_kv, row + t, s->n_ask[i]))
                return false;
        }
    return true;
}

bool checkkern_cuda_attention(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < 2 * g->rounds && ok; i++) {
        struct gpu_case c;
        gpu_case_begin(&c, g, r);
        struct scene s = make_scene(&c, &seed, i);
        uint16_t *q = gpu_case_bf16(&c, &seed, (size_t)(s.n_ask_all * s.n_head * s.d), 2.0f);
        int32_t *pos = arena_alloc(g->arena, (size_t)s.n_ask_all, sizeof(*pos));
        for (int k = 0, row = 0; k < s.n_seq; k++)
            for (int t = 0; t < s.n_ask[k]; t++)
                pos[row++] = s.n_key[k] - s.n_ask[k] + t;
        bool many = i % 3 == 2; /* more than eight rows in both */
        struct lists l = make_lists(&s, many ? EXTRA_MAX : 1, 1, CUDA_TILE_TOKENS),
                     other = make_lists(&s, many ? EXTRA_MAX - 3 : row_class(l.n_single + 1) - l.n_single,
                                        1 + i % 4, checkkern_int(&seed, 20, CUDA_TILE_TOKENS - 1));
        struct cuda_op op[3];
        op[0] = qkv_op(&c, &s);
        op[1] = attention_op(&c, &s, q, &l, i / 2 % 2 == 0, pos);
        op[2] = attention_op(&c, &s, q, &other, i / 2 % 2, pos);
        ok = gpu_case_run(&c, op, 3) && check_y(&c, &s, q, gpu_case_result(&c, op[1].as.attention.y)) &&
             check_cuts(&c, &s, gpu_case_result(&c, op[1].as.attention.y),
                        gpu_case_result(&c, op[2].as.attention.y));
        gpu_case_end(&c);
    }
    return ok;
}
