#include "model/checksum_sum.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "base/pool.h"
#include "fp4/fp4.h"
#include "model/logical.h"

#define BLOCK       16         /* columns hashed together                                   */
#define PIECE_BYTES (1u << 20) /* of rows that a worker takes at a time; a panel at least   */

struct piece {
    int slot, row, n_row;
    struct checksum_hash sum;
};

/* One run over all slots. */
struct run {
    const struct slots *slots;
    const struct ckpt *ckpt; /* NULL: from where the slots lie */
    struct piece *piece;
    int n_piece;
    size_t row_max, scale_max; /* bytes of the largest piece             */
    uint8_t **staging;         /* (n_worker)                             */
    atomic_int failed;         /* lowest piece that failed, n_piece: none */
    pthread_mutex_t lock;      /* guards code and err                    */
    enum nyb_code code;
    struct nyb_err *err;
};

/* ---- sums ---------------------------------------------------------------------------------------- */

static void add_block(struct checksum_hash *sum, int row, int block, const void *data, size_t n)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(data, n, (uint64_t)(uint32_t)row << 32 | (uint32_t)block);
    checksum_add(sum, (struct checksum_hash){h.low64, h.high64});
}

/* k elements of `width` bytes; `block` is the first of them. */
static void add_row(struct checksum_hash *sum, int row, int block, const uint8_t *elements, int k,
                    size_t width)
{
    for (int at = 0; at < k; at += BLOCK) {
        int n = k - at < BLOCK ? k - at : BLOCK;
        add_block(sum, row, block + at / BLOCK, elements + (size_t)at * width, (size_t)n * width);
    }
}

static void add_nvfp4_row(struct checksum_hash *sum, int row, int first, const uint8_t *codes,
                          const uint8_t *scales, int k)
{
    uint8_t block[FP4_GROUP / 2 + 1];
    for (int g = 0; g < k / FP4_GROUP; g++) {
        memcpy(block, codes + (size_t)g * (FP4_GROUP / 2), FP4_GROUP / 2);
        block[FP4_GROUP / 2] = scales[g];
        add_block(sum, row, first + g, block, sizeof(block));
    }
}

/* ---- pieces -------------------------------------------------------------------------------------- */

static bool is_nvfp4(const struct slot *s)
{
    return s->kind == SLOT_MATRIX && s->weight->type == WEIGHT_NVFP4;
}

static size_t row_bytes(const struct slot *s)
{
    return s->kind == SLOT_MATRIX ? weight_row_bytes(s->weight->type, s->k) : (size_t)s->n * sizeof(float);
}

/* None of a slot that is empty on this rank. */
static int slot_rows(const struct slot *s)
{
    if (s->n == 0 || s->k == 0)
        return 0;
    return s->kind == SLOT_MATRIX ? s->n : 1;
}

/* Whole panels, or all rows. */
static int piece_rows(const struct slot *s)
{
    if (slot_rows(s) == 0)
        return 1;
    size_t panel = row_bytes(s) * WEIGHT_PANEL;
    size_t rows = (panel < PIECE_BYTES ? PIECE_BYTES / panel : 1) * WEIGHT_PANEL;
    return rows < (size_t)slot_rows(s) ? (int)rows : slot_rows(s);
}

static void cut_pieces(struct run *r)
{
    size_t n_piece = 0;
    for (int i = 0; i < r->slots->n; i++) {
        const struct slot *s = &r->slots->slot[i];
        size_t rows = (size_t)piece_rows(s), scales = is_nvfp4(s) ? rows * (size_t)s->k / FP4_GROUP : 0;
        r->row_max = rows * row_bytes(s) > r->row_max ? rows * row_bytes(s) : r->row_max;
        r->scale_max = scales > r->scale_max ? scales : r->scale_max;
        n_piece += ((size_t)slot_rows(s) + rows - 1) / rows;
    }
    ASSERT(n_piece < INT_MAX); /* of 1 MB, of weights that fit a machine */
    r->piece = mem_alloc(n_piece, sizeof(*r->piece));
    for (int i = 0; i < r->slots->n; i++) {
        const struct slot *s = &r->slots->slot[i];
        int step = piece_rows(s), n = slot_rows(s);
        for (int row = 0; row < n; row += step)
            r->piece[r->n_piece++] =
                (struct piece){.slot = i, .row = row, .n_row = n - row < step ? n - row : step};
    }
}

static enum nyb_code read_rows(const struct run *r, const struct slot *s, const struct fill_piece *p,
                               struct nyb_err *err)
{
    if (!r->ckpt)
        return logical_read(p, err);
    const struct fill_source source = fill_from_checkpoint(r->ckpt);
    TRY(source.make(source.arg, p, err));
    if (is_nvfp4(s))
        logical_settle(p->rows, p->scales, (size_t)p->n_row * (size_t)s->k / FP4_GROUP);
    return NYB_OK;
}

static void sum_rows(struct piece *piece, const struct slot *s, const struct fill_piece *p)
{
    if (s->kind == SLOT_VECTOR) {
        add_row(&piece->sum, 0, s->row / BLOCK, p->rows, s->n, sizeof(float));
        return;
    }
    int first = s->column / BLOCK;
    for (int i = 0; i < p->n_row; i++) {
        const uint8_t *elements = p->rows + (size_t)i * row_bytes(s);
        int row = s->row + p->row + i;
        if (is_nvfp4(s))
            add_nvfp4_row(&piece->sum, row, first, elements, p->scales + (size_t)i * (size_t)s->k / FP4_GROUP,
                          s->k);
        else
            add_row(&piece->sum, row, first, elements, s->k, weight_row_bytes(s->weight->type, 1));
    }
}

static void run_piece(void *arg, int item, int worker)
{
    struct run *r = arg;
    struct piece *piece = &r->piece[item];
    const struct slot *s = &r->slots->slot[piece->slot];
    const struct fill_piece p = {.slot = s,
                                 .row = piece->row,
                                 .n_row = piece->n_row,
                                 .rows = r->staging[worker],
                                 .scales = r->staging[worker] + r->row_max};
    struct nyb_err err;
    if (item > atomic_load(&r->failed))
        return;
    enum nyb_code code = read_rows(r, s, &p, &err);
    if (code == NYB_OK) {
        sum_rows(piece, s, &p);
        return;
    }
    pthread_mutex_lock(&r->lock);
    if (item < atomic_load(&r->failed)) {
        atomic_store(&r->failed, item);
        r->code = code;
        if (r->err)
            *r->err = err;
    }
    pthread_mutex_unlock(&r->lock);
}

/* ---- parts --------------------------------------------------------------------------------------- */

/* What identifies a scale in either spelling; see checksum.h. */
static float canonical_scale(float s)
{
    float inverse = 1.0f / s;
    return isnormal(inverse) ? inverse : s;
}

static struct checksum_part describe(const struct slot *s)
{
    struct checksum_part p = {.name = s->name,
                              .type = PART_VECTOR,
                              .row = s->row,
                              .n = s->n,
                              .column = s->column,
                              .k = s->k,
                              .n_whole = s->n_whole,
                              .k_whole = s->k_whole,
                              .global_scale = 1};
    if (s->kind != SLOT_MATRIX)
        return p;
    const struct weight *w = s->weight;
    p.type = (int)w->type;
    p.global_scale = is_nvfp4(s) ? canonical_scale(w->global_scale) : w->global_scale;
    p.input_scale = is_nvfp4(s) ? canonical_scale(w->input_scale) : w->input_scale;
    return p;
}

/* As a matrix of (n_layer, 2), which every rank has whole. */
static struct checksum_part kv_scales(const struct weights *w)
{
    struct checksum_part p = {.name = "kv_scales",
                              .type = PART_NUMBERS,
                              .n = w->n_layer,
                              .k = 2,
                              .n_whole = w->n_layer,
                              .k_whole = 2,
                              .global_scale = 1};
    for (int i = 0; i < w->n_layer; i++) {
        const float row[2] = {w->layer[i].k_scale, w->layer[i].v_scale};
        add_block(&p.sum, i, 0, row, sizeof(row));
    }
    return p;
}

static void collect(struct checksum_parts *out, const struct run *r, const struct weights *w)
{
    int at = 0;
    out->part = mem_alloc((size_t)r->slots->n + 1, sizeof(*out->part));
    for (int i = 0; i < r->slots->n; i++) {
        struct checksum_part *p = &out->part[out->n++];
        *p = describe(&r->slots->slot[i]);
        for (; at < r->n_piece && r->piece[at].slot == i; at++)
            checksum_add(&p->sum, r->piece[at].sum);
    }
    out->part[out->n++] = kv_scales(w);
}

/* ---- running ------------------------------------------------------------------------------------- */

static enum nyb_code take_staging(struct run *r, int n_worker)
{
    for (int i = 0; i < n_worker; i++) {
        r->staging[i] = mem_try_aligned(r->row_max + r->scale_max);
        if (!r->staging[i])
            return err_set(r->err, NYB_E_MEMORY, "no memory for %zu bytes of rows",
                           r->row_max + r->scale_max);
    }
    return NYB_OK;
}

enum nyb_code checksum_sum(struct checksum_parts *out, const struct weights *w, const struct ckpt *ckpt,
                           int n_thread, struct nyb_err *err)
{
    struct pool *pool;
    *out = (struct checksum_parts){0};
    TRY(pool_open(&pool, n_thread > 0 ? n_thread : 1, err));
    int n_worker = pool_size(pool);
    struct run r = {.slots = &w->slots, .ckpt = ckpt, .err = err};
    cut_pieces(&r);
    atomic_init(&r.failed, r.n_piece);
    pthread_mutex_init(&r.lock, NULL);
    r.staging = mem_alloc((size_t)n_worker, sizeof(*r.staging));
    r.code = take_staging(&r, n_worker);
    if (r.code == NYB_OK)
        pool_run(pool, r.n_piece, run_piece, &r);
    if (r.code == NYB_OK)
        collect(out, &r, w);
    for (int i = 0; i < n_worker; i++)
        free(r.staging[i]);
    free(r.staging);
    free(r.piece);
    pthread_mutex_destroy(&r.lock);
    pool_close(pool);
    return r.code;
}
