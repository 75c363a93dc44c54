/* The sparse half of a layer whose experts are on several ranks. */
#include <stdlib.h>

#include "model/ep.h"

static const struct layer_weights *weights_of(const struct micro_batch *mb)
{
    return &mb->pass->weights->layer[mb->layer];
}

void ep_send(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    size_t n = (size_t)mb->n_tok * (size_t)p->config->moe.top_k;
    struct dispatch_place *place = arena_alloc(&mb->room, n + 1, sizeof(*place));
    for (size_t i = 0; i < n; i++)
        place[i] = p->ep->place[mb->expert[i]];
    mb->flight = (struct dispatch_flight){.d = &p->ep->dispatch,
                                          .pool = p->pool,
                                          .room = &mb->room,
                                          .channel = mb->channel,
                                          .n_row = mb->n_tok,
                                          .most_rows = p->most_rows,
                                          .sum_rows = p->sum_rows,
                                          .x = mb->norm,
                                          .place = place};
    dispatch_send(&mb->flight);
}

/* While rows travel: the experts that every token goes through are here. */
void ep_shared(struct micro_batch *mb)
{
    const struct mlp *mlp = &weights_of(mb)->mlp;
    mb->shared = NULL;
    if (!mb->pass->config->moe.shared_intermediate || mb->n_tok == 0)
        return;
    mb->shared = layer_rows(mb, mb->pass->config->hidden);
    const struct mlp_call call = {.mlp = mlp, .m = mb->n_tok, .y = mb->shared};
    const struct mlp_group group = {
        .x = &mb->input, .call = &call, .n_call = 1, .intermediate = mlp->gate.w.n, .m = mb->n_tok};
    mlp_run(mb, &group, 1);
}

void ep_receive(struct micro_batch *mb)
{
    mb->lost |= !dispatch_receive(&mb->flight);
}

/* All rows that came through the experts that they want; parts are sorted by expert. */
void ep_experts_run(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    struct dispatch_flight *f = &mb->flight;
    size_t hidden = (size_t)p->config->hidden, n_expert = (size_t)p->config->moe.n_expert;
    struct operand x;
    struct moe_sorted s = moe_sort(&mb->scratch, (int)n_expert, (size_t)f->n_pair, f->pair_slot, f->pair_row);
    struct mlp_call *call = arena_alloc(&mb->scratch, n_expert, sizeof(*call));
    mb->part = arena_alloc(&mb->room, (size_t)f->n_pair + 1, hidden * sizeof(float));
    mb->part_row = arena_alloc(&mb->room, (size_t)f->n_pair + 1, sizeof(*mb->part_row));
    for (int i = 0; i < f->n_pair; i++)
        mb->part_row[i] = s.row_of[i];
    if (f->n_pair == 0)
        return;
    gemm_prepare(p->pool, &mb->scratch, p->compute, f->row, f->n_received, p->config->hidden, &x);
    const struct mlp_group group = {
        .x = &x,
        .call = call,
        .n_call = moe_calls(mb, &s, mb->part, call),
        .intermediate = p->config->moe.intermediate,
        .m = f->n_pair,
    };
    mlp_run(mb, &group, 1);
}

void ep_reply(struct micro_batch *mb)
{
    dispatch_reply(&mb->flight, mb->part, mb->part_row);
}

void ep_combine(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct moe_config *m = &p->config->moe;
    size_t n = (size_t)mb->n_tok * (size_t)m->top_k;
    mb->lost |= !dispatch_collect(&mb->flight);
    if (mb->lost || mb->n_tok == 0)
        return;
    int32_t *row = arena_alloc(&mb->scratch, n, sizeof(*row));
    for (size_t i = 0; i < n; i++)
        row[i] = (int32_t)i;
    const struct combine_args combine = {
        .part = mb->flight.product,
        .slot_row = row,
        .weight = mb->weight,
        .shared = mb->shared,
        .y = mb->delta,
        .m = mb->n_tok,
        .n = p->config->hidden,
        .top_k = m->top_k,
    };
    p->kernels->combine(p->pool, &combine);
    mb->has_delta = true;
}
