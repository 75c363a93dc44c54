#include "model/device_ep.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

void device_ep_open(struct device *d, const struct model_config *c)
{
    struct device_ep *e = mem_alloc(1, sizeof(*e));
    *e = (struct device_ep){.rank = c->shard.ep_rank, .size = c->shard.ep_size};
    for (int r = 0; r < e->size; r++) {
        struct shard_range own = placement_slots(r, e->size, c->moe.n_expert);
        e->first[r + 1] = own.begin + own.count;
    }
    arena_init(&e->arena, (size_t)1 << 20);
    d->ep = e;
}

void device_ep_close(struct device *d)
{
    if (!d->ep)
        return;
    arena_free(&d->ep->arena);
    free(d->ep);
    d->ep = NULL;
}

/* ---- a rank's part of a step --------------------------------------------------------------------- */

const struct batch *device_ep_take(struct device *d, const struct batch *whole)
{
    struct device_ep *e = d->ep;
    arena_reset(&e->arena);
    ep_take_part(whole, e->rank, e->size, &e->arena, &e->part);
    e->whole = whole;
    e->most_rows = e->most_out = 0;
    for (int r = 0; r < e->size; r++) {
        e->most_rows = e->part.n_row[r] > e->most_rows ? e->part.n_row[r] : e->most_rows;
        e->most_out = e->part.n_out[r] > e->most_out ? e->part.n_out[r] : e->most_out;
    }
    return &e->part.batch;
}

/* Rows of logits of one rank among those that are made at once. */
static int out_rows(const struct device *d)
{
    int n = d->ep->most_out < device_head_rows(d) ? d->ep->most_out : device_head_rows(d);
    return n > 0 ? n : 1;
}

struct device_shape device_ep_shape(const struct device *d, const struct device_shape *whole, int rows)
{
    const struct device_ep *e = d->ep;
    struct device_shape s = *whole;
    s.n_rank = e->size;
    s.n_all = whole->n_row;
    if (rows > 0) {
        s.n_row = s.n_single = s.most_rows = rows;
        s.most_out = s.n_out ? rows : 1;
        return s;
    }
    struct device_shape own = device_shape_of(&e->part.batch, 0);
    s.most_rows = e->most_rows;
    s.most_out = out_rows(d);
    s.n_row = own.n_row;
    s.n_single = own.n_single;
    s.n_tile = own.n_tile;
    s.n_image = own.n_image;
    s.n_split = own.n_split;
    if (s.n_row == 0) /* launches cover a row that is not real */
        s.n_row = s.n_single = 1;
    return s;
}

void device_ep_widen(const struct device *d, struct device_shape *s)
{
    s->n_rank = d->ep->size;
    s->n_all = s->most_rows = s->n_row;
    s->most_out = s->n_out ? s->n_out : 1;
}

/* place[r][i]: where row i of rank r is in the whole batch. */
static void write_places(const struct device_ep *e, const struct device_shape *s,
                         const struct device_input *in)
{
    const struct batch *b = e->whole;
    int n[COMM_RANK_MAX] = {0};
    for (int q = 0; q < b->n_seq; q++) {
        int home = ep_home(b, q, e->size);
        for (int i = b->seq_start[q]; i < b->seq_start[q + 1]; i++)
            in->place[home * s->most_rows + n[home]++] = i;
    }
    for (int r = 0; r < e->size; r++)
        in->rank_rows[r] = n[r];
    in->count[COUNT_ALL] = b->n_tok;
}

/* The first of a rank's rows of logits that is not before `first` of the whole batch's. */
static int out_begin(const struct device_ep *e, int rank, int first)
{
    int i = 0;
    while (i < e->part.n_out[rank] && e->part.out[rank][i] < first)
        i++;
    return i;
}

static void write_out(const struct device_ep *e, const struct device_shape *s, const struct device_input *in,
                      int first, int n)
{
    for (int r = 0; r < e->size; r++) {
        int begin = out_begin(e, r, first), end = out_begin(e, r, first + n);
        for (int i = begin; i < end; i++)
            in->out_place[r * s->most_out + i - begin] = e->part.out[r][i] - first;
        in->rank_out[r] = end - begin;
    }
    in->count[COUNT_OUT] = n;
    in->count[COUNT_OWN_OUT] = in->rank_out[e->rank];
}

void device_ep_write(const struct device *d, const struct device_shape *s, uint8_t *base, int first, int n)
{
    struct device_input in;
    device_input_layout(s, base, &in);
    write_places(d->ep, s, &in);
    write_out(d->ep, s, &in, first, n < device_head_rows(d) ? n : device_head_rows(d));
}

enum nyb_code device_ep_next_out(struct device *d, const struct device_shape *s, int first, int n,
                                 struct nyb_err *err)
{
    struct device_input in;
    size_t bytes = device_input_layout(s, d->staging, &in);
    if (!d->plugin->sync(d->gpu)) /* the last upload may still be read */
        return device_failed(d, "a step", err);
    write_out(d->ep, s, &in, first, n);
    return d->plugin->upload(d->gpu, d->input, d->staging, bytes) ? NYB_OK
                                                                  : device_failed(d, "copying a batch", err);
}

/* ---- operators ----------------------------------------------------------------------------------- */

void device_ep_plan_dispatch(struct device *d, const struct device_part *part, int layer)
{
    const struct device_ep *e = d->ep;
    const struct model_config *c = d->config;
    struct cuda_dispatch a = {.rows = part->rows,
                              .x = d->room.x,
                              .expert = d->room.expert,
                              .x_all = d->room.x_all,
                              .local = d->room.local,
                              .load = e->rank == 0 ? d->load + (size_t)layer * (size_t)c->moe.n_expert : NULL,
                              .n = c->hidden,
                              .n_used = c->moe.top_k};
    memcpy(a.first, e->first, sizeof(a.first));
    device_plan_add(d, layer, CUDA_OP_DISPATCH, part->rows.most, NULL)->as.dispatch = a;
}

void device_ep_plan_combine(struct device *d, const struct device_part *part, int layer)
{
    const struct model_config *c = d->config;
    struct cuda_op *op = &d->plan.op[d->plan.n - 1];
    bool packed = op->kind == CUDA_OP_MOE;
    op->n_row = part->rows.n_all;
    op->count = part->all_count;
    if (packed) {
        op->as.moe.x = d->room.x_all;
        op->as.moe.id = d->room.local;
        op->as.moe.each = d->room.each;
    } else {
        op->as.moe_plain.x = d->room.x_all;
        op->as.moe_plain.id = d->room.local;
        op->as.moe_plain.each = d->room.each;
    }
    struct cuda_combine a = {.rows = part->rows,
                             .each = d->room.each,
                             .is_bf16 = packed && cuda_moe_is_for_many(part->rows.n_all, c->moe.top_k),
                             .local = d->room.local,
                             .expert = d->room.expert,
                             .weight = d->room.expert_weight,
                             .out = d->room.delta,
                             .n = c->hidden,
                             .n_used = c->moe.top_k};
    memcpy(a.first, d->ep->first, sizeof(a.first));
    device_plan_add(d, layer, CUDA_OP_COMBINE, part->rows.most, NULL)->as.combine = a;
}

void device_ep_plan_head_rows(struct device *d, const struct device_shape *s, struct cuda_add_norm *norm,
                              int first, int n_out)
{
    const struct model_config *c = d->config;
    struct device_input in;
    device_input_layout(s, d->input, &in);
    norm->row = in.out_row + (first > 0 ? out_begin(d->ep, d->ep->rank, first) : 0);
    device_plan_add(d, c->n_layer, CUDA_OP_ADD_NORM, s->most_out, in.count + COUNT_OWN_OUT)->as.add_norm =
        *norm;
    device_plan_add(d, c->n_layer, CUDA_OP_DISPATCH, s->most_out, NULL)->as.dispatch =
        (struct cuda_dispatch){.rows = {in.rank_out, in.out_place, s->most_out, n_out},
                               .x = d->room.x_out,
                               .x_all = d->room.x_out_all,
                               .n = c->hidden};
}
