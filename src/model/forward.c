#include "model/forward.h"

#include <string.h>

#include "base/clock.h"
#include "model/ep.h"
#include "model/overlap.h"

void forward_init(struct forward *f)
{
    arena_init(&f->step, 1u << 20);
    arena_init(&f->micro.room, 1u << 20);
    arena_init(&f->micro.scratch, 1u << 20);
    arena_init(&f->micro.flight_room, 1u << 20);
    for (int i = 0; i < 2; i++) {
        arena_init(&f->half[i].room, 1u << 20);
        arena_init(&f->half[i].scratch, 1u << 20);
        arena_init(&f->half[i].flight_room, 1u << 20);
    }
}

void forward_free(struct forward *f)
{
    arena_free(&f->step);
    arena_free(&f->micro.room);
    arena_free(&f->micro.scratch);
    arena_free(&f->micro.flight_room);
    for (int i = 0; i < 2; i++) {
        arena_free(&f->half[i].room);
        arena_free(&f->half[i].scratch);
        arena_free(&f->half[i].flight_room);
    }
}

/* ---- checks -------------------------------------------------------------------------------------- */

static enum nyb_code check_token(const struct pass *p, int i, int64_t n_slot, struct nyb_err *err)
{
    const struct batch *b = p->batch;
    if (b->tok[i] < 0 || b->tok[i] >= p->config->vocab)
        return err_set(err, NYB_E_RANGE, "token id %d is outside the vocabulary of %d", b->tok[i],
                       p->config->vocab);
    if (b->pos[i] < 0 || b->pos[i] >= p->rope->max_pos)
        return err_set(err, NYB_E_TOO_LONG, "position %d is outside the context of %lld", b->pos[i],
                       (long long)p->rope->max_pos);
    if (b->slot[i] < 0 || b->slot[i] >= n_slot)
        return err_set(err, NYB_E_RANGE, "KV slot %d is outside the cache of %lld", b->slot[i],
                       (long long)n_slot);
    return NYB_OK;
}

enum nyb_code forward_check(const struct pass *p, struct nyb_err *err)
{
    const struct batch *b = p->batch;
    int64_t n_slot = (int64_t)p->kv[0].n_block * KV_BLOCK;
    for (int i = 0; i < b->n_tok; i++)
        TRY(check_token(p, i, n_slot, err));
    for (int i = 0; i < b->n_out; i++)
        if (b->out_row[i] < 0 || b->out_row[i] >= b->n_tok)
            return err_set(err, NYB_E_RANGE, "logits of row %d asked for, the step has %d", b->out_row[i],
                           b->n_tok);
    return NYB_OK;
}

/* ---- the pass ------------------------------------------------------------------------------------ */

static uint64_t stage_begin(const struct pass *p)
{
    return p->probe && p->probe->stage ? clock_ns() : 0;
}

static void stage_end(const struct pass *p, int layer, const char *name, uint64_t begin)
{
    if (p->probe && p->probe->stage)
        p->probe->stage(p->probe->arg, layer, name, clock_ns() - begin);
}

struct embed {
    const struct weight *table;
    const int32_t *tok;
    float *h;
};

static void embed_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct embed *e = arg;
    for (int i = begin; i < end; i++)
        weight_row_to_float(e->table, e->tok[i], e->h + (size_t)i * (size_t)e->table->k);
}

static void embed(struct micro_batch *mb, struct arena *step)
{
    const struct pass *p = mb->pass;
    size_t n = (size_t)mb->n_tok * (size_t)p->config->hidden;
    mb->residual = arena_alloc(step, n, sizeof(float));
    mb->delta = arena_alloc(step, n, sizeof(float));
    mb->has_delta = false;
    struct embed e = {&p->weights->embed, p->batch->tok, mb->residual};
    uint64_t begin = stage_begin(p);
    pool_range(p->pool, mb->n_tok, 1, embed_rows, &e); /* a row lies in as many lines as it has elements */
    stage_end(p, -1, "embed", begin);
    if (p->probe && p->probe->hidden)
        p->probe->hidden(p->probe->arg, -1, mb->residual, mb->n_tok, p->config->hidden);
}

static void run_layers(struct micro_batch *mb)
{
    const struct model_config *c = mb->pass->config;
    for (mb->layer = 0; mb->layer < c->n_layer; mb->layer++) {
        const struct stage *stages = mb->pass->stages(c, mb->layer);
        for (mb->stage = 0; stages[mb->stage].start; mb->stage++) {
            uint64_t begin = stage_begin(mb->pass);
            if (mb->lost)
                break;
            bool takes_part = layer_takes_part(mb, &stages[mb->stage]);
            if (takes_part)
                stages[mb->stage].start(mb);
            if (takes_part && stages[mb->stage].done)
                stages[mb->stage].done(mb);
            stage_end(mb->pass, mb->layer, stages[mb->stage].name, begin);
            arena_reset(&mb->scratch);
        }
        arena_reset(&mb->room);
    }
}

struct gather {
    const int32_t *row;
    const float *from;
    float *to;
    size_t n;
};

static void gather_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct gather *g = arg;
    for (size_t i = (size_t)begin; i < (size_t)end; i++)
        memcpy(g->to + i * g->n, g->from + (size_t)g->row[i] * g->n, g->n * sizeof(float));
}

/* Rows whose logits are wanted: n_out of them, from the first on. */
static float *gather(const struct pass *p, int first, int n_out, const float *rows, size_t n,
                     struct arena *step)
{
    float *out = arena_alloc(step, (size_t)n_out * n, sizeof(float));
    struct gather g = {p->batch->out_row + first, rows, out, n};
    pool_range(p->pool, n_out, 1, gather_rows, &g);
    return out;
}

/* A probe sees all rows: on copies, so that what follows is the same with and without it. Every rank makes
 * them, because every rank has a part of the last delta. */
static void show_final(const struct micro_batch *mb, struct arena *step)
{
    const struct pass *p = mb->pass;
    struct micro_batch all = *mb;
    size_t n = (size_t)mb->n_tok * (size_t)p->config->hidden;
    float *norm = arena_alloc(step, n, sizeof(float));
    all.residual = arena_alloc(step, n, sizeof(float));
    memcpy(all.residual, mb->residual, n * sizeof(float));
    all.delta = arena_alloc(step, n, sizeof(float));
    memcpy(all.delta, mb->delta, n * sizeof(float));
    layer_add_norm_start(&all, p->weights->final_norm, norm);
    layer_add_norm_done(&all);
    if (all.lost || !p->probe || !p->probe->hidden)
        return;
    p->probe->hidden(p->probe->arg, p->config->n_layer - 1, all.residual, mb->n_tok, p->config->hidden);
    p->probe->hidden(p->probe->arg, p->config->n_layer, norm, mb->n_tok, p->config->hidden);
}

/* Only the rows whose logits are wanted go through the last norm and the head: n_out of them, from the first
 * on. The layers' rows are left as they are. */
static void run_head(struct micro_batch *mb, struct arena *step, int first, int n_out, float *logits)
{
    const struct pass *p = mb->pass;
    const struct micro_batch layers = *mb;
    size_t n = (size_t)p->config->hidden;
    mb->residual = gather(p, first, n_out, layers.residual, n, step);
    mb->delta = gather(p, first, n_out, layers.delta, n, step);
    mb->n_tok = n_out;
    float *norm = layer_rows(mb, p->config->hidden);
    uint64_t begin = stage_begin(p);
    layer_add_norm_start(mb, p->weights->final_norm, norm);
    layer_add_norm_done(mb);
    stage_end(p, p->config->n_layer, "final norm", begin);
    begin = stage_begin(p);
    head_logits(mb, norm, logits);
    stage_end(p, p->config->n_layer, "head", begin);
    arena_reset(&mb->scratch);
    arena_reset(&mb->room);
    mb->residual = layers.residual;
    mb->delta = layers.delta;
    mb->has_delta = layers.has_delta;
    mb->n_tok = layers.n_tok;
}

/* Rows of all ranks' halves, each cut as this one's. */
static void count_half(struct pass *p, int half)
{
    p->most_rows = p->sum_rows = 0;
    for (int r = 0; r < comm_size(p->comm); r++) {
        int first = p->part->n_row[r] / 2, n = half ? p->part->n_row[r] - first : first;
        p->most_rows = n > p->most_rows ? n : p->most_rows;
        p->sum_rows += n;
    }
}

/* Two halves of mb's rows, each with its own pass over its own part of the batch. */
static void run_halves(struct forward *f, struct micro_batch *mb, int cut)
{
    struct batch half[2];
    struct pass pass[2] = {*mb->pass, *mb->pass};
    struct micro_batch *m[2] = {&f->half[0], &f->half[1]};
    size_t hidden = (size_t)mb->pass->config->hidden;
    overlap_cut(mb->pass->batch, cut, half, &f->step);
    for (int i = 0; i < 2; i++) {
        size_t row = i ? (size_t)cut : 0;
        pass[i].batch = &half[i];
        if (pass[i].ep)
            count_half(&pass[i], i);
        m[i]->pass = &pass[i];
        m[i]->channel = i;
        m[i]->layer = m[i]->stage = 0;
        m[i]->started = m[i]->has_delta = m[i]->lost = false;
        m[i]->n_tok = half[i].n_tok;
        m[i]->residual = mb->residual + row * hidden;
        m[i]->delta = mb->delta + row * hidden;
    }
    overlap_run(m[0], m[1]);
    mb->lost = m[0]->lost;
    mb->has_delta = m[0]->has_delta || m[1]->has_delta; /* a half may be empty */
    for (int i = 0; i < 2; i++) {
        arena_reset(&m[i]->room);
        arena_reset(&m[i]->scratch);
        m[i]->pass = NULL;
    }
}

static void run_rows(struct forward *f, struct micro_batch *mb, int cut)
{
    embed(mb, &f->step);
    if (cut >= 0)
        run_halves(f, mb, cut);
    else
        run_layers(mb);
    if (mb->pass->watched && !mb->lost && mb->n_tok > 0)
        show_final(mb, &f->step);
}

/* Logits in rounds of bounded size, each of which all ranks bring to rank 0 together. */
static void end_part(struct forward *f, struct micro_batch *mb, const struct ep_gather *g)
{
    const struct ep_part *part = g->part;
    int rank = comm_rank(g->comm), step = ep_gather_rows(g->vocab), most = 0;
    int own_rows = part->n_out[rank] < step ? part->n_out[rank] : step;
    size_t report = ep_report_bytes(g->ep, part->n_row[rank]);
    uint8_t *own = arena_alloc(&f->step, report + (size_t)own_rows * (size_t)g->vocab * sizeof(float) + 1, 1);
    for (int r = 0; r < comm_size(g->comm); r++)
        most = part->n_out[r] > most ? part->n_out[r] : most;
    for (int first = 0; (first == 0 || first < most) && !mb->lost; first += step) {
        int left = part->n_out[rank] - first, n = left < step ? left : step;
        if (n > 0)
            run_head(mb, &f->step, first, n, (float *)(void *)(own + (first ? 0 : report)));
        if (!mb->lost)
            mb->lost = !ep_gather(g, first, own, &f->step);
    }
}

/* This rank's sequences alone; all ranks' logits to rank 0. */
static void run_part(struct forward *f, const struct pass *whole, bool cut, float *logits)
{
    struct micro_batch *mb = &f->micro;
    struct ep_part part;
    struct pass pass = *whole;
    ep_take_part(whole->batch, comm_rank(whole->comm), comm_size(whole->comm), &f->step, &part);
    pass.batch = &part.batch;
    pass.part = &part;
    pass.sum_rows = whole->batch->n_tok;
    for (int r = 0; r < comm_size(whole->comm); r++)
        pass.most_rows = part.n_row[r] > pass.most_rows ? part.n_row[r] : pass.most_rows;
    mb->pass = &pass;
    mb->n_tok = part.batch.n_tok;
    run_rows(f, mb, cut ? part.batch.n_tok / 2 : -1);
    const struct ep_gather gather = {.ep = whole->ep,
                                     .part = &part,
                                     .comm = whole->comm,
                                     .vocab = whole->config->vocab,
                                     .logits = logits,
                                     .expert_load = whole->expert_load};
    end_part(f, mb, &gather);
}

void forward_run(struct forward *f, const struct pass *pass, int cut, float *logits)
{
    struct micro_batch *mb = &f->micro;
    if (pass->batch->n_tok == 0)
        return;
    mb->pass = pass;
    mb->lost = false;
    mb->channel = 0;
    if (pass->ep) {
        run_part(f, pass, cut > 0, logits);
    } else {
        mb->n_tok = pass->batch->n_tok;
        run_rows(f, mb, cut > 0 ? cut : -1);
        if (pass->batch->n_out > 0 && !mb->lost)
            run_head(mb, &f->step, 0, pass->batch->n_out, logits);
    }
    mb->pass = NULL;
    arena_reset(&f->step);
}
