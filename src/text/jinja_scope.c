#include <string.h>

#include "text/jinja_run.h"

struct jscope *jscope_new(struct jrun *r, struct jscope *up)
{
    struct jscope *s = jheap_alloc(&r->h, 1, sizeof(*s));
    s->up = up;
    return s;
}

void jscope_set(struct jrun *r, struct jscope *s, const struct jname *name, struct jval v)
{
    if (!s->up) {
        r->root[name->id] = v;
        return;
    }
    for (size_t i = 0; i < s->n; i++)
        if (s->at[i].name == name) {
            s->at[i].value = v;
            return;
        }
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        struct jbinding *at = jheap_alloc(&r->h, cap, sizeof(*at));
        if (s->n)
            memcpy(at, s->at, s->n * sizeof(*at));
        s->at = at;
        s->cap = cap;
    }
    s->at[s->n++] = (struct jbinding){name, v};
}

struct jval jexec_lookup(struct jrun *r, const struct jname *name)
{
    for (const struct jscope *s = r->scope; s->up; s = s->up)
        for (size_t i = 0; i < s->n; i++)
            if (s->at[i].name == name)
                return s->at[i].value;
    struct jval v = r->root[name->id];
    return v.type == J_MISSING ? jval_undefined(name->text) : v;
}

void jscope_assign(struct jrun *r, struct jscope *s, const struct jnode *target, struct jval v)
{
    if (target->kind == JN_NAME) {
        jscope_set(r, s, target->name, v);
        return;
    }
    if (v.type == J_UNDEFINED || !jval_is_iterable(v))
        jheap_fail(&r->h, "cannot unpack non-iterable %s object", jval_type_name(v));
    const struct jlist *items = jval_items(&r->h, v);
    if (items->n != target->n)
        jheap_fail(&r->h, "%s values to unpack (expected %zu, got %zu)",
                   items->n < target->n ? "not enough" : "too many", target->n, items->n);
    for (size_t i = 0; i < target->n; i++)
        jscope_assign(r, s, target->list[i], items->at[i]);
}
