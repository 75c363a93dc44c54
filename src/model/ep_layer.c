/* The sparse half of a layer whose experts are on several ranks.
 *
 * Rows go through in chunks of ep.chunk_rows of each rank, so that what travels has a bound however long the
 * step is. All ranks do as many chunks as the one with most rows needs. The stages below are those of the
 * first chunk, which the other half of a step can hide; the last of them does the other chunks one after the
 * other. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/ep.h"

static const struct layer_weights *weights_of(const struct micro_batch *mb)
{
    return &mb->pass->weights->layer[mb->layer];
}

/* ---- where rows go ------------------------------------------------------------------------------- */

/* Copies of an expert take turns, whichever rank's rows they are: all get the same share. */
static struct dispatch_place *choose_places(struct micro_batch *mb)
{
    const struct ep *ep = mb->pass->ep;
    const struct placement *p = &ep->placement[mb->layer];
    size_t n = (size_t)mb->n_tok * (size_t)mb->pass->config->moe.top_k;
    struct dispatch_place *place = arena_alloc(&mb->room, n + 1, sizeof(*place));
    int32_t *turn = arena_alloc(&mb->scratch, (size_t)ep->n_expert, sizeof(*turn));
    for (int e = 0; e < ep->n_expert; e++)
        turn[e] = comm_rank(ep->dispatch.comm);
    for (size_t i = 0; i < n; i++) {
        int e = mb->expert[i], copies = placement_copies(p, e);
        int which = copies == 1 ? 0 : turn[e]++ % copies;
        place[i] = ep->place[p->copy[p->first[e] + which]];
    }
    return place;
}

/* ---- chunks -------------------------------------------------------------------------------------- */

static int n_chunk(const struct micro_batch *mb)
{
    int rows = mb->pass->ep->chunk_rows;
    return (mb->pass->most_rows + rows - 1) / rows;
}

/* This rank's first row of a chunk; its n_tok where it has no more. */
static int chunk_begin(const struct micro_batch *mb, int chunk)
{
    int64_t begin = (int64_t)chunk * mb->pass->ep->chunk_rows;
    return begin < mb->n_tok ? (int)begin : mb->n_tok;
}

static void send_chunk(struct micro_batch *mb, int chunk)
{
    const struct pass *p = mb->pass;
    int rows = p->ep->chunk_rows, begin = chunk_begin(mb, chunk);
    int64_t left = (int64_t)p->most_rows - (int64_t)chunk * rows, all = (int64_t)rows * comm_size(p->comm);
    arena_reset(&mb->flight_room);
    mb->flight = (struct dispatch_flight){
        .d = &p->ep->dispatch,
        .pool = p->pool,
        .room = &mb->flight_room,
        .channel = mb->channel,
        .n_row = chunk_begin(mb, chunk + 1) - begin,
        .most_rows = left < rows ? (int)left : rows,
        .sum_rows = all < p->sum_rows ? (int)all : p->sum_rows,
        .x = mb->n_tok ? mb->norm + (size_t)begin * (size_t)p->config->hidden : NULL,
        .place = mb->place + (size_t)begin * (size_t)p->config->moe.top_k,
    };
    dispatch_send(&mb->flight);
}

/* Rows of the chunk: products times weights, in the order of choice, and the shared experts'. */
static void add_products(struct micro_batch *mb, int chunk)
{
    const struct pass *p = mb->pass;
    size_t begin = (size_t)chunk_begin(mb, chunk), top_k = (size_t)p->config->moe.top_k;
    size_t hidden = (size_t)p->config->hidden, n = (size_t)mb->flight.n_row * top_k;
    if (n == 0)
        return;
    int32_t *row = arena_alloc(&mb->scratch, n, sizeof(*row));
    for (size_t i = 0; i < n; i++)
        row[i] = (int32_t)i;
    const struct combine_args combine = {
        .part = mb->flight.product,
        .slot_row = row,
        .weight = mb->weight + begin * top_k,
        .shared = mb->shared ? mb->shared + begin * hidden : NULL,
        .y = mb->delta + begin * hidden,
        .m = mb->flight.n_row,
        .n = p->config->hidden,
        .top_k = p->config->moe.top_k,
    };
    p->kernels->combine(p->pool, &combine);
}

/* ---- stages -------------------------------------------------------------------------------------- */

void ep_send(struct micro_batch *mb)
{
    mb->place = choose_places(mb);
    send_chunk(mb, 0);
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
    mb->part = arena_alloc(&mb->flight_room, (size_t)f->n_pair + 1, hidden * sizeof(float));
    mb->part_row = arena_alloc(&mb->flight_room, (size_t)f->n_pair + 1, sizeof(*mb->part_row));
    for (int i = 0; i < f->n_pair; i++)
        mb->part_row[i] = s.row_of[i];
    p->ep->load.computed[mb->layer] += (uint32_t)f->n_pair;
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

static void collect_chunk(struct micro_batch *mb, int chunk)
{
    mb->lost |= !dispatch_collect(&mb->flight);
    if (!mb->lost)
        add_products(mb, chunk);
    arena_reset(&mb->scratch);
}

void ep_combine(struct micro_batch *mb)
{
    collect_chunk(mb, 0);
    for (int chunk = 1; chunk < n_chunk(mb) && !mb->lost; chunk++) {
        send_chunk(mb, chunk);
        ep_receive(mb);
        if (mb->lost)
            break;
        ep_experts_run(mb);
        arena_reset(&mb->scratch);
        ep_reply(mb);
        collect_chunk(mb, chunk);
    }
    arena_reset(&mb->flight_room);
    mb->has_delta = mb->n_tok > 0;
}
