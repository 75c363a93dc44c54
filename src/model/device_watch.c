/* Watching a step of a device: operators timed one by one, and what they leave behind read back. */
#include "model/device_watch.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

static enum nyb_code show_hidden(const struct device_watch *w, int layer, const float *rows)
{
    const struct device *d = w->d;
    if (!w->probe->hidden || w->n_tok == 0)
        return NYB_OK;
    size_t n = (size_t)w->n_tok * (size_t)d->config->hidden;
    float *h = mem_alloc(n, sizeof(*h));
    bool ok = d->plugin->read(d->gpu, h, rows, n * sizeof(*h));
    if (ok)
        w->probe->hidden(w->probe->arg, layer, h, w->n_tok, d->config->hidden);
    free(h);
    return ok ? NYB_OK : device_failed(d, "reading hidden states", w->err);
}

static enum nyb_code show_routing(const struct device_watch *w, int layer, const struct cuda_router *router)
{
    const struct device *d = w->d;
    int top_k = d->config->moe.top_k, used = top_k + router->n_shared;
    size_t n = (size_t)w->n_tok * (size_t)used;
    if (!w->probe->routing || w->n_tok == 0)
        return NYB_OK;
    int32_t *expert = mem_alloc(n, sizeof(*expert));
    float *weight = mem_alloc(n, sizeof(*weight));
    bool ok = d->plugin->read(d->gpu, expert, d->room.expert, n * sizeof(*expert)) &&
              d->plugin->read(d->gpu, weight, d->room.expert_weight, n * sizeof(*weight));
    for (int t = 1; t < w->n_tok; t++) /* the chosen ones without gaps */
        for (int i = 0; i < top_k; i++) {
            expert[t * top_k + i] = expert[t * used + i];
            weight[t * top_k + i] = weight[t * used + i];
        }
    if (ok)
        w->probe->routing(w->probe->arg, layer, expert, weight, w->n_tok, top_k);
    free(expert);
    free(weight);
    return ok ? NYB_OK : device_failed(d, "reading the routing", w->err);
}

static enum nyb_code show_after(const struct device_watch *w, int i)
{
    const struct device *d = w->d;
    const struct cuda_op *op = &d->plan.op[i];
    int layer = d->plan.layer[i];
    if (op->kind == CUDA_OP_EMBED)
        return show_hidden(w, -1, d->room.residual);
    if (op->kind == CUDA_OP_ROUTER)
        return show_routing(w, layer, &op->as.router);
    const struct cuda_add_norm *norm = op->kind == CUDA_OP_ADD_NORM     ? &op->as.add_norm
                                       : op->kind == CUDA_OP_ALL_REDUCE ? &op->as.all_reduce.norm
                                                                        : NULL;
    bool complete = norm && norm->weight && layer > 0 && layer < d->config->n_layer &&
                    norm->weight == d->layer[layer].attention_norm;
    return complete ? show_hidden(w, layer - 1, d->room.residual) : NYB_OK;
}

enum nyb_code device_run_watched(const struct device_watch *w)
{
    struct device *d = w->d;
    for (int i = 0; i < d->plan.n; i++) {
        float seconds = 0;
        bool timed = w->probe->stage != NULL;
        if (timed ? !d->plugin->profile(d->gpu, &d->plan.op[i], 1, &seconds)
                  : !d->plugin->run(d->gpu, &d->plan.op[i], 1))
            return device_failed(d, device_op_name(&d->plan.op[i]), w->err);
        if (timed)
            w->probe->stage(w->probe->arg, d->plan.layer[i], device_op_name(&d->plan.op[i]),
                            (uint64_t)((double)seconds * 1e9));
        TRY(show_after(w, i));
    }
    return NYB_OK;
}

enum nyb_code device_show_final(const struct device_watch *w, const struct device_shape *s)
{
    struct device *d = w->d;
    if (!w->probe->hidden && !device_has_peers(d))
        return NYB_OK;
    device_plan_clear(d);
    device_plan_head(d, s, 0, s->n_row, true);
    struct cuda_op op = d->plan.op[0];
    struct cuda_add_norm *norm = op.kind == CUDA_OP_ADD_NORM ? &op.as.add_norm : &op.as.all_reduce.norm;
    op.n_row = s->n_row;
    op.count = NULL;
    norm->row = NULL;
    norm->y = d->room.x;
    norm->y_float = d->room.x_float;
    if (!d->plugin->run(d->gpu, &op, 1))
        return device_failed(d, "the last norm", w->err);
    TRY(show_hidden(w, d->config->n_layer - 1, d->room.residual));
    return show_hidden(w, d->config->n_layer, d->room.x_float);
}

static bool is_exchange(const struct cuda_op *op)
{
    if (op->kind == CUDA_OP_ALL_REDUCE)
        return op->as.all_reduce.way != CUDA_REDUCE_SENT; /* else what is added up is here */
    return op->kind == CUDA_OP_SEND || op->kind == CUDA_OP_GATHER || op->kind == CUDA_OP_DISPATCH ||
           op->kind == CUDA_OP_COMBINE;
}

enum nyb_code device_run_traced(const struct device_watch *w)
{
    struct device *d = w->d;
    const struct device_plan *p = &d->plan;
    struct cuda_span *span = mem_alloc((size_t)p->n, sizeof(*span));
    uint64_t zero = clock_ns();
    bool ok = d->plugin->trace(d->gpu, p->op, p->n, span);
    for (int i = 0; i < p->n && ok; i++)
        w->spans->span(w->spans->arg, p->half[i], p->layer[i], device_op_name(&p->op[i]),
                       is_exchange(&p->op[i]), zero + (uint64_t)((double)span[i].begin * 1e9),
                       zero + (uint64_t)((double)span[i].end * 1e9));
    free(span);
    return ok ? NYB_OK : device_failed(d, "timing a step", w->err);
}
