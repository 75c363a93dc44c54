#include "kernels/gemm.h"

#include <string.h>

#include "fp4/fp4.h"
#include "kernels/gemm_floats.h"
#include "kernels/gemm_rows.h"
#include "kernels/gemm_split.h"
#include "kernels/gemm_tile.h"
#include "kernels/weight_layout.h"

/* Weight bytes of one work item at most: so long that where one stream ends and the next begins costs little,
 * and where they are read for one tile of rows after another so short that they stay in a second cache.
 * From round to round of a call items shrink, so that workers end together. */
#define ITEM_BYTES      ((size_t)512 << 10)
#define ITEM_BYTES_ONCE ((size_t)4 << 20)
#define PANEL_RUN       2 /* panels summed before they are finished */
#define ASK_LINES       8 /* of the next run, asked for before the finish of one holds up its reads */
#define HALVES_ROWS     6 /* of BF16: with more of them products bind */
/* Panel and rows of x that stay in it together, a little less than it has. */
#define FIRST_CACHE ((size_t)26 << 10)
#define PANEL_SUMS  ((size_t)GEMM_TILE_ROW * WEIGHT_PANEL)
#define BLOCK_SUMS  ((size_t)GEMM_BLOCK_ROW * WEIGHT_PANEL)
/* The same of blocks with many rows, which each item gathers: an expert is one item. Where there are more
 * than a block has, panels are read again for each block, and should stay in the second cache. */
#define BLOCK_BYTES  ((size_t)2 << 20)
#define BLOCKS_BYTES ((size_t)640 << 10)

const char *compute_name(enum compute c)
{
    static const char *const name[COMPUTE_COUNT] = {"bf16", "strict", "int8", "w4a4"};
    return name[c];
}

/* ---- W4A4 --------------------------------------------------------------------------------------- */

/* The inputs of an NVFP4 job as W4A4 hardware would see them: (m, k_pad) of its own, since input scales
 * differ. */
struct round_trip {
    const struct gemm_job *job;
    const struct operand *from;
    float *to;
};

static const struct operand *job_row(const struct gemm_job *j, int i, size_t *at)
{
    *at = (size_t)(j->row ? j->row[i] : i) * (size_t)j->x->k_pad;
    return j->x;
}

static void round_trip_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct round_trip *r = arg;
    for (int i = begin; i < end; i++) {
        size_t at;
        const float *src = job_row(r->job, i, &at)->f32 + at;
        float *dst = r->to + (size_t)i * (size_t)r->from->k_pad;
        fp4_round_trip_row(dst, src, r->job->w->input_scale, (size_t)r->from->k);
        memset(dst + r->from->k, 0, sizeof(*dst) * (size_t)(r->from->k_pad - r->from->k));
    }
}

/* Jobs whose input is rounded get an operand of their own, with rows in order. */
static const struct gemm_job *round_trip_jobs(struct pool *pool, struct arena *scratch,
                                              const struct gemm_job *job, int n_job)
{
    struct gemm_job *copy = arena_alloc(scratch, (size_t)n_job, sizeof(*copy));
    for (int i = 0; i < n_job; i++) {
        copy[i] = job[i];
        if (job[i].w->type != WEIGHT_NVFP4 || !(job[i].w->input_scale > 0.0f) || job[i].m == 0)
            continue;
        struct operand *op = arena_alloc(scratch, 1, sizeof(*op));
        *op = (struct operand){.m = job[i].m, .k = job[i].x->k, .k_pad = job[i].x->k_pad};
        float *rows = arena_alloc(scratch, (size_t)op->m * (size_t)op->k_pad, sizeof(*rows));
        struct round_trip r = {&job[i], op, rows};
        pool_range(pool, op->m, 1, round_trip_rows, &r);
        op->f32 = rows;
        copy[i].x = op;
        copy[i].row = NULL;
    }
    return copy;
}

/* ---- the product ------------------------------------------------------------------------------- */

struct item {
    int job, panel, n_panel;
};

struct run {
    const struct gemm_table *table;
    enum compute mode;
    const struct gemm_job *job;
    const bool *ready; /* (jobs) rows are as blocks want them */
    const struct item *item;
    uint8_t *scratch; /* (workers, scratch_bytes), for blocks */
    size_t scratch_bytes;
};

static void set_row(struct gemm_tile *t, int slot, enum gemm_form form, const struct operand *x, size_t at)
{
    switch (form) {
    case GEMM_BF16:
        t->x[slot] = x->bf16 + at;
        return;
    case GEMM_I8:
        t->x[slot] = x->i8 + at;
        t->x_scale[slot] = x->i8_scale + at / (size_t)x->k_pad * (size_t)operand_i8_scales(x->k_pad);
        t->x_group[slot] = x->i8_group + at / FP4_GROUP;
        return;
    case GEMM_I8B:
        t->x[slot] = x->i8_block + at / (size_t)x->k_pad * (size_t)operand_i8_scales(x->k_pad);
        return;
    case GEMM_I16:
        t->x[slot] = x->i16_bytes + 2 * at;
        t->x_unit[slot] = x->i16_group + at / FP4_GROUP;
        return;
    default:
        t->x[slot] = x->f32 + at;
    }
}

/* What stays the same over the panels of an item, for one tile of rows. */
struct pass {
    const struct gemm_table *table;
    const struct gemm_job *job;
    gemm_tile_fn *fn;
    const struct item *item;
    float unit;    /* of the sums, besides the weights' global scale */
    int first_row; /* of the tile in the job                         */
};

/* Sums (n_row, WEIGHT_PANEL) of one panel, and of its partner where gated, to y. */
static void finish_panel(const struct pass *s, int n_row, int panel, const float *sum, const float *sum_up)
{
    const struct gemm_job *j = s->job;
    int col = panel * WEIGHT_PANEL;
    size_t at = (size_t)s->first_row * (size_t)j->ldy + (size_t)col;
    struct gemm_finish f = {.sum = sum,
                            .sum_up = sum_up,
                            .scale = s->unit * j->w->global_scale,
                            .scale_up = j->up ? s->unit * j->up->global_scale : 0.0f,
                            .bias = j->bias ? j->bias + col : NULL,
                            .y = j->rounded ? NULL : j->y + at,
                            .rounded = j->rounded ? j->rounded + at : NULL,
                            .n_row = n_row,
                            .n = j->w->n - col < WEIGHT_PANEL ? j->w->n - col : WEIGHT_PANEL,
                            .ldy = j->ldy,
                            .gated = j->up != NULL,
                            .accumulate = j->accumulate};
    s->table->finish(&f);
    bool pad = j->rounded && col + WEIGHT_PANEL >= j->w->n; /* operands are zero from k on */
    for (int i = 0; pad && i < n_row; i++)
        memset(f.rounded + (size_t)i * (size_t)j->ldy + f.n, 0,
               (size_t)(j->ldy - j->w->n) * sizeof(*f.rounded));
}

/* n panels of gate from `first` on, then as many of up, so that each is read as one stream. A panel's sums
 * are followed by its partner's. */
static void sum_gated(const struct pass *s, struct gemm_tile *t, float *sum, int first, int n)
{
    size_t bytes = weight_panel_bytes(s->job->w);
    const uint8_t *gate = s->job->w->data + (size_t)first * bytes;
    const uint8_t *up = s->job->up->data + (size_t)first * bytes;
    t->n_panel = 1;
    for (int i = 0; i < 2 * n; i++) {
        size_t at = (size_t)(i < n ? i : i - n);
        t->panel[0] = (i < n ? gate : up) + at * bytes;
        t->sum = sum + (2 * at + (i < n ? 0 : 1)) * PANEL_SUMS;
        s->fn(t);
    }
}

static void sum_plain(const struct pass *s, struct gemm_tile *t, float *sum, int first, int n, bool paired)
{
    size_t bytes = weight_panel_bytes(s->job->w);
    for (int i = 0; i < n; i += t->n_panel) {
        t->panel[0] = s->job->w->data + (size_t)(first + i) * bytes;
        t->panel[1] = t->panel[0] + bytes;
        t->n_panel = paired && i + 1 < n ? 2 : 1;
        t->sum = sum + (size_t)i * PANEL_SUMS;
        s->fn(t);
    }
}

/* Where the next run begins: without this memory would idle while a run's sums are finished. */
static void ask_for(const struct weight *w, int panel)
{
    const uint8_t *from = w->data + (size_t)panel * weight_panel_bytes(w);
    for (int i = 0; panel < weight_n_panel(w) && i < ASK_LINES; i++)
        __builtin_prefetch(from + 64 * i);
}

/* The panels of an item for one tile of rows. */
static void run_panels(const struct pass *s, struct gemm_tile *t, float *sum, bool paired)
{
    int end = s->item->panel + s->item->n_panel, each = s->job->up ? 2 : 1;
    for (int first = s->item->panel, n; first < end; first += n) {
        n = end - first < PANEL_RUN ? end - first : PANEL_RUN;
        if (s->job->up)
            sum_gated(s, t, sum, first, n);
        else
            sum_plain(s, t, sum, first, n, paired);
        ask_for(s->job->w, first + n);
        if (s->job->up)
            ask_for(s->job->up, first + n);
        for (int i = 0; i < n; i++) {
            const float *of = sum + (size_t)(each * i) * PANEL_SUMS;
            finish_panel(s, t->n_row, first + i, of, of + PANEL_SUMS);
        }
    }
}

/* Two streams side by side, gate and up, or the two halves of an item. They are long, and each time that they
 * are left for sums to be finished they start anew: so a run is as many pairs as the sums of a tile have room
 * for. The middle one of an odd number of panels is in both halves, and finished as of the first. */
static void run_pairs(const struct pass *s, struct gemm_tile *t, float *sum)
{
    const struct gemm_job *j = s->job;
    const int begin = s->item->panel, n_panel = s->item->n_panel, half = n_panel / 2;
    const int n_pair = j->up ? n_panel : n_panel - half, most = GEMM_TILE_ROW / t->n_row;
    const int n_out = j->up ? 1 : 2; /* panels of y that a pair makes */
    const size_t bytes = weight_panel_bytes(j->w), pair = (size_t)t->n_row * WEIGHT_PANEL;
    const uint8_t *one = j->w->data + (size_t)begin * bytes;
    const uint8_t *other = j->up ? j->up->data + (size_t)begin * bytes : one + (size_t)half * bytes;
    t->n_panel = 2;
    for (int first = 0, n; first < n_pair; first += n) {
        n = n_pair - first < most ? n_pair - first : most;
        for (int i = 0; i < n; i++) {
            t->panel[0] = one + (size_t)(first + i) * bytes;
            t->panel[1] = other + (size_t)(first + i) * bytes;
            t->sum = sum + (size_t)i * pair;
            s->fn(t);
        }
        for (int i = 0; i < n * n_out; i++) {
            const bool second = i % n_out;
            const int panel = first + i / n_out + (second ? half : 0);
            const float *of = sum + (size_t)(i / n_out) * pair, *of_other = of + PANEL_SUMS;
            if (!second || panel >= n_pair)
                finish_panel(s, t->n_row, begin + panel, second ? of_other : of, of_other);
        }
    }
}

/* Scratch of one worker: decoded panels, then rows of bf16 that it copies. */
static size_t block_scratch(const struct run *r, int job)
{
    const struct gemm_job *j = &r->job[job];
    const struct gemm_blocks *block = gemm_blocks_for(r->table, r->mode, j);
    enum gemm_form form = gemm_form_for(r->table, j->w->type, r->mode);
    if (!block)
        return 0;
    size_t n_row = (size_t)(j->m < GEMM_BLOCK_ROW ? j->m : GEMM_BLOCK_ROW);
    bool copied = form == GEMM_BF16 && !r->ready[job] && (j->row || block->copy);
    n_row = (n_row + GEMM_BLOCK_TILE - 1) / GEMM_BLOCK_TILE * GEMM_BLOCK_TILE;
    size_t bytes = copied ? n_row * (size_t)j->x->k_pad * sizeof(uint16_t) : 0;
    return gemm_block_decode_bytes(form) + (bytes + 63) / 64 * 64;
}

/* Rows first .. first + n_row - 1 of the job, one k_pad after another: in place where they lie so and go as
 * they are. */
static void set_block_rows(struct gemm_block *b, const struct gemm_blocks *block, const struct gemm_job *j,
                           bool ready, int first, uint16_t *copies)
{
    bool in_place = ready || !block->copy;
    for (int i = 1; j->row && i < b->n_row; i++)
        in_place &= j->row[first + i] == j->row[first] + i;
    b->x = in_place ? j->x->bf16 + gemm_job_row(j, first) : copies;
    b->x_stride = (size_t)j->x->k_pad;
    b->x_tiled = block->copy && (ready || b->n_row > GEMM_BLOCK_TILE);
    for (int i = 0; !in_place && i < b->n_row; i++) {
        if (b->x_tiled)
            gemm_copy_to_tile(block, j, first, i, b->n_row, copies);
        else
            gemm_copy_row(block, j, first + i, copies + (size_t)i * b->x_stride, GEMM_BLOCK_STEP);
    }
}

/* The same rows of floats or integers, wherever they lie. */
struct block_rows {
    const void *row[GEMM_BLOCK_ROW], *group[GEMM_BLOCK_ROW];
    const float *scale[GEMM_BLOCK_ROW];
};

static void point_block_rows(struct gemm_block *b, const struct gemm_job *j, enum gemm_form form, int first,
                             struct block_rows *r)
{
    for (int i = 0; i < b->n_row; i++) {
        size_t at;
        const struct operand *x = job_row(j, first + i, &at);
        if (form == GEMM_I8) {
            r->row[i] = x->i8 + at;
            r->group[i] = x->i8_group + at / FP4_GROUP;
            r->scale[i] = x->i8_scale + at / (size_t)x->k_pad * (size_t)operand_i8_scales(x->k_pad);
        } else if (form == GEMM_I16) {
            r->row[i] = x->i16 + at;
            r->group[i] = x->i16_group + at / FP4_GROUP;
        } else {
            r->row[i] = x->f32 + at;
        }
    }
    b->row = r->row;
    b->group = r->group;
    b->scale = r->scale;
}

/* Panels of an item, `each` of the job at a time, whose sums come from a block. */
struct block_sums {
    const struct pass *pass;
    const float *sum;
    int n_row, panel, each;
};

static void finish_block(void *own, int i)
{
    const struct block_sums *s = own;
    for (int p = 0; p < s->each; p++)
        finish_panel(s->pass, s->n_row, s->panel + i * s->each + p, s->sum + (size_t)p * BLOCK_SUMS,
                     s->sum + BLOCK_SUMS);
}

/* Gate with up, or neighbours, against up to GEMM_BLOCK_ROW rows at a time. */
static void run_blocks(const struct run *r, const struct item *it, const struct gemm_blocks *block,
                       uint8_t *scratch)
{
    const struct gemm_job *j = &r->job[it->job];
    size_t bytes = weight_panel_bytes(j->w);
    _Alignas(64) float sum[2 * BLOCK_SUMS];
    struct pass pass = {.table = r->table, .job = j, .item = it, .unit = block->unit};
    struct block_rows rows;
    struct block_sums sums = {.pass = &pass, .sum = sum};
    struct gemm_block b = {.k = j->w->k, .decode = scratch, .sum = sum, .done = finish_block, .own = &sums};
    enum gemm_form form = gemm_form_for(r->table, j->w->type, r->mode);
    uint16_t *copies = (uint16_t *)(void *)(scratch + gemm_block_decode_bytes(form));
    int end = it->panel + it->n_panel;
    for (; pass.first_row < j->m; pass.first_row += b.n_row) {
        int left = j->m - pass.first_row;
        b.n_row = left < GEMM_BLOCK_ROW ? left : GEMM_BLOCK_ROW;
        sums.n_row = b.n_row;
        if (form == GEMM_BF16)
            set_block_rows(&b, block, j, r->ready[it->job], pass.first_row, copies);
        else
            point_block_rows(&b, j, form, pass.first_row, &rows);
        for (int p = it->panel; p < end; p += (1 + b.n_more) * sums.each) {
            b.n_panel = j->up || p + 1 < end ? 2 : 1;
            sums.each = j->up ? 1 : b.n_panel;
            sums.panel = p;
            b.next = (size_t)sums.each * bytes;
            b.n_more = block->stream ? (end - p) / sums.each - 1 : 0;
            b.n_out = sums.each;
            b.out_panel = WEIGHT_PANEL * (j->rounded ? sizeof(*j->rounded) : sizeof(*j->y));
            b.out_row = b.out_panel / WEIGHT_PANEL * (size_t)j->ldy;
            b.out = (j->rounded ? (const uint8_t *)j->rounded : (const uint8_t *)j->y) +
                    (size_t)pass.first_row * b.out_row + (size_t)p * b.out_panel;
            b.panel[0] = j->w->data + (size_t)p * bytes;
            b.panel[1] = j->up ? j->up->data + (size_t)p * bytes : b.panel[0] + bytes;
            block->fn(&b);
            if (!block->stream)
                finish_block(&sums, 0);
        }
    }
}

/* How one tile goes through its panels. */
enum walk { WALK_ALONE, WALK_NEIGHBOURS, WALK_HALVES };

static size_t row_bytes(const struct weight *w, enum gemm_form form)
{
    size_t k = (size_t)w->k;
    return form == GEMM_I8B ? k / I8_BLOCK * sizeof(struct i8_block) : k * sizeof(uint16_t);
}

/* Of a matrix without a partner. Two panels at a time decode faster, hide the latency of their chains and
 * share what is read of x. But neighbours are short streams side by side, which memory's own prefetcher
 * follows badly (half the speed of NVFP4 with k = 768). So from memory either both halves of an item go side
 * by side, or each panel alone: BF16 where products bind, for which lines are asked for, and NVFP4 while x
 * stays in the first cache beside a panel. */
static enum walk walk_of(const struct weight *w, enum gemm_form form, int m)
{
    bool memory = (form == GEMM_BF16 || form == GEMM_I8B) && !w->near;
    if (w->type != WEIGHT_NVFP4 && !memory)
        return WALK_NEIGHBOURS;
    switch (w->type) {
    case WEIGHT_NVFP4:
        memory &= weight_panel_bytes(w) + (size_t)m * row_bytes(w, form) > FIRST_CACHE;
        return memory ? WALK_HALVES : WALK_ALONE;
    case WEIGHT_BF16:
        return m <= HALVES_ROWS ? WALK_HALVES : WALK_ALONE;
    default:
        return WALK_HALVES;
    }
}

/* The same in tiles of a few rows. */
static void run_tiles(const struct run *r, const struct item *it)
{
    const struct gemm_job *j = &r->job[it->job];
    enum weight_type type = j->w->type;
    enum gemm_form form = gemm_form_for(r->table, type, r->mode);
    const int *max_row = r->table->max_row[type][form];
    _Alignas(64) float sum[2 * PANEL_RUN * PANEL_SUMS];
    struct pass pass = {
        .table = r->table, .job = j, .fn = r->table->tile[type][form], .item = it, .unit = 1.0f};
    struct gemm_tile t = {.k = j->w->k, .n_panel = 1, .near = j->w->near};

    /* Few rows: one pass that reads each panel once. Many rows: whichever shape has more sums at once, in
     * tiles of nearly equal height. */
    enum walk walk = 2 * max_row[2] > max_row[1] ? WALK_NEIGHBOURS : WALK_ALONE;
    if (j->m <= max_row[1])
        walk = j->m > max_row[2] ? WALK_ALONE : j->up ? WALK_NEIGHBOURS : walk_of(j->w, form, j->m);
    if (walk == WALK_HALVES && it->n_panel == 1) /* both halves would be that one */
        walk = WALK_ALONE;
    bool paired = walk != WALK_ALONE;
    int height = max_row[paired ? 2 : 1], n_tile = (j->m + height - 1) / height;
    for (int tile = 0; tile < n_tile; tile++, pass.first_row += t.n_row) {
        t.n_row = (j->m - pass.first_row + n_tile - tile - 1) / (n_tile - tile);
        for (int i = 0; i < t.n_row; i++) {
            size_t at;
            const struct operand *x = job_row(j, pass.first_row + i, &at);
            set_row(&t, i, form, x, at);
        }
        if (walk == WALK_HALVES || (paired && j->up))
            run_pairs(&pass, &t, sum);
        else
            run_panels(&pass, &t, sum, paired);
    }
}

static void run_item(void *arg, int item, int worker)
{
    const struct run *r = arg;
    const struct item *it = &r->item[item];
    const struct gemm_blocks *block = gemm_blocks_for(r->table, r->mode, &r->job[it->job]);
    if (block)
        run_blocks(r, it, block, r->scratch + (size_t)worker * r->scratch_bytes);
    else
        run_tiles(r, it);
}

static void check_job(const struct gemm_job *j)
{
    ASSERT(j->m >= 0 && j->x->k == j->w->k && j->ldy >= j->w->n);
    ASSERT(j->row || j->m <= j->x->m);
    ASSERT(!j->rounded || !j->accumulate);
    ASSERT(!j->up || (j->up->n == j->w->n && j->up->k == j->w->k && j->up->type == j->w->type && !j->bias));
}

/* One panel of a job: the bytes that must be read, and the time it takes in some unit. */
struct panel_cost {
    size_t bytes;
    uint64_t work;
};

static struct panel_cost cost_of_panel(const struct gemm_job *j)
{
    size_t bytes = weight_panel_bytes(j->w) * (j->up ? 2 : 1);
    return (struct panel_cost){bytes, (uint64_t)bytes * (uint64_t)(j->m < 4 ? 4 : j->m)};
}

/* Panels of the next item: up to `most` bytes, and no more than a worker's part of three quarters of the work
 * left when the last round began. A multiple of `unit`. */
static int panels_of_item(struct panel_cost panel, size_t most, uint64_t left, int workers, int unit)
{
    uint64_t fit = most / panel.bytes, share = left / 4 * 3 / ((uint64_t)workers * panel.work);
    if (workers > 1 && share < fit)
        fit = share;
    return fit < 2 ? unit : fit > 4096 ? 4096 : (int)fit / unit * unit;
}

static size_t item_bytes(const struct run *r, const struct gemm_job *j, bool blocks)
{
    enum gemm_form form = gemm_form_for(r->table, j->w->type, r->mode);
    if (!blocks)
        return j->m <= r->table->max_row[j->w->type][form][1] ? ITEM_BYTES_ONCE : ITEM_BYTES;
    if (j->m <= WEIGHT_PANEL)
        return ITEM_BYTES;
    return j->m <= GEMM_BLOCK_ROW ? BLOCK_BYTES : BLOCKS_BYTES;
}

/* All items of the jobs, in the order of the jobs' panels, in rounds of one for each worker. Within a round
 * they are alike, so that few are needed: each begins new streams, which costs more than a microsecond. */
static struct item *cut_items(struct arena *scratch, const struct run *r, int n_job, int workers, int *n_item)
{
    uint64_t left = 0, round = 0;
    size_t most = 0;
    for (int i = 0; i < n_job; i++) {
        int n_panel = r->job[i].m ? weight_n_panel(r->job[i].w) : 0;
        left += (uint64_t)n_panel * cost_of_panel(&r->job[i]).work;
        most += (size_t)n_panel;
    }
    ASSERT(most < 1u << 30);
    bool pairs = most >= 2 * (size_t)workers; /* one for everybody */
    struct item *item = arena_alloc(scratch, most, sizeof(*item));
    int n = 0;
    for (int i = 0; i < n_job; i++) {
        const struct gemm_job *j = &r->job[i];
        struct panel_cost panel = cost_of_panel(j);
        bool blocks = gemm_blocks_for(r->table, r->mode, j) != NULL;
        size_t bytes = item_bytes(r, j, blocks);
        int unit = pairs && !(blocks && j->up) ? 2 : 1; /* pairs are faster; gate with up is one */
        int n_panel = j->m ? weight_n_panel(j->w) : 0;
        for (int p = 0; p < n_panel; p += item[n++].n_panel) {
            if (n % workers == 0)
                round = left;
            int here = panels_of_item(panel, bytes, round, workers, unit);
            here = here < n_panel - p ? here : n_panel - p;
            item[n] = (struct item){i, p, here};
            left -= (uint64_t)here * panel.work;
        }
    }
    *n_item = n;
    return item;
}

void gemm_run_with(const struct gemm_table *table, struct pool *pool, struct arena *scratch,
                   enum compute mode, const struct gemm_job *job, int n_job)
{
    if (n_job <= 0)
        return;
    for (int i = 0; i < n_job; i++)
        check_job(&job[i]);
    job = gemm_floats(table, pool, scratch, mode, job, n_job);
    const int n_whole = n_job;
    job = gemm_split(table, mode, scratch, job, &n_job, pool_size(pool));
    struct run r = {.table = table, .mode = mode, .job = job};
    int n_item;
    r.item = cut_items(scratch, &r, n_job, pool_size(pool), &n_item);
    if (mode == COMPUTE_W4A4)
        r.job = round_trip_jobs(pool, scratch, job, n_job);
    bool *ready = arena_alloc(scratch, (size_t)n_job, sizeof(*ready));
    r.job = gemm_line_up(table, pool, scratch, mode, r.job, n_job, n_whole, ready);
    r.ready = ready;
    for (int i = 0; i < n_job; i++) {
        size_t needed = block_scratch(&r, i);
        r.scratch_bytes = needed > r.scratch_bytes ? needed : r.scratch_bytes;
    }
    if (r.scratch_bytes)
        r.scratch = arena_alloc(scratch, (size_t)pool_size(pool), r.scratch_bytes);
    pool_run(pool, n_item, run_item, &r);
}

void gemm_run(struct pool *pool, struct arena *scratch, enum compute mode, const struct gemm_job *job,
              int n_job)
{
    gemm_run_with(gemm_table_for(cpu_level()), pool, scratch, mode, job, n_job);
}
