#include "kernels/attention.h"

#include <math.h>
#include <string.h>

/* Partial results of a call never take more than this: beyond it workers walk whole tiles. */
#define PART_BYTES_MAX ((size_t)2 << 20) /* for each row of a tile */

/* Four floats of a row, in a register of every x86-64. */
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
#define FOURS(x, i)    (((four *)(void *)(x))[i])
#define OF_FOURS(x, i) (((const four *)(const void *)(x))[i])

/* One tile, as a number would name it. */
struct tile_ref {
    int seq, tok, n_tok;        /* tokens [tok, tok + n_tok) of the batch  */
    int kv_head, head, n_head;  /* query heads [head, head + n_head)      */
    int n_key;                  /* keys that its last token sees          */
    int first_part, first_item; /* parts and items of the tiles before     */
};

struct run {
    const struct attention_args *a;
    const struct attention_kernel *kernel;
    struct tile_ref *tile; /* (n_tile)                                            */
    int n_tile, n_part;
    int walk;                /* splits of one item, walked in a row, where tiles are cut */
    size_t pad, part_floats; /* floats of one part: rows * (2 + pad)               */
    float *part;             /* where tiles are cut: (n_part) parts                */
    float *fold;             /* where they are not: (workers, 2) parts             */
    uint8_t *work;           /* (workers, work_bytes)                              */
    size_t work_bytes;
};

static int split_count(int n_key)
{
    return (n_key + ATTENTION_SPLIT - 1) / ATTENTION_SPLIT;
}

static struct attention_part part_at(const struct run *r, float *base)
{
    size_t rows = (size_t)r->kernel->rows;
    return (struct attention_part){base, base + rows, base + 2 * rows};
}

static struct attention_tile tile_open(const struct run *r, const struct tile_ref *ref)
{
    const struct attention_args *a = r->a;
    size_t d = (size_t)a->kv->head_dim;
    return (struct attention_tile){
        .kv = a->kv,
        .block = a->batch->block_table + (size_t)ref->seq * (size_t)a->batch->n_block_max,
        .pos = a->batch->pos + ref->tok,
        .key_bytes = kv_key_bytes(a->kv->type, a->kv->head_dim),
        .value_bytes = kv_value_bytes(a->kv->type, a->kv->head_dim),
        .kv_head = ref->kv_head,
        .n_tok = ref->n_tok,
        .n_head = ref->n_head,
        .q = a->q + ((size_t)ref->tok * (size_t)a->n_head + (size_t)ref->head) * d,
        .ldq = (size_t)a->n_head * d,
        .scale = a->scale * 1.44269504088896340736f,
        .round_q = a->round_q,
    };
}

/* One split of the splits [first, last) that this worker walks, in that order: what the kernel makes of the
 * queries for the first of them is still in the worker's memory for the others. */
static void part_compute(const struct run *r, const struct tile_ref *ref, int split, int first, int last,
                         int worker, struct attention_part *out)
{
    struct attention_tile t = tile_open(r, ref);
    t.walk_begin = first * ATTENTION_SPLIT;
    t.walk_end = last == split_count(ref->n_key) ? ref->n_key : last * ATTENTION_SPLIT;
    int begin = split * ATTENTION_SPLIT;
    int end = ref->n_key - begin < ATTENTION_SPLIT ? ref->n_key : begin + ATTENTION_SPLIT;
    r->kernel->split(&t, begin, end, r->work + (size_t)worker * r->work_bytes, out);
}

/* sum += part for every row that saw a key of it: one order, so one result. */
static void part_fold(const struct run *r, int n_row, struct attention_part *sum,
                      const struct attention_part *part)
{
    for (int row = 0; row < n_row; row++) {
        if (part->l[row] == 0.0f && part->m[row] == -INFINITY)
            continue;
        float m = fmaxf(sum->m[row], part->m[row]);
        float old = exp2f(sum->m[row] - m), new = exp2f(part->m[row] - m);
        float *acc = sum->acc + (size_t)row * r->pad;
        const float *add = part->acc + (size_t)row * r->pad;
        for (size_t i = 0; i < r->pad / 4; i++)
            FOURS(acc, i) = FOURS(acc, i) * old + OF_FOURS(add, i) * new;
        sum->l[row] = sum->l[row] * old + part->l[row] * new;
        sum->m[row] = m;
    }
}

static void part_write(const struct run *r, const struct tile_ref *ref, const struct attention_part *sum)
{
    size_t d = (size_t)r->a->kv->head_dim;
    for (int row = 0; row < ref->n_tok * ref->n_head; row++) {
        size_t tok = (size_t)(ref->tok + row / ref->n_head), head = (size_t)(ref->head + row % ref->n_head);
        float *y = r->a->y + (tok * (size_t)r->a->n_head + head) * d;
        const float *acc = sum->acc + (size_t)row * r->pad;
        float inverse = 1.0f / sum->l[row];
        for (size_t i = 0; i < d / 4; i++)
            FOURS(y, i) = OF_FOURS(acc, i) * inverse;
    }
}

/* A whole tile by one worker. */
static void run_tile(void *arg, int item, int worker)
{
    const struct run *r = arg;
    const struct tile_ref *ref = &r->tile[item];
    float *base = r->fold + (size_t)worker * 2 * r->part_floats;
    struct attention_part sum = part_at(r, base), part = part_at(r, base + r->part_floats);
    int last = split_count(ref->n_key);
    if (r->a->qkv)
        r->a->rotate(r->a->qkv, ref->tok, ref->kv_head);
    part_compute(r, ref, 0, 0, last, worker, &sum);
    for (int s = 1; s < last; s++) {
        part_compute(r, ref, s, 0, last, worker, &part);
        part_fold(r, ref->n_tok * ref->n_head, &sum, &part);
    }
    part_write(r, ref, &sum);
}

/* Some splits of the last tile whose first item is not beyond this one. */
static void run_walk(void *arg, int item, int worker)
{
    const struct run *r = arg;
    int low = 0, high = r->n_tile - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (r->tile[middle].first_item <= item)
            low = middle;
        else
            high = middle - 1;
    }
    const struct tile_ref *ref = &r->tile[low];
    int first = (item - ref->first_item) * r->walk, last = split_count(ref->n_key);
    last = last - first < r->walk ? last : first + r->walk;
    for (int s = first; s < last; s++) {
        struct attention_part part = part_at(r, r->part + (size_t)(ref->first_part + s) * r->part_floats);
        part_compute(r, ref, s, first, last, worker, &part);
    }
}

static void run_fold(void *arg, int item, int worker)
{
    (void)worker;
    const struct run *r = arg;
    const struct tile_ref *ref = &r->tile[item];
    float *base = r->part + (size_t)ref->first_part * r->part_floats;
    struct attention_part sum = part_at(r, base);
    for (int s = 1; s < split_count(ref->n_key); s++) {
        struct attention_part part = part_at(r, base + (size_t)s * r->part_floats);
        part_fold(r, ref->n_tok * ref->n_head, &sum, &part);
    }
    part_write(r, ref, &sum);
}

static int last_key(const struct batch *b, int tok, int n_tok)
{
    int last = 0;
    for (int i = tok; i < tok + n_tok; i++) {
        ASSERT(b->pos[i] >= 0 && b->pos[i] / KV_BLOCK < b->n_block_max);
        last = b->pos[i] > last ? b->pos[i] : last;
    }
    return last + 1;
}

/* List the tiles; with tile NULL only count them. Long sequences' last tokens come first, so that the
 * longest items are drawn first. */
static int list_tiles(const struct attention_args *a, int rows, struct tile_ref *tile)
{
    const struct batch *b = a->batch;
    int group = a->n_head / a->kv->n_kv_head, n = 0, part = 0;
    int heads = group < ATTENTION_HEADS ? group : ATTENTION_HEADS;
    int toks = rows / heads;
    for (int s = 0; s < b->n_seq; s++) {
        int begin = b->seq_start[s], n_tok = b->seq_start[s + 1] - begin;
        for (int chunk = (n_tok + toks - 1) / toks - 1; chunk >= 0; chunk--) {
            int tok = begin + chunk * toks;
            int here = n_tok - chunk * toks < toks ? n_tok - chunk * toks : toks;
            for (int h = 0; h < a->kv->n_kv_head; h++)
                for (int g = 0; g < group; g += heads, n++) {
                    if (!tile)
                        continue;
                    tile[n] = (struct tile_ref){s,
                                                tok,
                                                here,
                                                h,
                                                h * group + g,
                                                group - g < heads ? group - g : heads,
                                                last_key(b, tok, here),
                                                part,
                                                0};
                    part += split_count(tile[n].n_key);
                }
        }
    }
    return n;
}

/* Few tiles and long contexts: several workers share a tile. */
static bool is_cut(int n_tile, int n_part, size_t workers)
{
    return workers > 1 && (size_t)n_tile < 4 * workers && n_part > n_tile;
}

bool attention_may_rotate(const struct pool *pool, const struct attention_args *a)
{
    const struct batch *b = a->batch;
    int n_part = 0, n_kv = a->kv->n_kv_head;
    if (a->n_head / n_kv > ATTENTION_HEADS || b->n_tok != b->n_seq)
        return false;
    for (int s = 0; s < b->n_seq; s++) {
        if (b->seq_start[s + 1] - b->seq_start[s] != 1)
            return false;
        n_part += n_kv * split_count(b->pos[b->seq_start[s]] + 1);
    }
    return !is_cut(n_kv * b->n_seq, n_part, (size_t)pool_size(pool));
}

/* Items of several splits each, about four for every worker: longer walks prefetch better, shorter ones
 * spread better. Returns how many. */
static int cut_tiles(struct run *r, int workers)
{
    r->walk = r->n_part / (4 * workers);
    r->walk = r->walk < 1 ? 1 : r->walk;
    int item = 0;
    for (int i = 0; i < r->n_tile; i++) {
        r->tile[i].first_item = item;
        item += (split_count(r->tile[i].n_key) + r->walk - 1) / r->walk;
    }
    return item;
}

void attention_run(struct pool *pool, struct arena *scratch, const struct attention_args *a,
                   const struct attention_kernel *kernel)
{
    ASSERT(a->kv->n_kv_head > 0 && a->n_head % a->kv->n_kv_head == 0);
    ASSERT(a->kv->head_dim % KV_HEAD_DIM_STEP == 0 && a->kv->head_dim <= KV_HEAD_DIM_MAX);
    struct run r = {.a = a, .kernel = kernel, .pad = (size_t)kv_pad(a->kv->type, a->kv->head_dim)};
    r.n_tile = list_tiles(a, kernel->rows, NULL);
    if (r.n_tile == 0)
        return;
    size_t workers = (size_t)pool_size(pool);
    r.tile = arena_alloc(scratch, (size_t)r.n_tile, sizeof(*r.tile));
    list_tiles(a, kernel->rows, r.tile);
    r.n_part = r.tile[r.n_tile - 1].first_part + split_count(r.tile[r.n_tile - 1].n_key);
    r.part_floats = (size_t)kernel->rows * (2 + r.pad);
    r.work_bytes = (kernel->work_bytes(a->kv) + 63) & ~(size_t)63;
    r.work = arena_alloc(scratch, workers, r.work_bytes);

    bool cut = is_cut(r.n_tile, r.n_part, workers) &&
               (size_t)r.n_part * r.part_floats * sizeof(float) <= (size_t)kernel->rows * PART_BYTES_MAX;
    if (cut) {
        ASSERT(!a->qkv);
        r.part = arena_alloc(scratch, (size_t)r.n_part * r.part_floats, sizeof(float));
        pool_run(pool, cut_tiles(&r, (int)workers), run_walk, &r);
        pool_run(pool, r.n_tile, run_fold, &r);
    } else {
        r.fold = arena_alloc(scratch, workers * 2 * r.part_floats, sizeof(float));
        bool decode = a->batch->n_tok == a->batch->n_seq; /* else the longest items are first */
        (decode ? pool_run_kept : pool_run)(pool, r.n_tile, run_tile, &r);
    }
}
