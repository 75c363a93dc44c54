/* Attention on the matrix unit, in terms of TILE_* statements and of rows_query, rows_top, rows_weigh and
 * fp8_decode: the machine's (attention_amx.c), or a test's emulator.
 *
 * Keys are operand B as they lie in the cache: a line holds two dimensions of 16 tokens. Values hold two
 * tokens a line, but only 16 of the 32 that a tile takes, so a split's values are copied first, two blocks a
 * tile. A split is one softmax step: all its scores, their maximum, then all weights against all values, so
 * that no sum is rescaled. Every element is one chain, for one row the same as for many:
 *     score += low part of q x K, then high part of q x K, for each 32 dimensions
 *     acc   += weights x V, for each 32 keys from the split's start
 * each step the sum of two chains of fma, of even and of odd elements. A weight of a key that the row does
 * not see is zero, which changes nothing. q has two bf16 parts (one where it may be rounded), weights are
 * rounded to bf16, and rows are normalized by the sum of the rounded ones. */
#ifndef NYB_KERNELS_CPU_ATTENTION_TILES_H
#define NYB_KERNELS_CPU_ATTENTION_TILES_H

#include <math.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/attention.h"
#include "kernels/cpu/tile_config.h"
#include "kernels/cpu/tile_unroll.h"

#define UNIT_ROWS    64 /* rows of a tile of attention: four matrix tiles */
#define UNIT_TILES   (UNIT_ROWS / TILE_ROW)
#define UNIT_K       32 /* elements that one product of matrix tiles sums */
#define SPLIT_BLOCKS (ATTENTION_SPLIT / KV_BLOCK)
#define SPLIT_TILES  (ATTENTION_SPLIT / UNIT_K)
#define CHUNK_BLOCKS (ATTENTION_STEP / KV_BLOCK) /* of keys that stay in the first cache */
#define VALUE_TILES  8 /* of weights and values that stay there; sums wait in memory meanwhile */

_Static_assert(ATTENTION_HEADS <= UNIT_ROWS && KV_BLOCK == TILE_ROW && UNIT_K == 2 * KV_BLOCK, "shapes");

/* One split of a tile of attention, and the worker's memory. */
struct attend {
    const struct attention_tile *t;
    struct attention_part *out;
    int begin, n_key, n_row, n_tile; /* keys of the split; rows, and matrix tiles of them */
    int sees[UNIT_ROWS];             /* how many of the keys a row sees                   */
    size_t d_tile, n_c, pad;         /* matrix tiles of dimensions, of values; padded dimensions */
    float scale;
    float *score;   /* (UNIT_TILES, SPLIT_BLOCKS, 16 rows, 16 keys)    */
    uint16_t *prob; /* (UNIT_TILES, SPLIT_TILES, 16 rows, 32 keys)     */
    uint8_t *query; /* (UNIT_TILES, d_tile, {low, high}) matrix tiles  */
    uint8_t *value; /* (n_c, SPLIT_TILES) matrix tiles                 */
    uint8_t *spare; /* (CHUNK_BLOCKS, d_tile) matrix tiles             */
};

#define SCORE_TILE(a, i, block) ((a)->score + ((size_t)(i)*SPLIT_BLOCKS + (size_t)(block)) * TILE_SUMS)
#define PROB_TILE(a, i, kt)     ((a)->prob + ((size_t)(i)*SPLIT_TILES + (size_t)(kt)) * (TILE_BYTES / 2))
#define VALUE_TILE(a, c, kt)    ((a)->value + ((size_t)(c)*SPLIT_TILES + (size_t)(kt)) * TILE_BYTES)

static size_t dimension_tiles(const struct kv_layer *kv)
{
    return ((size_t)kv->head_dim + UNIT_K - 1) / UNIT_K;
}

static size_t tiles_work_bytes(const struct kv_layer *kv)
{
    size_t n_c = (size_t)kv_pad(kv->type, kv->head_dim) / TILE_ROW, d_tile = dimension_tiles(kv);
    size_t n_tile = UNIT_TILES * (SPLIT_BLOCKS + SPLIT_TILES + 2 * d_tile) + n_c * SPLIT_TILES;
    return (n_tile + CHUNK_BLOCKS * d_tile) * TILE_BYTES;
}

static void attend_place(struct attend *a, void *work)
{
    uint8_t *at = work;
    a->score = (float *)(void *)at;
    at += (size_t)UNIT_TILES * SPLIT_BLOCKS * TILE_BYTES;
    a->prob = (uint16_t *)(void *)at;
    at += (size_t)UNIT_TILES * SPLIT_TILES * TILE_BYTES;
    a->query = at;
    at += (size_t)UNIT_TILES * a->d_tile * 2 * TILE_BYTES;
    a->value = at;
    a->spare = at + a->n_c * SPLIT_TILES * TILE_BYTES;
}

/* ---- blocks of the cache ------------------------------------------------------------------------- */

/* Some blocks of keys or of values, and what is sent for meanwhile. */
struct chunk {
    const uint8_t *at[CHUNK_BLOCKS], *next[CHUNK_BLOCKS];
    int n_block;
    size_t bytes; /* of a block in the cache */
};

static const uint8_t *region_of(const struct attention_tile *t, const uint8_t *base, int pos)
{
    return base == t->kv->k ? attention_keys(t, pos) : attention_values(t, pos);
}

/* Blocks of `base` (keys or values) from `block` of the split on. After the last keys of a split come its
 * first values, and after its last values the first keys of the next one. */
static struct chunk chunk_open(const struct attend *a, const uint8_t *base, int block)
{
    const struct kv_layer *kv = a->t->kv;
    int n = (a->n_key + KV_BLOCK - 1) / KV_BLOCK;
    struct chunk c = {.n_block = n - block < CHUNK_BLOCKS ? n - block : CHUNK_BLOCKS,
                      .bytes = a->t->value_bytes}; /* as many of keys: there are no integers here */
    const uint8_t *then = base;
    int key = a->begin + (block + CHUNK_BLOCKS) * KV_BLOCK;
    if (block + CHUNK_BLOCKS >= n) {
        then = base == kv->k ? kv->v : kv->k;
        key = base == kv->k ? a->begin : a->begin + ATTENTION_SPLIT;
    }
    for (int b = 0; b < c.n_block; b++)
        c.at[b] = region_of(a->t, base, a->begin + (block + b) * KV_BLOCK);
    for (int b = 0; b < CHUNK_BLOCKS; b++)
        c.next[b] = key + b * KV_BLOCK < a->t->walk_end ? region_of(a->t, then, key + b * KV_BLOCK) : c.at[0];
    return c;
}

INLINE void send_for(const uint8_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

/* Blocks that cannot be multiplied where they lie: FP8, or a head whose last tile is not whole. Returns
 * whether they were copied, and so whether what comes next has been sent for. */
static bool chunk_stage(const struct attend *a, struct chunk *c, bool whole)
{
    const struct kv_layer *kv = a->t->kv;
    size_t room = a->d_tile * TILE_BYTES, copied = c->bytes * (kv->type == KV_FP8 ? 2 : 1);
    if (kv->type != KV_FP8 && whole)
        return false;
    for (int b = 0; b < c->n_block; b++) {
        uint8_t *to = a->spare + (size_t)b * room;
        if (kv->type == KV_FP8) {
            copied = KV_BLOCK * 2 * (whole ? a->pad : (size_t)kv->head_dim);
            fp8_decode(to, c->at[b], copied / 128, c->next[b]);
        } else {
            copied = KV_BLOCK * 2 * (size_t)kv->head_dim;
            memcpy(to, c->at[b], copied);
            send_for(c->next[b], c->bytes);
        }
        if (!whole)
            memset(to + copied, 0, room - copied);
        c->at[b] = to;
    }
    return true;
}

/* ---- scores -------------------------------------------------------------------------------------- */

/* H matrix tiles of rows from number i on, with P blocks of keys from b of the chunk on, block `block` of the
 * split. Tiles 0 .. 3: sums, (row tile, block); 4, 5: q; 6, 7: keys. */
INLINE void score_walk(const struct attend *a, const struct chunk *c, int i, int b, int block, const int H,
                       const int P, const bool fetch)
{
    const size_t line = TILE_LINE, row = 2 * a->d_tile * TILE_BYTES;
    const uint8_t *q = a->query + (size_t)i * row;
    TILE_ZERO(0);
    if (P == 2)
        TILE_ZERO(1);
    if (H == 2)
        TILE_ZERO(2);
    if (H == 2 && P == 2)
        TILE_ZERO(3);
    for (size_t h = 0; h < a->d_tile; h++) {
        TILE_LOAD(6, c->at[b] + h * TILE_BYTES, line);
        if (P == 2)
            TILE_LOAD(7, c->at[b + 1] + h * TILE_BYTES, line);
        if (fetch) {
            send_for(c->next[b] + h * TILE_BYTES, TILE_BYTES);
            send_for(c->next[b + 1] + h * TILE_BYTES, TILE_BYTES);
        }
        for (int part = a->t->round_q ? 1 : 0; part < 2; part++) {
            const uint8_t *from = q + (2 * h + (size_t)part) * TILE_BYTES;
            TILE_LOAD(4, from, line);
            TILE_DPBF16(0, 4, 6);
            if (P == 2)
                TILE_DPBF16(1, 4, 7);
            TILE_ZERO(4); /* as soon as nobody reads it any more: see block_folded_amx.h */
            if (H == 2) {
                TILE_LOAD(5, from + row, line);
                TILE_DPBF16(2, 5, 6);
                if (P == 2)
                    TILE_DPBF16(3, 5, 7);
                TILE_ZERO(5);
            }
        }
        TILE_ZERO(6);
        if (P == 2)
            TILE_ZERO(7);
    }
    TILE_STORE(0, SCORE_TILE(a, i, block), line);
    if (P == 2)
        TILE_STORE(1, SCORE_TILE(a, i, block + 1), line);
    if (H == 2)
        TILE_STORE(2, SCORE_TILE(a, i + 1, block), line);
    if (H == 2 && P == 2)
        TILE_STORE(3, SCORE_TILE(a, i + 1, block + 1), line);
}

static void score_tiles(const struct attend *a, const struct chunk *c, int i, int b, int block, bool fetch)
{
    bool two = b + 1 < c->n_block;
    if (i + 1 < a->n_tile && two)
        score_walk(a, c, i, b, block, 2, 2, fetch);
    else if (i + 1 < a->n_tile)
        score_walk(a, c, i, b, block, 2, 1, fetch);
    else if (two)
        score_walk(a, c, i, b, block, 1, 2, fetch);
    else
        score_walk(a, c, i, b, block, 1, 1, fetch);
}

static void score_split(const struct attend *a)
{
    bool whole = a->t->kv->head_dim % UNIT_K == 0;
    for (int block = 0; block * KV_BLOCK < a->n_key; block += CHUNK_BLOCKS) {
        struct chunk c = chunk_open(a, a->t->kv->k, block);
        if (block == 0 && a->begin == a->t->walk_begin) /* nobody has sent for these */
            for (int b = 0; b < c.n_block; b++)
                send_for(c.at[b], c.bytes);
        bool sent = chunk_stage(a, &c, whole);
        for (int i = 0; i < a->n_tile; i += 2)
            for (int b = 0; b < c.n_block; b += 2)
                score_tiles(a, &c, i, b, block + b, i == 0 && !sent);
    }
}

#include "kernels/cpu/attention_tiles_values.h" /* in terms of the above */

/* ---- a split ------------------------------------------------------------------------------------- */

/* Scores of one matrix tile of rows to weights, and to m and l of the part. */
static void weigh_rows(const struct attend *a, int i)
{
    int first = i * TILE_ROW, n = a->n_row - first < TILE_ROW ? a->n_row - first : TILE_ROW;
    float *m = a->out->m + first, top[TILE_ROW];
    rows_top(SCORE_TILE(a, i, 0), a->n_key, a->sees + first, n, m);
    for (int r = 0; r < n; r++) {
        m[r] *= a->scale;
        top[r] = m[r] == -INFINITY ? 0.0f : m[r]; /* a row that sees nothing: all weights are zero */
    }
    rows_weigh(SCORE_TILE(a, i, 0), a->n_key, a->sees + first, n, a->scale, top, PROB_TILE(a, i, 0),
               a->out->l + first);
}

static void attend_configure(const struct attend *a, struct tile_config *c)
{
    *c = (struct tile_config){.palette = 1};
    for (int i = 0; i < 8; i++) {
        c->n_row[i] = (uint8_t)(i < 6 && a->n_row < TILE_ROW ? a->n_row : TILE_ROW);
        c->line_bytes[i] = TILE_LINE;
    }
}

static void tiles_split(const struct attention_tile *t, int begin, int end, void *work,
                        struct attention_part *out)
{
    const struct kv_layer *kv = t->kv;
    struct attend a = {.t = t, .out = out, .begin = begin, .n_key = end - begin};
    a.n_row = t->n_tok * t->n_head;
    a.n_tile = (a.n_row + TILE_ROW - 1) / TILE_ROW;
    a.d_tile = dimension_tiles(kv);
    a.pad = (size_t)kv_pad(kv->type, kv->head_dim);
    a.n_c = a.pad / TILE_ROW;
    a.scale = kv->type == KV_FP8 ? t->scale * kv->k_scale : t->scale;
    attend_place(&a, work);
    int least = a.n_key;
    for (int r = 0; r < a.n_row; r++) {
        int sees = t->pos[r / t->n_head] + 1 - begin;
        a.sees[r] = sees < 0 ? 0 : sees < a.n_key ? sees : a.n_key;
        least = a.sees[r] < least ? a.sees[r] : least;
        uint8_t *q = a.query + (size_t)(r / TILE_ROW) * 2 * a.d_tile * TILE_BYTES;
        rows_query((uint16_t *)(void *)q + r % TILE_ROW * UNIT_K, attention_query(t, r), kv->head_dim);
    }
    struct tile_config config;
    attend_configure(&a, &config);
    TILE_CONFIG(&config);
    score_split(&a);
    gather_values(&a);
    for (int i = 0; i < a.n_tile; i++)
        weigh_rows(&a, i);
    bool odd = has_odd_values(&a, least);
    if (odd)
        take_odd_values(&a, least, NULL);
    value_split(&a);
    TILE_RELEASE();
    if (odd) {
        gather_values(&a);
        take_odd_values(&a, least, give_odd_value);
    }
    for (size_t i = 0; kv->type == KV_FP8 && i < (size_t)a.n_row * a.pad; i++)
        out->acc[i] *= kv->v_scale;
}

#endif
