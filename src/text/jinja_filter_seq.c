/* Filters of sequences. */
#include <string.h>

#include "text/jinja_access.h"
#include "text/jinja_filter.h"
#include "text/jinja_method.h"
#include "text/jinja_op.h"
#include "text/jinja_repr.h"
#include "text/jinja_unicode.h"

static struct jval filter_length(struct jrun *r, struct jval v, const struct jargs *a)
{
    size_t n;
    jargs_none(r, a, "length");
    if (!jval_len(v, &n))
        jheap_fail(&r->h, "object of type '%s' has no len()", jval_type_name(v));
    return jval_int((int64_t)n);
}

static struct jval filter_list(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "list");
    return jval_list(jval_items(&r->h, v));
}

static struct jval filter_items(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "items");
    if (v.type == J_UNDEFINED)
        return jval_iter(&r->h, jlist_new(&r->h, 0), "generator");
    if (v.type != J_DICT)
        jheap_fail(&r->h, "Can only get item pairs from a mapping.");
    struct jview view = {v.dict, JVIEW_ITEMS};
    return jval_iter(&r->h, jval_items(&r->h, (struct jval){.type = J_VIEW, .view = &view}), "generator");
}

static struct jval filter_first(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "first");
    if (v.type == J_ITER) { /* the others stay */
        struct jiter *iter = v.iter;
        return iter->at < iter->list->n ? iter->list->at[iter->at++]
                                        : jval_undefined("No first item, sequence was empty.");
    }
    const struct jlist *items = jval_items(&r->h, v);
    return items->n ? items->at[0] : jval_undefined("No first item, sequence was empty.");
}

static struct jval filter_last(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "last");
    if (v.type == J_ITER)
        jheap_fail(&r->h, "'%s' object is not reversible", jval_type_name(v));
    const struct jlist *items = jval_items(&r->h, v);
    return items->n ? items->at[items->n - 1] : jval_undefined("No last item, sequence was empty.");
}

static struct jval filter_join(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[2];
    jargs_bind(r, a, "join", "d,attribute", 0, p);
    const struct jstr *by = p[0].type == J_MISSING ? jval_lit(&r->h, "").s : jrepr_str(&r->h, p[0]);
    bool by_attribute = p[1].type != J_MISSING && p[1].type != J_NONE;
    const struct jlist *items = jval_items(&r->h, v);
    struct jtext t = {.h = &r->h};
    for (size_t i = 0; i < items->n; i++) {
        if (i)
            jtext_add_str(&t, by);
        jrepr_add_str(&t, by_attribute ? jaccess_path(r, items->at[i], p[1]) : items->at[i]);
    }
    return jval_str(jtext_take(&t));
}

static struct jval filter_reverse(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "reverse");
    struct jval back = {.type = J_INT, .i = -1};
    if (v.type == J_STR)
        return jaccess_slice(r, v, JVAL_NONE, JVAL_NONE, back);
    struct jval list = jval_list(jval_items(&r->h, v));
    return jval_iter(&r->h, jaccess_slice(r, list, JVAL_NONE, JVAL_NONE, back).list, "list_reverseiterator");
}

/* What a value is ordered by: strings by their lower case, unless case counts. */
static struct jval order_key(struct jrun *r, struct jval v, bool case_sensitive)
{
    return v.type == J_STR && !case_sensitive ? jval_str(junicode_lower(&r->h, v.s)) : v;
}

/* "a,b" sorts by a, then b. */
static struct jval attribute_key(struct jrun *r, struct jval item, struct jval attribute, bool case_sensitive)
{
    if (attribute.type == J_MISSING || attribute.type == J_NONE)
        return order_key(r, item, case_sensitive);
    if (attribute.type != J_STR || !memchr(attribute.s->p, ',', attribute.s->len))
        return order_key(r, jaccess_path(r, item, attribute), case_sensitive);
    struct jlist *keys = jlist_new(&r->h, 2);
    for (size_t at = 0; at <= attribute.s->len;) {
        const char *comma = memchr(attribute.s->p + at, ',', attribute.s->len - at);
        size_t end = comma ? (size_t)(comma - attribute.s->p) : attribute.s->len;
        struct jval path = jval_str(jstr_part(&r->h, attribute.s, at, end));
        jlist_add(&r->h, keys, order_key(r, jaccess_path(r, item, path), case_sensitive));
        at = end + 1;
    }
    return jval_list(keys);
}

static struct jlist *sorted(struct jrun *r, const struct jlist *items, struct jval attribute,
                            bool case_sensitive, bool reverse)
{
    struct jlist *out = jlist_new(&r->h, items->n), *keys = jlist_new(&r->h, items->n);
    for (size_t i = 0; i < items->n; i++) {
        jlist_add(&r->h, out, items->at[i]);
        jlist_add(&r->h, keys, attribute_key(r, items->at[i], attribute, case_sensitive));
    }
    jval_sort(&r->h, keys->at, out->at, out->n, reverse);
    return out;
}

static struct jval filter_sort(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[3];
    jargs_bind(r, a, "sort", "reverse,case_sensitive,attribute", 0, p);
    return jval_list(sorted(r, jval_items(&r->h, v), p[2], jargs_bool(p[1], false), jargs_bool(p[0], false)));
}

static struct jval filter_dictsort(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[3];
    jargs_bind(r, a, "dictsort", "case_sensitive,by,reverse", 0, p);
    if (v.type != J_DICT)
        jheap_fail(&r->h, "dictsort: '%s' is not a mapping", jval_type_name(v));
    const struct jstr *by = jargs_str(r, p[1], "dictsort");
    if (by && !jstr_is(by, "key") && !jstr_is(by, "value"))
        jheap_fail(&r->h, "You can only sort by either \"key\" or \"value\"");
    struct jview view = {v.dict, JVIEW_ITEMS};
    const struct jlist *items = jval_items(&r->h, (struct jval){.type = J_VIEW, .view = &view});
    return jval_list(sorted(r, items, jval_int(by && jstr_is(by, "value")), jargs_bool(p[0], false),
                            jargs_bool(p[2], false)));
}

static struct jval filter_unique(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[2];
    jargs_bind(r, a, "unique", "case_sensitive,attribute", 0, p);
    const struct jlist *items = jval_items(&r->h, v);
    struct jlist *out = jlist_new(&r->h, 0);
    struct jdict *seen = jdict_new(&r->h, 0);
    for (size_t i = 0; i < items->n; i++) {
        struct jval item = items->at[i];
        struct jval key = p[1].type == J_MISSING || p[1].type == J_NONE ? item : jaccess_path(r, item, p[1]);
        key = order_key(r, key, jargs_bool(p[0], false));
        if (jdict_get(&r->h, seen, key))
            continue;
        jdict_set(&r->h, seen, key, JVAL_NONE);
        jlist_add(&r->h, out, item);
    }
    return jval_iter(&r->h, out, "generator");
}

static struct jval extreme(struct jrun *r, struct jval v, const struct jargs *a, bool max)
{
    struct jval p[2];
    jargs_bind(r, a, max ? "max" : "min", "case_sensitive,attribute", 0, p);
    const struct jlist *items = jval_items(&r->h, v);
    if (!items->n)
        return jval_undefined("No aggregated item, sequence was empty.");
    struct jval best = items->at[0], best_key = JVAL_NONE;
    for (size_t i = 0; i < items->n; i++) {
        struct jval item = items->at[i];
        struct jval key = p[1].type == J_MISSING || p[1].type == J_NONE ? item : jaccess_path(r, item, p[1]);
        key = order_key(r, key, jargs_bool(p[0], false));
        if (i == 0 || (max ? jval_less(&r->h, best_key, key) : jval_less(&r->h, key, best_key))) {
            best = item;
            best_key = key;
        }
    }
    return best;
}

static struct jval filter_min(struct jrun *r, struct jval v, const struct jargs *a)
{
    return extreme(r, v, a, false);
}
static struct jval filter_max(struct jrun *r, struct jval v, const struct jargs *a)
{
    return extreme(r, v, a, true);
}

static struct jval filter_sum(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[2];
    jargs_bind(r, a, "sum", "attribute,start", 0, p);
    struct jval total = p[1].type == J_MISSING ? jval_int(0) : p[1];
    bool by_attribute = p[0].type != J_MISSING && p[0].type != J_NONE;
    if (total.type == J_STR)
        jheap_fail(&r->h, "sum() can't sum strings [use ''.join(seq) instead]");
    const struct jlist *items = jval_items(&r->h, v);
    for (size_t i = 0; i < items->n; i++)
        total =
            jop_binary(r, JOP_ADD, total, by_attribute ? jaccess_path(r, items->at[i], p[0]) : items->at[i]);
    return total;
}

static struct jlist *sub_list(struct jrun *r, const struct jlist *items, size_t from, size_t to)
{
    struct jlist *out = jlist_new(&r->h, to - from + 1);
    for (size_t i = from; i < to; i++)
        jlist_add(&r->h, out, items->at[i]);
    return out;
}

static struct jval filter_slice(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[2];
    jargs_bind(r, a, "slice", "slices,fill_with", 1, p);
    int64_t n = jargs_int(r, p[0], "slice", 1);
    const struct jlist *items = jval_items(&r->h, v);
    struct jlist *out = jlist_new(&r->h, 0);
    if (n == 0)
        jheap_fail(&r->h, "integer division or modulo by zero");
    size_t count = n < 0 ? 0 : (size_t)n, each = count ? items->n / count : 0,
           extra = count ? items->n % count : 0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        size_t end = at + each + (i < extra);
        struct jlist *part = sub_list(r, items, at, end);
        if (p[1].type != J_MISSING && p[1].type != J_NONE && i >= extra)
            jlist_add(&r->h, part, p[1]);
        jlist_add(&r->h, out, jval_list(part));
        at = end;
    }
    return jval_iter(&r->h, out, "generator");
}

static struct jval filter_batch(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[2];
    jargs_bind(r, a, "batch", "linecount,fill_with", 1, p);
    int64_t n = jargs_int(r, p[0], "batch", 1);
    const struct jlist *items = jval_items(&r->h, v);
    struct jlist *out = jlist_new(&r->h, 0);
    if (n <= 0) /* Python's generator never finds a full line, or begins with an empty one */
        jheap_fail(&r->h, "batch: expected at least 1 item for each line");
    for (size_t at = 0; at < items->n;) {
        size_t end = (uint64_t)n < items->n - at ? at + (size_t)n : items->n;
        struct jlist *part = sub_list(r, items, at, end);
        while (p[1].type != J_MISSING && p[1].type != J_NONE && part->n < (size_t)n)
            jlist_add(&r->h, part, p[1]);
        jlist_add(&r->h, out, jval_list(part));
        at = end;
    }
    return jval_iter(&r->h, out, "generator");
}

const struct jfilter jfilter_seq[] = {
    {"batch", filter_batch},
    {"count", filter_length},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"max", filter_max},
    {"min", filter_min},
    {"reverse", filter_reverse},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
    {NULL, NULL},
};
