#include "model/checksum.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "model/fill.h"
#include "model/model_state.h"

#define BLOCK       16         /* columns hashed together                                   */
#define PIECE_BYTES (1u << 20) /* of rows that a worker takes at a time; one row at least   */

struct piece {
    int slot, row, n_row;
    struct checksum_hash sum;
};

/* One run over all slots. */
struct run {
    const struct slots *slots;
    const struct ckpt *ckpt; /* NULL: from the slots' own memory */
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

static void add_hash(struct checksum_hash *sum, uint64_t low, uint64_t high)
{
    sum->low += low;
    sum->high += high + (sum->low < low);
}

static void add_block(struct checksum_hash *sum, int row, int block, const void *data, size_t n)
{
    XXH128_hash_t h = XXH3_128bits_withSeed(data, n, (uint64_t)(uint32_t)row << 32 | (uint32_t)block);
    add_hash(sum, h.low64, h.high64);
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

static int piece_rows(const struct slot *s)
{
    if (slot_rows(s) == 0)
        return 1;
    size_t rows = PIECE_BYTES / row_bytes(s);
    rows = rows ? rows : 1;
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

static void unpack_rows(const struct slot *s, const struct fill_piece *p)
{
    if (s->kind == SLOT_VECTOR) {
        memcpy(p->rows, *s->vector, row_bytes(s));
        return;
    }
    for (int i = 0; i < p->n_row; i++)
        weight_read(s->weight, p->row + i, p->rows + (size_t)i * row_bytes(s),
                    is_nvfp4(s) ? p->scales + (size_t)i * (size_t)s->k / FP4_GROUP : NULL);
}

static enum nyb_code read_rows(const struct run *r, const struct slot *s, const struct fill_piece *p,
                               struct nyb_err *err)
{
    if (!r->ckpt) {
        unpack_rows(s, p);
        return NYB_OK;
    }
    const struct fill_source source = fill_from_checkpoint(r->ckpt);
    TRY(source.make(source.arg, p, err));
    if (is_nvfp4(s))
        fill_settle_signs(p->rows, p->scales, (size_t)p->n_row * (size_t)s->k / FP4_GROUP);
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

/* ---- tensors and the total ----------------------------------------------------------------------- */

/* What identifies a scale in either spelling; see checksum.h. */
static float canonical_scale(float s)
{
    float inverse = 1.0f / s;
    return isnormal(inverse) ? inverse : s;
}

static void add_number(struct buf *b, const void *number, size_t bytes)
{
    buf_add(b, number, bytes); /* little-endian, as every machine that this runs on */
}

static struct checksum_hash finish(const struct checksum_tensor *t, struct checksum_hash sum, float global,
                                   float input)
{
    struct buf b = {0};
    buf_add(&b, t->name, strlen(t->name) + 1);
    buf_add(&b, t->type, strlen(t->type) + 1);
    add_number(&b, &t->n, sizeof(t->n));
    add_number(&b, &t->k, sizeof(t->k));
    add_number(&b, &sum.low, sizeof(sum.low));
    add_number(&b, &sum.high, sizeof(sum.high));
    add_number(&b, &global, sizeof(global));
    add_number(&b, &input, sizeof(input));
    XXH128_hash_t h = XXH3_128bits(b.data, b.len);
    buf_free(&b);
    return (struct checksum_hash){h.low64, h.high64};
}

static void finish_slot(struct checksum_tensor *t, const struct slot *s, struct checksum_hash sum)
{
    float global = 1, input = 0;
    *t = (struct checksum_tensor){
        .name = mem_strdup(s->name), .type = "vector", .n = s->n_whole, .k = s->k_whole};
    if (s->kind == SLOT_MATRIX) {
        t->type = weight_type_name(s->weight->type);
        global = is_nvfp4(s) ? canonical_scale(s->weight->global_scale) : s->weight->global_scale;
        input = is_nvfp4(s) ? canonical_scale(s->weight->input_scale) : s->weight->input_scale;
    }
    t->hash = finish(t, sum, global, input);
}

/* As a matrix of (n_layer, 2). */
static void finish_kv_scales(struct checksum_tensor *t, const struct weights *w)
{
    struct checksum_hash sum = {0};
    *t = (struct checksum_tensor){.name = mem_strdup("kv_scales"), .type = "f32", .n = w->n_layer, .k = 2};
    for (int i = 0; i < w->n_layer; i++) {
        const float row[2] = {w->layer[i].k_scale, w->layer[i].v_scale};
        add_block(&sum, i, 0, row, sizeof(row));
    }
    t->hash = finish(t, sum, 1, 0);
}

static int by_name(const void *a, const void *b)
{
    const struct checksum_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static void finish_all(struct checksum *out, const struct run *r, const struct weights *w)
{
    int at = 0;
    out->tensor = mem_alloc((size_t)r->slots->n + 1, sizeof(*out->tensor));
    for (int i = 0; i < r->slots->n; i++) {
        struct checksum_hash sum = {0};
        for (; at < r->n_piece && r->piece[at].slot == i; at++)
            add_hash(&sum, r->piece[at].sum.low, r->piece[at].sum.high);
        finish_slot(&out->tensor[out->n_tensor++], &r->slots->slot[i], sum);
    }
    finish_kv_scales(&out->tensor[out->n_tensor++], w);
    qsort(out->tensor, (size_t)out->n_tensor, sizeof(*out->tensor), by_name);
    struct buf b = {0};
    for (int i = 0; i < out->n_tensor; i++) {
        buf_add(&b, out->tensor[i].name, strlen(out->tensor[i].name) + 1);
        add_number(&b, &out->tensor[i].hash.low, sizeof(uint64_t));
        add_number(&b, &out->tensor[i].hash.high, sizeof(uint64_t));
    }
    XXH128_hash_t h = XXH3_128bits(b.data, b.len);
    out->total = (struct checksum_hash){h.low64, h.high64};
    buf_free(&b);
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

/* ckpt NULL: of what the slots hold. */
static enum nyb_code checksum_weights(struct checksum *out, const struct weights *w, const struct ckpt *ckpt,
                                      int n_thread, struct nyb_err *err)
{
    struct pool *pool;
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
        finish_all(out, &r, w);
    for (int i = 0; i < n_worker; i++)
        free(r.staging[i]);
    free(r.staging);
    free(r.piece);
    pthread_mutex_destroy(&r.lock);
    pool_close(pool);
    return r.code;
}

enum nyb_code checksum_model(struct checksum *out, const struct model *m, int n_thread, struct nyb_err *err)
{
    *out = (struct checksum){0};
    if (comm_size(m->comm) > 1)
        return err_set(err, NYB_E_UNSUPPORTED,
                       "the weights are shared by %d ranks, of which this one can only sum its own part",
                       comm_size(m->comm));
    return checksum_weights(out, &m->weights, NULL, n_thread, err);
}

/* What opening a model needs of a folder. */
struct folder {
    struct hfconfig hf;
    struct model_config config;
    struct quant *quant;
    struct ckpt *ckpt;
    struct weights weights;
    float *kv_scale; /* (2, n_layer) */
};

static enum nyb_code open_folder(struct folder *f, const char *path, struct nyb_err *err)
{
    TRY(hfconfig_open(&f->hf, path, err));
    TRY(model_config_parse(&f->config, &f->hf, err));
    shard_set(&f->config.shard, 0, 1, f->config.n_head, f->config.n_kv_head);
    TRY(quant_parse(&f->quant, f->hf.root, path, err));
    TRY(ckpt_open(&f->ckpt, path, err));
    weights_declare(&f->weights, &f->config, weights_own_head(&f->config, f->ckpt));
    TRY(source_resolve(&f->weights.slots, f->ckpt, f->quant, err));
    int n = f->config.n_layer;
    f->kv_scale = mem_alloc(2 * (size_t)n, sizeof(float));
    for (int i = 0; i < 2 * n; i++)
        f->kv_scale[i] = 1;
    TRY(weights_read_kv_scales(f->kv_scale, f->kv_scale + n, &f->config, f->ckpt, NULL, NULL, err));
    for (int i = 0; i < n; i++) {
        f->weights.layer[i].k_scale = f->kv_scale[i];
        f->weights.layer[i].v_scale = f->kv_scale[n + i];
    }
    return NYB_OK;
}

enum nyb_code checksum_folder(struct checksum *out, const char *folder, int n_thread, struct nyb_err *err)
{
    struct folder f = {0};
    *out = (struct checksum){0};
    enum nyb_code code = open_folder(&f, folder, err);
    if (code == NYB_OK)
        code = checksum_weights(out, &f.weights, f.ckpt, n_thread, err);
    free(f.kv_scale);
    weights_free(&f.weights);
    ckpt_close(f.ckpt);
    quant_free(f.quant);
    model_config_free(&f.config);
    hfconfig_close(&f.hf);
    return code;
}

/* ---- results ------------------------------------------------------------------------------------- */

void checksum_free(struct checksum *c)
{
    for (int i = 0; i < c->n_tensor; i++)
        free(c->tensor[i].name);
    free(c->tensor);
    *c = (struct checksum){0};
}

char *checksum_text(struct checksum_hash h, char text[CHECKSUM_TEXT_BYTES])
{
    snprintf(text, CHECKSUM_TEXT_BYTES, "%016llx%016llx", (unsigned long long)h.high,
             (unsigned long long)h.low);
    return text;
}

int checksum_compare(const struct checksum *a, const struct checksum *b,
                     void (*differs)(void *arg, const char *name), void *arg)
{
    int n = 0;
    for (int i = 0, j = 0; i < a->n_tensor || j < b->n_tensor;) {
        const struct checksum_tensor *x = i < a->n_tensor ? &a->tensor[i] : NULL;
        const struct checksum_tensor *y = j < b->n_tensor ? &b->tensor[j] : NULL;
        int order = !x ? 1 : !y ? -1 : strcmp(x->name, y->name);
        i += order <= 0;
        j += order >= 0;
        if (order == 0 && x->hash.low == y->hash.low && x->hash.high == y->hash.high)
            continue;
        n++;
        if (differs)
            differs(arg, order <= 0 ? x->name : y->name);
    }
    return n;
}
