/* What experts have to do, where they are, and having them move. */
#include <stdlib.h>

#include "base/mem.h"
#include "server/admin_reply.h"
#include "server/route.h"

/* ---- the load ------------------------------------------------------------------------------------ */

struct load {
    const struct nyb_engine *engine;
    struct nyb_experts experts;
    int n_expert;
    uint64_t *count, *all, *recent;
    int *slot;
};

static void load_open(struct load *l, const struct server *s)
{
    *l = (struct load){.engine = s->engine, .n_expert = s->info->n_expert};
    nyb_engine_experts(s->engine, &l->experts);
    l->count = mem_alloc((size_t)l->n_expert + 1, sizeof(*l->count));
    l->all = mem_alloc((size_t)l->experts.ranks, sizeof(*l->all));
    l->recent = mem_alloc((size_t)l->experts.ranks, sizeof(*l->recent));
    l->slot = mem_alloc((size_t)l->experts.slots + 1, sizeof(*l->slot));
}

static void load_close(struct load *l)
{
    free(l->count);
    free(l->all);
    free(l->recent);
    free(l->slot);
}

static json_t *counts(const uint64_t *count, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer((json_int_t)count[i]));
    return list;
}

/* The experts of each rank. */
static json_t *placement(const struct load *l)
{
    json_t *ranks = json_array();
    int n = l->experts.slots, size = l->experts.ranks;
    for (int r = 0; r < size; r++) {
        json_t *own = json_array();
        for (int s = (int)((int64_t)n * r / size); s < (int)((int64_t)n * (r + 1) / size); s++)
            json_array_append_new(own, json_integer(l->slot[s]));
        json_array_append_new(ranks, own);
    }
    return ranks;
}

static json_t *layer_load(struct load *l, int layer)
{
    json_t *all = json_object();
    json_object_set_new(all, "layer", json_integer(layer));
    json_object_set_new(all, "experts", counts(l->count, l->n_expert));
    if (!nyb_rank_load(l->engine, layer, l->all, l->recent) || !nyb_expert_slots(l->engine, layer, l->slot))
        return all;
    json_object_set_new(all, "placement", placement(l));
    json_object_set_new(all, "ranks", counts(l->all, l->experts.ranks));
    json_object_set_new(all, "recent", counts(l->recent, l->experts.ranks));
    json_object_set_new(all, "imbalance", json_real(metrics_imbalance(l->all, l->experts.ranks)));
    json_object_set_new(all, "recent_imbalance", json_real(metrics_imbalance(l->recent, l->experts.ranks)));
    return all;
}

void api_expert_load(struct exchange *x)
{
    struct load l;
    json_t *all = json_object(), *layers = json_array();
    load_open(&l, x->s);
    for (int layer = 0; layer < x->s->info->n_layer; layer++)
        if (nyb_expert_load(l.engine, layer, l.count))
            json_array_append_new(layers, layer_load(&l, layer));
    json_object_set_new(all, "num_ranks", json_integer(l.experts.ranks));
    json_object_set_new(all, "num_experts", json_integer(l.n_expert));
    json_object_set_new(all, "num_redundant_experts",
                        json_integer(l.experts.ranks > 1 ? l.experts.slots - l.n_expert : 0));
    json_object_set_new(all, "rebalances", json_integer((json_int_t)l.experts.rebalances));
    json_object_set_new(all, "moves", json_integer((json_int_t)l.experts.moves));
    json_object_set_new(all, "layers", layers);
    char *text = json_dumps(all, JSON_COMPACT | JSON_REAL_PRECISION(6));
    buf_add_str(&x->reply, text);
    x->status = 200;
    free(text);
    json_decref(all);
    load_close(&l);
}

/* ---- moving -------------------------------------------------------------------------------------- */

void api_rebalance_experts(struct exchange *x)
{
    struct nyb_rebalance r;
    struct nyb_err err = {0};
    json_t *body = admin_parameters(x, NULL, 0);
    if (!body)
        return;
    json_decref(body);
    if (nyb_rebalance_experts(x->s->engine, &r, &err) != NYB_OK) {
        admin_reply_err(x, &err, NULL);
        return;
    }
    json_t *more = json_object();
    json_object_set_new(more, "layers", json_integer(r.layers));
    json_object_set_new(more, "moves", json_integer((json_int_t)r.moves));
    json_object_set_new(more, "bytes", json_integer((json_int_t)r.bytes));
    json_object_set_new(more, "seconds", json_real((double)r.ns * 1e-9));
    json_object_set_new(more, "imbalance_before", json_real(r.before));
    json_object_set_new(more, "imbalance_planned", json_real(r.after));
    admin_reply(x, 200, NULL, r.moves ? "Experts have moved." : "Experts are well where they are.", more);
}
