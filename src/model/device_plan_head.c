/* The end of a step as operators: the last norm, the head, the likeliest tokens. */
#include "fp4/fp4.h"
#include "kernels/cuda/cuda_layout.h"
#include "model/device_ep.h"

/* What the last layer of a step of so many rows has left to be added, on this rank. */
static void last_deltas(const struct device *d, int n_row, const float *delta[CUDA_DELTAS_MAX])
{
    const struct device_layer *last = &d->layer[d->config->n_layer - 1];
    bool summed = device_has_parts(d) && d->no_fusion;
    int inner = last->is_moe ? last->experts.inner : last->mlp.inner;
    delta[0] = summed || inner > 0 ? d->room.delta : NULL;
    bool apart = last->is_moe && last->mlp.inner > 0 && !device_joins_shared(last, n_row);
    delta[1] = !summed && apart ? d->room.shared : NULL;
}

/* A rank's part of the vocabulary. */
static struct shard_range columns_of(const struct device *d, int rank)
{
    return shard_units_of(rank, d->ep ? d->ep->size : d->config->shard.size, d->config->vocab);
}

struct shard_range device_columns(const struct device *d)
{
    return columns_of(d, d->ep ? d->ep->rank : d->config->shard.rank);
}

/* The rows of that part: a tied head is the whole embedding, and where sequences are shared out every rank
 * has the whole head. */
static struct cuda_weight own_head(const struct device *d)
{
    const struct model_config *c = d->config;
    struct cuda_weight w = d->head;
    if (!d->weights->head_is_embed && !d->ep)
        return w;
    size_t first = (size_t)device_columns(d).begin, K = (size_t)c->hidden;
    if (w.type == CUDA_NVFP4_PACKED) { /* a part begins with a tile */
        w.data += cuda_layout_bytes(first, K);
        return w;
    }
    const struct weight *of = d->weights->head_is_embed ? &d->weights->embed : &d->weights->head;
    w.data += first * weight_row_bytes(of->type, c->hidden);
    w.block = w.block ? w.block + first * K / FP4_GROUP : NULL;
    return w;
}

static void plan_gather(struct device *d, int n_out, const int32_t *count)
{
    const struct model_config *c = d->config;
    struct cuda_gather g = {.x = d->room.columns, .out = d->room.logits};
    for (int r = 0; r < (d->ep ? d->ep->size : c->shard.size); r++)
        g.first[r + 1] = g.first[r] + columns_of(d, r).count;
    device_plan_add(d, c->n_layer, CUDA_OP_GATHER, n_out, count)->as.gather = g;
}

void device_plan_head(struct device *d, const struct device_shape *s, int first, int n_out, bool exact)
{
    const struct model_config *c = d->config;
    struct device_room *r = &d->room;
    struct device_input in;
    device_input_layout(s, d->input, &in);
    const int32_t *count = exact && !d->ep ? NULL : in.count + COUNT_OUT;
    bool unrounded = device_is_exact(d) || (device_quantizes(d) && d->head.type == CUDA_NVFP4_TILED);
    struct cuda_add_norm norm = {.residual = r->residual,
                                 .row = in.out_row + first,
                                 .weight = d->final_norm,
                                 .y = r->x_out,
                                 .y_float = unrounded ? r->x_out_float : NULL,
                                 .n = c->hidden,
                                 .eps = c->norm_eps};
    last_deltas(d, s->n_row, norm.delta);
    if (d->ep)
        device_ep_plan_head_rows(d, s, &norm, first, n_out);
    else
        device_plan_norm(d, c->n_layer, n_out, count, &norm, false);
    int columns = device_columns(d).count;
    if (columns > 0)
        device_plan_add(d, c->n_layer, CUDA_OP_LINEAR, n_out, count)->as.linear =
            (struct cuda_linear){.part[0] = {.w = own_head(d),
                                             .out = device_has_peers(d) ? r->columns : r->logits,
                                             .n_out = columns},
                                 .n_part = 1,
                                 .K = c->hidden,
                                 .x = unrounded ? NULL
                                      : d->ep   ? r->x_out_all
                                                : r->x_out,
                                 .x_float = unrounded ? r->x_out_float : NULL};
    if (device_has_peers(d))
        plan_gather(d, n_out, count);
}

void device_plan_best(struct device *d, int n_out)
{
    device_plan_add(d, d->config->n_layer, CUDA_OP_ARGMAX, n_out, NULL)->as.argmax =
        (struct cuda_argmax){.x = d->room.logits, .id = d->best, .n = d->config->vocab};
}

void device_plan_draw(struct device *d, const struct device_shape *s, int first, int n_out, bool exact)
{
    struct device_input in;
    device_input_layout(s, d->input, &in);
    device_plan_add(d, d->config->n_layer, CUDA_OP_SAMPLE, n_out, exact ? NULL : in.count + COUNT_OUT)
        ->as.sample = (struct cuda_sample){
        .x = d->room.logits, .draw = in.draw + first, .id = d->best, .n = d->config->vocab};
}

const char *device_op_name(const struct cuda_op *op)
{
    static const char *const name[CUDA_OP_KINDS] = {
        [CUDA_OP_EMBED] = "embed",
        [CUDA_OP_ADD_NORM] = "add, norm",
        [CUDA_OP_LINEAR] = "linear",
        [CUDA_OP_QKV] = "rotate, store",
        [CUDA_OP_ATTENTION] = "attend",
        [CUDA_OP_ROUTER] = "route",
        [CUDA_OP_MOE] = "experts",
        [CUDA_OP_MOE_PLAIN] = "experts, plain",
        [CUDA_OP_SWIGLU] = "swiglu",
        [CUDA_OP_ARGMAX] = "argmax",
        [CUDA_OP_MOE_W4A4] = "experts, w4a4",
        [CUDA_OP_ALL_REDUCE] = "sum, norm",
        [CUDA_OP_GATHER] = "gather",
        [CUDA_OP_DISPATCH] = "dispatch",
        [CUDA_OP_COMBINE] = "combine",
        [CUDA_OP_SAMPLE] = "sample",
        [CUDA_OP_SEND] = "send",
    };
    bool sent = op->kind == CUDA_OP_ALL_REDUCE && op->as.all_reduce.way == CUDA_REDUCE_SENT;
    return name[sent ? CUDA_OP_ADD_NORM : op->kind]; /* nothing travels in that one */
}
