#include "model/ep.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "fp4/fp4.h"

#define CHUNK_BYTES (64u << 20) /* of one rank's products in one layer */

/* ---- who has what -------------------------------------------------------------------------------- */

int ep_slots(const struct shard *s, int n_expert)
{
    return n_expert + s->ep_redundant;
}

struct shard_range ep_own_slots(const struct shard *s, int n_expert)
{
    return placement_slots(s->ep_rank, s->ep_size, ep_slots(s, n_expert));
}

static enum nyb_code check_shape(const struct model_config *c, struct nyb_err *err)
{
    int n_expert = c->moe.n_expert, redundant = c->shard.ep_redundant, size = c->shard.ep_size;
    if (c->hidden % FP4_GROUP || n_expert > INT16_MAX)
        return err_set(
            err, NYB_E_UNSUPPORTED,
            "expert parallelism takes a hidden size that is a multiple of %d and at most %d experts, "
            "found %d and %d",
            FP4_GROUP, INT16_MAX, c->hidden, n_expert);
    int most = (int)((int64_t)n_expert * size < INT16_MAX ? n_expert * size : INT16_MAX) - n_expert;
    if (redundant < 0 || redundant > most)
        return err_at(err, NYB_E_RANGE, "num_redundant_experts", -1,
                      "is %d, expected 0 to %d: at most a copy of each of the %d experts on each of %d ranks",
                      redundant, most, n_expert, size);
    return NYB_OK;
}

static void open_placements(struct ep *ep, const struct model_config *c)
{
    size_t n_layer = (size_t)c->n_layer, n_slot = (size_t)ep->n_slot;
    ep->place = mem_alloc(n_slot, sizeof(*ep->place));
    for (int r = 0; r < c->shard.ep_size; r++) {
        struct shard_range own = placement_slots(r, c->shard.ep_size, ep->n_slot);
        for (int i = 0; i < own.count; i++)
            ep->place[own.begin + i] = (struct dispatch_place){(int16_t)r, (int16_t)i};
    }
    ep->placement = mem_alloc(n_layer, sizeof(*ep->placement));
    ep->holds = mem_alloc(n_layer * n_slot, sizeof(*ep->holds));
    for (size_t l = 0; l < n_layer; l++) {
        if (!c->layer_is_moe[l])
            continue;
        ep->n_sparse++;
        placement_init(&ep->placement[l], ep->n_expert, ep->n_slot, c->shard.ep_size);
        for (size_t s = 0; s < n_slot; s++)
            atomic_store(&ep->holds[l * n_slot + s], ep->placement[l].expert[s]);
    }
}

static void open_load(struct ep_load *l, size_t n_layer, size_t n_expert, size_t n_rank)
{
    l->computed = mem_alloc(n_layer, sizeof(*l->computed));
    l->told = mem_alloc(n_layer * n_expert, sizeof(*l->told));
    l->pairs = mem_alloc(n_layer * n_rank, sizeof(*l->pairs));
    l->before = mem_alloc(n_layer * n_rank, sizeof(*l->before));
}

enum nyb_code ep_open(struct ep *ep, const struct model_config *c, struct comm *comm, enum dispatch_type type,
                      int chunk_rows, struct nyb_err *err)
{
    const struct moe_config *m = &c->moe;
    size_t row = (size_t)m->top_k * (size_t)c->hidden * sizeof(float);
    TRY(comm_open_self(&ep->self, err));
    if (m->n_expert == 0)
        return NYB_OK;
    TRY(check_shape(c, err));
    if (!dispatch_init(&ep->dispatch, comm, ep_codec(type), c->hidden, m->top_k))
        return err_set(err, NYB_E_UNSUPPORTED,
                       "expert parallelism: the products of one row (%d experts of %d floats) for each of %d "
                       "ranks do not fit a message of %zu bytes",
                       m->top_k, c->hidden, comm_size(comm), comm_slot_bytes(comm));
    ep->n_layer = c->n_layer;
    ep->n_expert = m->n_expert;
    ep->n_slot = ep_slots(&c->shard, m->n_expert);
    ep->chunk_rows = chunk_rows > 0 ? chunk_rows : row < CHUNK_BYTES ? (int)(CHUNK_BYTES / row) : 1;
    open_placements(ep, c);
    open_load(&ep->load, (size_t)c->n_layer, (size_t)m->n_expert, (size_t)c->shard.ep_size);
    return NYB_OK;
}

void ep_say(const struct ep *ep, const struct model_config *c)
{
    if (ep->n_expert > 0)
        log_info(
            "expert parallel: %d experts and %d copies over %d ranks, rows as %s, %d rows of each rank a "
            "message, %d at once; buffers of at most %.1f MB a rank",
            ep->n_expert, c->shard.ep_redundant, c->shard.ep_size, ep->dispatch.codec->name,
            ep->dispatch.round_rows, ep->chunk_rows,
            (double)dispatch_worst_bytes(&ep->dispatch, ep->chunk_rows) * 1e-6);
}

void ep_close(struct ep *ep)
{
    comm_close(ep->self);
    for (int l = 0; ep->placement && l < ep->n_layer; l++)
        placement_free(&ep->placement[l]);
    free(ep->placement);
    free(ep->place);
    free(ep->holds);
    free(ep->load.computed);
    free(ep->load.told);
    free(ep->load.pairs);
    free(ep->load.before);
    *ep = (struct ep){0};
}

void ep_claim_experts(struct name_set *unused, const struct weights *w, int n_expert, struct ckpt *c)
{
    struct name_set experts = {0};
    for (int l = 0; l < w->n_layer; l++) {
        const struct layer_weights *layer = &w->layer[l];
        if (!layer->expert_name)
            continue;
        size_t n = (size_t)n_expert * (size_t)layer->expert_parts;
        name_set_add(&experts, layer->expert_name, n);
        name_set_add(unused, layer->expert_name, n);
    }
    for (int i = 0; i < c->n_tensor; i++)
        if (name_set_has_owner(&experts, c->tensor[i].name))
            (void)ckpt_take(c, c->tensor[i].name);
    name_set_free(&experts);
}

/* ---- a rank's part of a step --------------------------------------------------------------------- */

int ep_home(const struct batch *b, int seq, int n_rank)
{
    if (b->home)
        return b->home[seq];
    int32_t first = b->block_table[(size_t)seq * (size_t)b->n_block_max];
    return first < 0 ? 0 : first % n_rank;
}

/* Sequence seq of the whole batch becomes the next of the part's. */
static void take_sequence(const struct batch *whole, int seq, int32_t *tok, int32_t *pos, int32_t *slot,
                          int32_t *start, int32_t *table, struct batch *b)
{
    size_t begin = (size_t)whole->seq_start[seq], at = (size_t)b->n_tok, columns = (size_t)whole->n_block_max;
    size_t n = (size_t)whole->seq_start[seq + 1] - begin;
    memcpy(tok + at, whole->tok + begin, n * sizeof(*tok));
    memcpy(pos + at, whole->pos + begin, n * sizeof(*pos));
    memcpy(slot + at, whole->slot + begin, n * sizeof(*slot));
    memcpy(table + (size_t)b->n_seq * columns, whole->block_table + (size_t)seq * columns,
           columns * sizeof(*table));
    b->n_tok += (int)n;
    start[++b->n_seq] = b->n_tok;
}

void ep_take_part(const struct batch *whole, int rank, int n_rank, struct arena *step, struct ep_part *part)
{
    size_t n_tok = (size_t)whole->n_tok + 1, n_seq = (size_t)whole->n_seq + 1;
    int32_t *tok = arena_alloc(step, n_tok, sizeof(*tok)), *pos = arena_alloc(step, n_tok, sizeof(*pos));
    int32_t *slot = arena_alloc(step, n_tok, sizeof(*slot)),
            *start = arena_calloc(step, n_seq, sizeof(*start));
    int32_t *table = arena_alloc(step, n_seq * (size_t)whole->n_block_max + 1, sizeof(*table));
    int32_t *row_rank = arena_alloc(step, n_tok, sizeof(*row_rank)); /* (n_tok) whose, and its place there */
    int32_t *row_at = arena_alloc(step, n_tok, sizeof(*row_at));
    int32_t *out_row = arena_alloc(step, (size_t)whole->n_out + 1, sizeof(*out_row));
    *part = (struct ep_part){.batch = {.n_block_max = whole->n_block_max}};
    for (int s = 0; s < whole->n_seq; s++) {
        int home = ep_home(whole, s, n_rank);
        for (int i = whole->seq_start[s]; i < whole->seq_start[s + 1]; i++) {
            row_rank[i] = home;
            row_at[i] = part->n_row[home]++;
        }
        if (home == rank)
            take_sequence(whole, s, tok, pos, slot, start, table, &part->batch);
    }
    for (int r = 0; r < n_rank; r++)
        part->out[r] = arena_alloc(step, (size_t)whole->n_out + 1, sizeof(**part->out));
    for (int i = 0; i < whole->n_out; i++) {
        int home = row_rank[whole->out_row[i]];
        if (home == rank)
            out_row[part->batch.n_out++] = row_at[whole->out_row[i]];
        part->out[home][part->n_out[home]++] = i;
    }
    part->batch.tok = tok;
    part->batch.pos = pos;
    part->batch.slot = slot;
    part->batch.seq_start = start;
    part->batch.block_table = table;
    part->batch.out_row = out_row;
}

bool ep_vote_to_cut(const struct batch *whole, int n_rank)
{
    int n_row[COMM_RANK_MAX] = {0};
    for (int s = 0; s < whole->n_seq; s++)
        n_row[ep_home(whole, s, n_rank)] += whole->seq_start[s + 1] - whole->seq_start[s];
    for (int r = 0; r < n_rank; r++)
        if (n_row[r] == 1)
            return false;
    return true;
}
