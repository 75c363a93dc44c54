/* Under expert parallelism a rank has no slots for the experts of others. What a new checkpoint says about
 * those is checked all the same: rank 0 speaks for all of them when it refuses or describes an update. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/update_internal.h"

/* This rank's slots by name. */
struct here {
    const struct slot **slot; /* (n) sorted */
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    const struct slot *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static void index_slots(struct here *h, const struct slots *slots)
{
    h->n = (size_t)slots->n;
    h->slot = mem_alloc(h->n, sizeof(*h->slot));
    for (size_t i = 0; i < h->n; i++)
        h->slot[i] = &slots->slot[i];
    qsort(h->slot, h->n, sizeof(*h->slot), by_name);
}

static const struct slot *find(const struct here *h, const struct slot *s)
{
    const struct slot **found = bsearch(&s, h->slot, h->n, sizeof(*h->slot), by_name);
    return found ? *found : NULL;
}

/* As the file has it; what is wrong with it the check will say. */
static void take_type(struct update *u, struct slot *s)
{
    struct nyb_err found;
    struct weight weight = *s->weight;
    struct slot probe = *s;
    probe.weight = &weight;
    if (source_resolve_slot(&probe, u->ckpt, u->quant, &found) == NYB_OK)
        s->weight->type = weight.type;
}

/* `like`: the same parameter of an expert that is here, and whose type it must have; NULL: none is. */
static enum nyb_code check(struct update *u, struct slot *s, const struct slot *like, struct nyb_err *err)
{
    struct touched t = {0};
    bool any;
    if (s->kind == SLOT_MATRIX && like)
        s->weight->type = like->weight->type;
    else if (s->kind == SLOT_MATRIX)
        take_type(u, s);
    TRY(update_check_slot(u, s, &t, &any, err));
    if (!any)
        return NYB_OK;
    u->facts->n_tensor++;
    if (!t.data)
        return NYB_OK;
    s->source = t.source;
    s->tensor = t.tensor;
    update_count(u, s);
    return NYB_OK;
}

static int find_matrix(const struct slots *slots, const struct weight *w)
{
    int i = 0;
    while (slots->slot[i].weight != w)
        i++;
    return i;
}

/* A layer's experts are declared one after the other, `step` slots each. */
static enum nyb_code check_layer(struct update *u, struct weights *all, const struct layer_weights *l,
                                 const struct here *here, struct nyb_err *err)
{
    int n = u->m->config.moe.n_expert, first = find_matrix(&all->slots, &l->expert[0].gate.w);
    int step = n > 1 ? find_matrix(&all->slots, &l->expert[1].gate.w) - first : 0;
    for (int i = 0; i < step; i++) {
        const struct slot *like = NULL;
        for (int e = 0; e < n && !like; e++)
            like = find(here, &all->slots.slot[first + e * step + i]);
        for (int e = 0; e < n; e++) {
            struct slot *s = &all->slots.slot[first + e * step + i];
            if (!find(here, s))
                TRY(check(u, s, like, err));
        }
    }
    return NYB_OK;
}

enum nyb_code update_check_elsewhere(struct update *u, struct nyb_err *err)
{
    const struct model *m = u->m;
    if (m->config.shard.ep_size == 1)
        return NYB_OK;
    struct model_config whole = m->config; /* what it points to stays the model's */
    struct weights all;
    struct here here;
    enum nyb_code code = NYB_OK;
    shard_set(&whole.shard, 0, 1, whole.n_head, whole.n_kv_head);
    weights_declare(&all, &whole, !m->weights.head_is_embed);
    index_slots(&here, &m->weights.slots);
    for (int i = 0; i < all.n_layer && code == NYB_OK; i++)
        if (all.layer[i].expert)
            code = check_layer(u, &all, &all.layer[i], &here, err);
    free(here.slot);
    weights_free(&all);
    return code;
}
