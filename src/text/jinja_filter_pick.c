/* Filters that apply another filter or a test to each item, and groupby. */
#include "text/jinja_access.h"
#include "text/jinja_filter.h"
#include "text/jinja_repr.h"
#include "text/jinja_test.h"
#include "text/jinja_unicode.h"

/* The filter's or test's name in the first argument, terminated. */
static const char *name_of(struct jrun *r, struct jval v)
{
    const struct jstr *s = jargs_str(r, v, "the name of a filter or test");
    char *name = jheap_text(&r->h, s->len + 1);
    for (size_t i = 0; i < s->len; i++)
        name[i] = s->p[i];
    name[s->len] = 0;
    return name;
}

static const struct jkw *find_kw(const struct jargs *a, const char *name)
{
    for (size_t i = 0; i < a->n_kw; i++)
        if (jstr_is(a->kw[i].name, name))
            return &a->kw[i];
    return NULL;
}

static struct jlist *map_attribute(struct jrun *r, const struct jlist *items, const struct jargs *a,
                                   struct jval path)
{
    const struct jkw *otherwise = find_kw(a, "default");
    if (a->n_kw != 1u + (otherwise != NULL))
        jheap_fail(&r->h, "map: unexpected keyword argument");
    struct jlist *out = jlist_new(&r->h, items->n);
    for (size_t i = 0; i < items->n; i++) {
        struct jval v = jaccess_path(r, items->at[i], path);
        if (v.type == J_UNDEFINED && otherwise && otherwise->value.type != J_NONE)
            v = otherwise->value;
        jlist_add(&r->h, out, v);
    }
    return out;
}

static struct jval filter_map(struct jrun *r, struct jval v, const struct jargs *a)
{
    const struct jkw *attribute = a->n ? NULL : find_kw(a, "attribute");
    if (!jval_truth(v))
        return jval_iter(&r->h, jlist_new(&r->h, 0), "generator");
    const struct jlist *items = jval_items(&r->h, v);
    if (attribute)
        return jval_iter(&r->h, map_attribute(r, items, a, attribute->value), "generator");
    if (!a->n)
        jheap_fail(&r->h, "map requires a filter argument");
    const char *name = name_of(r, a->at[0]);
    const struct jfilter *filter = jfilter_find(name);
    if (!filter && items->n)
        jheap_fail(&r->h, "No filter named '%.80s'.", name);
    const struct jargs rest = {a->at + 1, a->n - 1, a->kw, a->n_kw};
    struct jlist *out = jlist_new(&r->h, items->n);
    jeval_enter(r);
    for (size_t i = 0; i < items->n; i++)
        jlist_add(&r->h, out, filter->call(r, items->at[i], &rest));
    r->h.depth--;
    return jval_iter(&r->h, out, "generator");
}

/* select and reject; with an attribute before the test, selectattr and rejectattr. */
static struct jval pick(struct jrun *r, struct jval v, const struct jargs *a, bool keep, bool by_attribute)
{
    size_t off = by_attribute;
    if (a->n < off)
        jheap_fail(&r->h, "Missing parameter for attribute name");
    struct jlist *out = jlist_new(&r->h, 0);
    if (!jval_truth(v))
        return jval_iter(&r->h, out, "generator");
    const struct jlist *items = jval_items(&r->h, v);
    const char *name = a->n > off ? name_of(r, a->at[off]) : NULL;
    const struct jtest *test = name ? jtest_find(name) : NULL;
    if (name && !test && items->n)
        jheap_fail(&r->h, "No test named '%.80s'.", name);
    const struct jargs rest = {name ? a->at + off + 1 : NULL, name ? a->n - off - 1 : 0, a->kw, a->n_kw};
    for (size_t i = 0; i < items->n; i++) {
        struct jval x = by_attribute ? jaccess_path(r, items->at[i], a->at[0]) : items->at[i];
        if ((test ? test->call(r, x, &rest) : jval_truth(x)) == keep)
            jlist_add(&r->h, out, items->at[i]);
    }
    return jval_iter(&r->h, out, "generator");
}

static struct jval filter_select(struct jrun *r, struct jval v, const struct jargs *a)
{
    return pick(r, v, a, true, false);
}
static struct jval filter_reject(struct jrun *r, struct jval v, const struct jargs *a)
{
    return pick(r, v, a, false, false);
}
static struct jval filter_selectattr(struct jrun *r, struct jval v, const struct jargs *a)
{
    return pick(r, v, a, true, true);
}
static struct jval filter_rejectattr(struct jrun *r, struct jval v, const struct jargs *a)
{
    return pick(r, v, a, false, true);
}

static struct jval group(struct jrun *r, struct jval grouper, struct jlist *members)
{
    struct jlist *pair = jlist_new(&r->h, 2);
    jlist_add(&r->h, pair, grouper);
    jlist_add(&r->h, pair, jval_list(members));
    pair->is_group = true;
    return jval_tuple(pair);
}

static struct jval filter_groupby(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[3];
    jargs_bind(r, a, "groupby", "attribute,default,case_sensitive", 1, p);
    const struct jlist *items = jval_items(&r->h, v);
    struct jlist *keys = jlist_new(&r->h, items->n), *order = jlist_new(&r->h, items->n);
    bool folds = p[2].type != J_MISSING && !jval_truth(p[2]);
    folds |= p[2].type == J_MISSING; /* jinja2 3.1: case does not count unless asked for */
    for (size_t i = 0; i < items->n; i++) {
        struct jval key = jaccess_path(r, items->at[i], p[0]);
        if (key.type == J_UNDEFINED && p[1].type != J_MISSING && p[1].type != J_NONE)
            key = p[1];
        if (key.type == J_STR && folds)
            key = jval_str(junicode_lower(&r->h, key.s));
        jlist_add(&r->h, keys, key);
        jlist_add(&r->h, order, jval_int((int64_t)i));
    }
    jval_sort(&r->h, keys->at, order->at, order->n, false);
    struct jlist *out = jlist_new(&r->h, 0), *members = NULL;
    for (size_t i = 0; i < order->n; i++) {
        int64_t at = order->at[i].i;
        if (!members || !jval_equal(&r->h, keys->at[order->at[i - 1].i], keys->at[at])) {
            members = jlist_new(&r->h, 1);
            struct jval label = jaccess_path(r, items->at[at], p[0]); /* as its first member spells it */
            jlist_add(&r->h, out, group(r, label.type == J_UNDEFINED ? keys->at[at] : label, members));
        }
        jlist_add(&r->h, members, items->at[at]);
    }
    return jval_list(out);
}

const struct jfilter jfilter_pick[] = {
    {"groupby", filter_groupby},
    {"map", filter_map},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {NULL, NULL},
};
