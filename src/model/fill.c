#include "model/fill.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "fp4/fp4.h"

#define PIECE_BYTES (1u << 20) /* of rows; more only where a single panel has more */
#define PROGRESS_NS 50000000u

struct fill {
    const struct fill_source *source;
    struct fill_piece *piece;
    int n_piece;
    size_t row_max, scale_max; /* bytes of the largest piece's rows and scales, padded */
    uint8_t **staging;         /* (n_worker) */
    atomic_ullong done;
    uint64_t total, reported_ns;
    const struct fill_progress *progress;
    atomic_int failed;    /* lowest piece that failed, n_piece: none */
    pthread_mutex_t lock; /* guards code and err                     */
    enum nyb_code code;
    struct nyb_err *err;
};

/* ---- pieces -------------------------------------------------------------------------------------- */

static size_t row_bytes(const struct slot *s)
{
    return s->kind == SLOT_MATRIX ? weight_row_bytes(s->weight->type, s->k) : (size_t)s->n * sizeof(float);
}

static size_t scale_bytes(const struct slot *s)
{
    return s->kind == SLOT_MATRIX && s->weight->type == WEIGHT_NVFP4 ? (size_t)s->k / FP4_GROUP : 0;
}

static int slot_rows(const struct slot *s)
{
    return s->kind == SLOT_MATRIX ? s->n : 1;
}

/* A multiple of WEIGHT_PANEL, or all rows. */
static int piece_rows(const struct slot *s)
{
    size_t panel = row_bytes(s) * WEIGHT_PANEL;
    size_t rows = (panel < PIECE_BYTES ? PIECE_BYTES / panel : 1) * WEIGHT_PANEL;
    return rows < (size_t)slot_rows(s) ? (int)rows : slot_rows(s);
}

static size_t pad(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

static void measure(const struct slots *s, size_t *row_max, size_t *scale_max, size_t *n_piece)
{
    *row_max = *scale_max = 0;
    *n_piece = 0;
    for (int i = 0; i < s->n; i++) {
        const struct slot *slot = &s->slot[i];
        int rows = piece_rows(slot);
        size_t r = pad((size_t)rows * row_bytes(slot)), g = pad((size_t)rows * scale_bytes(slot));
        *row_max = r > *row_max ? r : *row_max;
        *scale_max = g > *scale_max ? g : *scale_max;
        *n_piece += ((size_t)slot_rows(slot) + (size_t)rows - 1) / (size_t)rows;
    }
}

size_t fill_staging_bytes(const struct slots *s, int n_worker)
{
    size_t row_max, scale_max, n_piece;
    measure(s, &row_max, &scale_max, &n_piece);
    return (size_t)n_worker * (row_max + scale_max) + n_piece * sizeof(struct fill_piece);
}

/* Disks like to be read in order, and slots are not in the order of the file. */
static int by_place(const void *a, const void *b)
{
    const struct fill_piece *p[2] = {a, b};
    uint64_t place[2][2];
    for (int i = 0; i < 2; i++) {
        const struct slot *s = p[i]->slot;
        const struct ckpt_tensor *t = s->kind == SLOT_MATRIX ? s->source.weight : s->tensor;
        place[i][0] = t ? (uint64_t)t->file : 0;
        place[i][1] = t ? t->offset + (uint64_t)p[i]->row * row_bytes(s) : p[i]->index;
    }
    for (int i = 0; i < 2; i++)
        if (place[0][i] != place[1][i])
            return place[0][i] < place[1][i] ? -1 : 1;
    return 0;
}

static void cut_pieces(struct fill *f, const struct slots *s)
{
    int at = 0;
    for (int i = 0; i < s->n; i++) {
        const struct slot *slot = &s->slot[i];
        int step = piece_rows(slot), n = slot_rows(slot);
        for (int row = 0; row < n; row += step, at++)
            f->piece[at] = (struct fill_piece){
                .slot = slot, .row = row, .n_row = n - row < step ? n - row : step, .index = (uint64_t)at};
        f->total += (uint64_t)n * (row_bytes(slot) + scale_bytes(slot));
    }
    ASSERT(at == f->n_piece);
    qsort(f->piece, (size_t)at, sizeof(*f->piece), by_place);
}

/* ---- running ------------------------------------------------------------------------------------- */

static void fail(struct fill *f, int item, enum nyb_code code, const struct nyb_err *err)
{
    pthread_mutex_lock(&f->lock);
    if (item < atomic_load(&f->failed)) {
        atomic_store(&f->failed, item);
        f->code = code;
        if (f->err)
            *f->err = *err;
    }
    pthread_mutex_unlock(&f->lock);
}

static void report(struct fill *f, bool last)
{
    uint64_t now = clock_ns();
    if (!f->progress->fn || (!last && now - f->reported_ns < PROGRESS_NS))
        return;
    f->reported_ns = now;
    f->progress->fn(f->progress->arg, atomic_load(&f->done), f->total);
}

/* Negative block scales are well defined but not what the kernels take: the sign moves to the codes. */
static void settle_signs(uint8_t *codes, uint8_t *scales, size_t n_group)
{
    for (size_t g = 0; g < n_group; g++) {
        if (!(scales[g] & 0x80))
            continue;
        scales[g] &= 0x7f;
        for (size_t i = 0; i < FP4_GROUP / 2; i++)
            codes[g * (FP4_GROUP / 2) + i] ^= 0x88;
    }
}

static void write_piece(const struct fill_piece *p)
{
    const struct slot *s = p->slot;
    if (s->kind == SLOT_VECTOR) {
        memcpy(*s->vector, p->rows, (size_t)s->n * sizeof(float));
        return;
    }
    if (s->weight->type == WEIGHT_NVFP4)
        settle_signs(p->rows, p->scales, (size_t)p->n_row * scale_bytes(s));
    weight_write(s->weight, p->row, p->n_row, p->rows, scale_bytes(s) ? p->scales : NULL);
}

static void run_piece(void *arg, int item, int worker)
{
    struct fill *f = arg;
    struct fill_piece p = f->piece[item];
    struct nyb_err err;
    if (item > atomic_load(&f->failed))
        return;
    p.rows = f->staging[worker];
    p.scales = p.rows + f->row_max;
    enum nyb_code code = f->source->make(f->source->arg, &p, &err);
    if (code == NYB_OK)
        write_piece(&p);
    else
        fail(f, item, code, &err);
    atomic_fetch_add(&f->done, (uint64_t)p.n_row * (row_bytes(p.slot) + scale_bytes(p.slot)));
    if (worker == 0) /* the thread that called us */
        report(f, false);
}

static enum nyb_code take_staging(struct fill *f, int n_worker)
{
    for (int i = 0; i < n_worker; i++) {
        f->staging[i] = mem_try_aligned(f->row_max + f->scale_max);
        if (!f->staging[i])
            return err_set(f->err, NYB_E_MEMORY, "no memory for %zu bytes of staging",
                           f->row_max + f->scale_max);
    }
    return NYB_OK;
}

enum nyb_code fill_slots(struct slots *s, const struct fill_source *source, struct pool *pool,
                         const struct fill_progress *progress, struct nyb_err *err)
{
    int n_worker = pool_size(pool);
    struct fill f = {.source = source, .progress = progress, .err = err};
    size_t n_piece;
    measure(s, &f.row_max, &f.scale_max, &n_piece);
    ASSERT(n_piece < INT_MAX); /* pieces of 1 MB: this much memory has been found to be there */
    f.n_piece = (int)n_piece;
    atomic_init(&f.failed, f.n_piece);
    f.piece = mem_alloc((size_t)f.n_piece, sizeof(*f.piece));
    f.staging = mem_alloc((size_t)n_worker, sizeof(*f.staging));
    pthread_mutex_init(&f.lock, NULL);
    f.code = take_staging(&f, n_worker);
    if (f.code == NYB_OK) {
        cut_pieces(&f, s);
        pool_run(pool, f.n_piece, run_piece, &f);
        report(&f, true);
    }
    pthread_mutex_destroy(&f.lock);
    for (int i = 0; i < n_worker; i++)
        free(f.staging[i]);
    free(f.staging);
    free(f.piece);
    return f.code;
}
