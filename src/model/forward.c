#include "model/forward.h"

#include <string.h>

#include "base/clock.h"

void forward_init(struct forward *f)
{
    arena_init(&f->step, 1u << 20);
    arena_init(&f->micro.room, 1u << 20);
    arena_init(&f->micro.scratch, 1u << 20);
}

void forward_free(struct forward *f)
{
    arena_free(&f->step);
    arena_free(&f->micro.room);
    arena_free(&f->micro.scratch);
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
    pool_range(p->pool, mb->n_tok, 4, embed_rows, &e);
    stage_end(p, -1, "embed", begin);
    if (p->probe && p->probe->hidden)
        p->probe->hidden(p->probe->arg, -1, mb->residual, mb->n_tok, p->config->hidden);
}

static void run_layers(struct micro_batch *mb)
{
    const struct model_config *c = mb->pass->config;
    for (mb->layer = 0; mb->layer < c->n_layer; mb->layer++) {
        const struct stage *stages = layer_stages(c, mb->layer);
        for (mb->stage = 0; stages[mb->stage].start; mb->stage++) {
            uint64_t begin = stage_begin(mb->pass);
            stages[mb->stage].start(mb);
            if (stages[mb->stage].done)
                stages[mb->stage].done(mb);
            stage_end(mb->pass, mb->layer, stages[mb->stage].name, begin);
            arena_reset(&mb->scratch);
        }
        arena_reset(&mb->room);
    }
}

static float *gather(const struct batch *b, const float *rows, size_t n, struct arena *step)
{
    float *out = arena_alloc(step, (size_t)b->n_out * n, sizeof(float));
    for (size_t i = 0; i < (size_t)b->n_out; i++)
        memcpy(out + i * n, rows + (size_t)b->out_row[i] * n, n * sizeof(float));
    return out;
}

/* A probe sees all rows: on copies, so that what follows is the same with and without it. */
static void show_final(const struct micro_batch *mb, struct arena *step)
{
    const struct pass *p = mb->pass;
    struct micro_batch all = *mb;
    size_t n = (size_t)mb->n_tok * (size_t)p->config->hidden;
    float *norm = arena_alloc(step, n, sizeof(float));
    all.residual = arena_alloc(step, n, sizeof(float));
    memcpy(all.residual, mb->residual, n * sizeof(float));
    layer_add_norm(&all, p->weights->final_norm, norm);
    p->probe->hidden(p->probe->arg, p->config->n_layer - 1, all.residual, mb->n_tok, p->config->hidden);
    p->probe->hidden(p->probe->arg, p->config->n_layer, norm, mb->n_tok, p->config->hidden);
}

/* Only the rows whose logits are wanted go through the last norm and the head. */
static void run_head(struct micro_batch *mb, struct arena *step, float *logits)
{
    const struct pass *p = mb->pass;
    const struct weight *head = &p->weights->head;
    size_t n = (size_t)p->config->hidden;
    struct operand x;
    mb->residual = gather(p->batch, mb->residual, n, step);
    mb->delta = gather(p->batch, mb->delta, n, step);
    mb->n_tok = p->batch->n_out;
    float *norm = layer_rows(mb, p->config->hidden);
    uint64_t begin = stage_begin(p);
    layer_add_norm(mb, p->weights->final_norm, norm);
    stage_end(p, p->config->n_layer, "final norm", begin);
    begin = stage_begin(p);
    gemm_prepare(p->pool, &mb->scratch, p->compute, norm, mb->n_tok, head->k, &x);
    const struct gemm_job job = {.w = head, .x = &x, .m = mb->n_tok, .y = logits, .ldy = head->n};
    gemm_run(p->pool, &mb->scratch, p->compute, &job, 1);
    stage_end(p, p->config->n_layer, "head", begin);
    arena_reset(&mb->scratch);
    arena_reset(&mb->room);
}

void forward_run(struct forward *f, const struct pass *pass, float *logits)
{
    struct micro_batch *mb = &f->micro;
    if (pass->batch->n_tok == 0)
        return;
    mb->pass = pass;
    mb->n_tok = pass->batch->n_tok;
    embed(mb, &f->step);
    run_layers(mb);
    if (pass->probe && pass->probe->hidden)
        show_final(mb, &f->step);
    if (pass->batch->n_out > 0)
        run_head(mb, &f->step, logits);
    mb->pass = NULL;
    arena_reset(&f->step);
}
