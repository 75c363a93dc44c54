#include "model/expert_facts.h"

#include <string.h>

#include "base/err.h"

void origins_left_drop(struct origins_left *left)
{
    for (int i = 0; i < left->n; i++)
        origin_drop(left->origin[i]);
    *left = (struct origins_left){0};
}

static void leave(struct origins_left *left, struct origin *o)
{
    if (!o)
        return;
    for (int i = 0; i < left->n; i++)
        if (left->origin[i] == o) {
            origin_drop(o);
            return;
        }
    ASSERT(left->n < ORIGINS_LEFT_MAX);
    left->origin[left->n++] = o;
}

/* ---- telling ------------------------------------------------------------------------------------- */

static bool copy_name(char to[FACT_NAME_MAX], const struct ckpt_tensor *t)
{
    size_t n = t ? strlen(t->name) : 0;
    if (n >= FACT_NAME_MAX)
        return false;
    memcpy(to, t ? t->name : "", n + 1);
    return true;
}

struct expert_facts expert_facts_of(const struct slot *s)
{
    struct expert_facts f;
    memset(&f, 0, sizeof(f)); /* all of it travels */
    if (s->kind == SLOT_MATRIX) {
        f.global_scale = s->weight->global_scale;
        f.input_scale = s->weight->input_scale;
    }
    const struct ckpt_tensor *t = s->kind == SLOT_MATRIX ? s->source.weight : s->tensor;
    if (!s->origin || !t || !copy_name(f.tensor, t) || !copy_name(f.scale, s->source.scale))
        return f;
    f.has_origin = true;
    f.origin = *origin_id(s->origin);
    f.source = s->source;
    f.source.weight = f.source.scale = NULL; /* addresses of this rank's */
    return f;
}

/* ---- taking -------------------------------------------------------------------------------------- */

static struct origin *find_origin(const struct origin_id *id, const struct slots *all,
                                  const struct origins_left *left)
{
    struct origin *seen = NULL;
    for (int i = 0; i < left->n; i++)
        if (origin_id_equal(origin_id(left->origin[i]), id))
            return left->origin[i];
    for (int i = 0; i < all->n; i++) {
        struct origin *o = all->slot[i].origin;
        if (o && o != seen && origin_id_equal(origin_id(o), id))
            return o;
        seen = o;
    }
    return NULL;
}

static bool find_tensors(struct slot *s, const struct expert_facts *f, const struct ckpt *c)
{
    const struct ckpt_tensor *t = ckpt_find(c, f->tensor),
                             *scale = f->scale[0] ? ckpt_find(c, f->scale) : NULL;
    if (!t || (f->scale[0] && !scale))
        return false;
    if (s->kind == SLOT_VECTOR) {
        s->tensor = t;
    } else {
        s->source = f->source;
        s->source.weight = t;
        s->source.scale = scale;
    }
    return true;
}

void expert_facts_take(struct slot *s, const struct expert_facts *f, const struct slots *all,
                       struct origins_left *left)
{
    struct origin *o = f->has_origin ? find_origin(&f->origin, all, left) : NULL, *was = s->origin;
    s->source = (struct linear_source){0};
    s->tensor = NULL;
    s->origin = o && find_tensors(s, f, origin_ckpt(o)) ? origin_share(o) : NULL;
    leave(left, was);
    if (s->kind == SLOT_MATRIX) {
        s->weight->global_scale = f->global_scale;
        s->weight->input_scale = f->input_scale;
    }
    if (f->has_origin && !s->origin)
        left->lost = s->name;
}
