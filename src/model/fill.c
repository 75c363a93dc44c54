#include "model/fill.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/reader.h"
#include "fp4/fp4.h"
#include "model/device.h"

/* Of rows; more only where a single panel has more. A worker's rows and what it makes of them fit its cache.
 */
#define PIECE_BYTES (512u << 10)
#define DEPTH_MAX   8  /* pieces that a worker reads ahead */
#define DEPTH_ALL   64 /* and all workers together: staging stays below 100 MB with up to 64 of them */
#define PROGRESS_NS 50000000u

/* A piece between being asked for and being written to its slot. */
struct stage {
    uint8_t *memory;
    struct fill_piece piece;
    int item;
    struct reader_read read[2]; /* rows, scales */
    bool reading;
};

struct fill {
    const struct fill_source *source;
    struct fill_piece *piece;
    int n_piece;
    size_t row_max, scale_max;  /* bytes of the largest piece's rows and scales, padded */
    int depth;                  /* stages of a worker */
    struct stage *stage;        /* (n_worker, depth)  */
    uint8_t **hot;              /* (n_worker) for pieces that come from the page cache */
    struct reader_set *readers; /* NULL: the source makes all rows itself */
    atomic_int next;            /* piece */
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

/* A slot may be empty on this rank. */
static int slot_rows(const struct slot *s)
{
    if (s->n == 0 || s->k == 0)
        return 0;
    return s->kind == SLOT_MATRIX ? s->n : 1;
}

/* A multiple of WEIGHT_PANEL, or all rows. */
static int piece_rows(const struct slot *s)
{
    size_t panel = row_bytes(s) * WEIGHT_PANEL;
    if (slot_rows(s) == 0)
        return 1;
    size_t n = (size_t)slot_rows(s), rows = (panel < PIECE_BYTES ? PIECE_BYTES / panel : 1) * WEIGHT_PANEL;
    size_t n_piece = (n + rows - 1) / rows; /* of nearly equal height */
    rows = ((n + n_piece - 1) / n_piece + WEIGHT_PANEL - 1) / WEIGHT_PANEL * WEIGHT_PANEL;
    return rows < n ? (int)rows : (int)n;
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

static int depth_for(int n_worker)
{
    int depth = DEPTH_ALL / n_worker;
    return depth < 2 ? 2 : depth > DEPTH_MAX ? DEPTH_MAX : depth;
}

static size_t stage_bytes(size_t row_max, size_t scale_max)
{
    return READER_ROOM(row_max) + READER_ROOM(scale_max);
}

size_t fill_staging_bytes(const struct slots *s, int n_worker)
{
    size_t row_max, scale_max, n_piece;
    measure(s, &row_max, &scale_max, &n_piece);
    size_t n_stage = (size_t)n_worker * ((size_t)depth_for(n_worker) + 1);
    return n_stage * stage_bytes(row_max, scale_max) + n_piece * sizeof(struct fill_piece);
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

/* Nearly all files have none: one quick look, a word at a time. */
static bool any_sign(const uint8_t *scales, size_t n)
{
    uint64_t all = 0, word = 0;
    size_t i = 0;
    for (; i + sizeof(word) <= n; i += sizeof(word)) {
        memcpy(&word, scales + i, sizeof(word));
        all |= word;
    }
    for (; i < n; i++)
        all |= scales[i];
    return all & 0x8080808080808080u;
}

void fill_settle_signs(uint8_t *codes, uint8_t *scales, size_t n_group)
{
    if (!any_sign(scales, n_group))
        return;
    for (size_t g = 0; g < n_group; g++) {
        if (!(scales[g] & 0x80))
            continue;
        scales[g] &= 0x7f;
        for (size_t i = 0; i < FP4_GROUP / 2; i++)
            codes[g * (FP4_GROUP / 2) + i] ^= 0x88;
    }
}

static enum nyb_code write_piece(const struct fill_piece *p, struct nyb_err *err)
{
    const struct slot *s = p->slot;
    if (s->kind == SLOT_MATRIX && s->weight->type == WEIGHT_NVFP4)
        fill_settle_signs(p->rows, p->scales, (size_t)p->n_row * scale_bytes(s));
    if (s->place)
        return device_place_write(p, err);
    if (s->kind == SLOT_VECTOR) {
        memcpy(*s->vector, p->rows, (size_t)s->n * sizeof(float));
        return NYB_OK;
    }
    weight_write(s->weight, p->row, p->n_row, p->rows, scale_bytes(s) ? p->scales : NULL);
    return NYB_OK;
}

/* Begin to read what can be read ahead. */
static void begin_stage(struct fill *f, struct stage *g, int item, struct reader *reader, uint8_t *hot)
{
    struct fill_extent extent[2];
    g->item = item;
    g->piece = f->piece[item];
    g->piece.rows = g->memory;
    g->piece.scales = g->memory + READER_ROOM(f->row_max);
    g->reading =
        reader && item <= atomic_load(&f->failed) && f->source->locate(f->source->arg, &g->piece, extent);
    for (int i = 0; g->reading && i < 2; i++) {
        g->read[i] = (struct reader_read){.fd = extent[i].fd,
                                          .path = extent[i].path,
                                          .offset = extent[i].offset,
                                          .len = extent[i].len,
                                          .buffer = i ? g->piece.scales : g->piece.rows,
                                          .hot = i ? hot + READER_ROOM(f->row_max) : hot};
        reader_start(reader, &g->read[i]);
    }
}

/* Both reads end, whatever happens: they write to our memory. */
static enum nyb_code await_rows(struct fill *f, struct stage *g, struct reader *reader, struct nyb_err *err)
{
    if (!g->reading)
        return f->source->make(f->source->arg, &g->piece, err);
    struct nyb_err second;
    enum nyb_code code = reader_finish(reader, &g->read[0], err);
    enum nyb_code other = reader_finish(reader, &g->read[1], &second);
    if (code == NYB_OK && other != NYB_OK) {
        *err = second;
        code = other;
    }
    g->piece.rows = g->read[0].data;
    g->piece.scales = g->read[1].data;
    return code == NYB_OK ? f->source->check(f->source->arg, &g->piece, err) : code;
}

static void end_stage(struct fill *f, struct stage *g, struct reader *reader)
{
    const struct fill_piece *p = &g->piece;
    struct nyb_err err;
    if (g->reading || g->item <= atomic_load(&f->failed)) {
        enum nyb_code code = await_rows(f, g, reader, &err);
        if (code == NYB_OK)
            code = write_piece(p, &err);
        if (code != NYB_OK)
            fail(f, g->item, code, &err);
    }
    atomic_fetch_add(&f->done, (uint64_t)p->n_row * (row_bytes(p->slot) + scale_bytes(p->slot)));
}

/* One for each worker: pieces in order, `depth` of them under way. */
static void run_lane(void *arg, int item, int worker)
{
    struct fill *f = arg;
    struct stage *stage = f->stage + (size_t)item * (size_t)f->depth;
    struct reader *reader = f->readers ? reader_get(f->readers, item) : NULL;
    int depth = reader ? f->depth : 1;
    for (int begun = 0, ended = 0;; ended++) {
        while (begun - ended < depth && atomic_load(&f->next) < f->n_piece) {
            int next = atomic_fetch_add(&f->next, 1);
            if (next >= f->n_piece)
                break;
            begin_stage(f, &stage[begun % depth], next, reader, f->hot[item]);
            begun++;
        }
        if (ended == begun)
            return;
        end_stage(f, &stage[ended % depth], reader);
        if (worker == 0) /* the thread that called us */
            report(f, false);
    }
}

static enum nyb_code take_staging(struct fill *f, int n_worker)
{
    size_t bytes = stage_bytes(f->row_max, f->scale_max);
    for (int i = 0; i < n_worker * f->depth; i++) {
        f->stage[i].memory = aligned_alloc(READER_ALIGN, bytes);
        if (!f->stage[i].memory)
            return err_set(f->err, NYB_E_MEMORY, "no memory for %zu bytes of staging", bytes);
    }
    for (int i = 0; f->source->locate && i < n_worker; i++) {
        f->hot[i] = aligned_alloc(READER_ALIGN, bytes);
        if (!f->hot[i])
            return err_set(f->err, NYB_E_MEMORY, "no memory for %zu bytes of staging", bytes);
    }
    if (!f->source->locate)
        return NYB_OK;
    const struct reader_options options = {.way = READER_URING};
    return reader_set_open(&f->readers, n_worker, 2 * f->depth, &options, f->err);
}

enum nyb_code fill_slots(struct slots *s, const struct fill_source *source, struct pool *pool,
                         const struct fill_progress *progress, struct nyb_err *err)
{
    int n_worker = pool_size(pool);
    struct fill f = {.source = source, .progress = progress, .err = err, .depth = depth_for(n_worker)};
    size_t n_piece;
    measure(s, &f.row_max, &f.scale_max, &n_piece);
    ASSERT(n_piece < INT_MAX); /* pieces of 512 KB: this much memory has been found to be there */
    f.n_piece = (int)n_piece;
    atomic_init(&f.failed, f.n_piece);
    f.piece = mem_alloc((size_t)f.n_piece, sizeof(*f.piece));
    f.stage = mem_alloc((size_t)n_worker * (size_t)f.depth, sizeof(*f.stage));
    f.hot = mem_alloc((size_t)n_worker, sizeof(*f.hot));
    pthread_mutex_init(&f.lock, NULL);
    f.code = take_staging(&f, n_worker);
    if (f.code == NYB_OK) {
        cut_pieces(&f, s);
        pool_recall(pool); /* one run, of seconds */
        pool_run(pool, n_worker, run_lane, &f);
        report(&f, true);
    }
    if (f.readers)
        log_debug("weights were read by %s", reader_set_describe(f.readers));
    reader_set_close(f.readers);
    pthread_mutex_destroy(&f.lock);
    for (int i = 0; i < n_worker * f.depth; i++)
        free(f.stage[i].memory);
    for (int i = 0; i < n_worker; i++)
        free(f.hot[i]);
    free(f.hot);
    free(f.stage);
    free(f.piece);
    return f.code;
}
