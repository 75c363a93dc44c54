/* Methods of dicts, lists and tuples that leave them as they are, and of a cycler. */
#include <string.h>

#include "text/jinja_method.h"

static struct jval view(struct jrun *r, struct jval self, const struct jargs *a, enum jview_kind kind)
{
    jargs_none(r, a, "the method");
    struct jview *v = jheap_alloc(&r->h, 1, sizeof(*v));
    v->dict = self.dict;
    v->kind = kind;
    return (struct jval){.type = J_VIEW, .view = v};
}

static struct jval dict_keys(struct jrun *r, struct jval self, const struct jargs *a)
{
    return view(r, self, a, JVIEW_KEYS);
}
static struct jval dict_values(struct jrun *r, struct jval self, const struct jargs *a)
{
    return view(r, self, a, JVIEW_VALUES);
}
static struct jval dict_items(struct jrun *r, struct jval self, const struct jargs *a)
{
    return view(r, self, a, JVIEW_ITEMS);
}

static struct jval dict_get(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v[2];
    if (a->n_kw)
        jheap_fail(&r->h, "dict.get() takes no keyword arguments");
    jargs_bind(r, a, "get", "key,default", 1, v);
    const struct jval *found = jdict_get(&r->h, self.dict, v[0]);
    return found ? *found : v[1].type == J_MISSING ? JVAL_NONE : v[1];
}

static struct jval dict_copy(struct jrun *r, struct jval self, const struct jargs *a)
{
    jargs_none(r, a, "copy");
    struct jdict *d = jdict_new(&r->h, self.dict->n);
    d->n = self.dict->n;
    if (d->n) {
        memcpy(d->key, self.dict->key, d->n * sizeof(*d->key));
        memcpy(d->value, self.dict->value, d->n * sizeof(*d->value));
    }
    return jval_dict(d);
}

static struct jval list_count(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v;
    int64_t n = 0;
    jargs_bind(r, a, "count", "value", 1, &v);
    for (size_t i = 0; i < self.list->n; i++)
        n += jval_equal(&r->h, self.list->at[i], v);
    return jval_int(n);
}

static struct jval range_count(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v;
    jargs_bind(r, a, "count", "value", 1, &v);
    return jval_int(jval_contains(&r->h, self, v));
}

static struct jval list_index(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v[3];
    jargs_bind(r, a, "index", "value,start,stop", 1, v);
    int64_t n = (int64_t)self.list->n;
    int64_t i = jargs_int(r, v[1], "index", 0), end = jargs_int(r, v[2], "index", n);
    i = i < -n ? 0 : i < 0 ? i + n : i;
    end = end < -n ? 0 : end < 0 ? end + n : end > n ? n : end;
    for (; i < end; i++)
        if (jval_equal(&r->h, self.list->at[i], v[0]))
            return jval_int(i);
    jheap_fail(&r->h, "the value is not in the list");
}

static struct jval list_copy(struct jrun *r, struct jval self, const struct jargs *a)
{
    jargs_none(r, a, "copy");
    struct jlist *list = jlist_new(&r->h, self.list->n);
    for (size_t i = 0; i < self.list->n; i++)
        jlist_add(&r->h, list, self.list->at[i]);
    return jval_list(list);
}

static struct jval cycler_next(struct jrun *r, struct jval self, const struct jargs *a)
{
    jargs_none(r, a, "next");
    struct jcycle *c = self.cycle;
    struct jval v = c->items->at[c->at];
    c->at = (c->at + 1) % c->items->n;
    return v;
}

static struct jval cycler_reset(struct jrun *r, struct jval self, const struct jargs *a)
{
    jargs_none(r, a, "reset");
    self.cycle->at = 0;
    return JVAL_NONE;
}

const struct jmethod jmethod_seq[] = {
    {"keys", J_DICT, dict_keys},     {"values", J_DICT, dict_values}, {"items", J_DICT, dict_items},
    {"get", J_DICT, dict_get},       {"copy", J_DICT, dict_copy},     {"count", J_LIST, list_count},
    {"index", J_LIST, list_index},   {"copy", J_LIST, list_copy},     {"count", J_TUPLE, list_count},
    {"index", J_TUPLE, list_index},  {"next", J_CYCLER, cycler_next}, {"reset", J_CYCLER, cycler_reset},
    {"count", J_RANGE, range_count}, {NULL, J_MISSING, NULL},
};
