/* Equality, order, containment and sorting, as Python has them. */
#include <math.h>
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_value.h"

static void enter(struct jheap *h)
{
    jheap_spend(h, 1);
    if (++h->depth > JINJA_DEPTH_MAX)
        jheap_fail(h, "values are nested too deep to be compared");
}

/* Sign of a big integer minus another integer. */
static int compare_big(struct jval a, struct jval b)
{
    bool negative = a.s->p[0] == '-';
    if (b.type != J_BIG) /* it lies within 64 bits, a does not */
        return negative ? -1 : 1;
    if (negative != (b.s->p[0] == '-'))
        return negative ? -1 : 1;
    int order = a.s->len != b.s->len ? (a.s->len < b.s->len ? -1 : 1) : memcmp(a.s->p, b.s->p, a.s->len);
    return negative ? -order : order;
}

/* -1, 0, 1; 2 where a NaN is involved. */
static int compare_numbers(struct jval a, struct jval b)
{
    int64_t i, j;
    if (jval_as_int(a, &i) && jval_as_int(b, &j))
        return i < j ? -1 : i > j;
    if (a.type == J_BIG && b.type != J_FLOAT) {
        int order = compare_big(a, b);
        return order < 0 ? -1 : order > 0;
    }
    if (b.type == J_BIG && a.type != J_FLOAT)
        return -compare_numbers(b, a);
    /* A long double holds every double and every int64 exactly. */
    double x = 0, y = 0;
    jval_as_double(a, &x);
    jval_as_double(b, &y);
    long double p = jval_as_int(a, &i) ? (long double)i : (long double)x;
    long double q = jval_as_int(b, &j) ? (long double)j : (long double)y;
    if (isnan(x) || isnan(y))
        return 2;
    return p < q ? -1 : p > q;
}

static bool lists_equal(struct jheap *h, const struct jlist *a, const struct jlist *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!jval_equal(h, a->at[i], b->at[i]))
            return false;
    return true;
}

static bool dicts_equal(struct jheap *h, const struct jdict *a, const struct jdict *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct jval *other = jdict_get(h, b, a->key[i]);
        if (!other || !jval_equal(h, a->value[i], *other))
            return false;
    }
    return true;
}

static bool ranges_equal(const struct jrange *a, const struct jrange *b)
{
    int64_t n = jrange_len(a);
    return n == jrange_len(b) && (n == 0 || (a->start == b->start && (n == 1 || a->step == b->step)));
}

static bool equal(struct jheap *h, struct jval a, struct jval b)
{
    if (jval_is_number(a) && jval_is_number(b))
        return compare_numbers(a, b) == 0;
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case J_UNDEFINED:
    case J_NONE:
        return true;
    case J_STR:
        jheap_spend_bytes(h, a.s->len);
        return jstr_equal(a.s, b.s);
    case J_LIST:
    case J_TUPLE:
        return a.list == b.list || lists_equal(h, a.list, b.list);
    case J_DICT:
        return a.dict == b.dict || dicts_equal(h, a.dict, b.dict);
    case J_RANGE:
        return ranges_equal(a.range, b.range);
    case J_METHOD:
        return false; /* one for each time it was looked up */
    default:
        return a.list == b.list; /* the same object; all pointers of the union lie alike */
    }
}

bool jval_equal(struct jheap *h, struct jval a, struct jval b)
{
    enter(h);
    bool same = equal(h, a, b);
    h->depth--;
    return same;
}

static bool less(struct jheap *h, struct jval a, struct jval b)
{
    if (jval_is_number(a) && jval_is_number(b))
        return compare_numbers(a, b) == -1;
    if (a.type == J_UNDEFINED)
        jval_fail_undefined(h, a);
    if (b.type == J_UNDEFINED)
        jval_fail_undefined(h, b);
    if (a.type == J_STR && b.type == J_STR) {
        jheap_spend_bytes(h, a.s->len);
        return jstr_compare(a.s, b.s) < 0;
    }
    if (a.type != b.type || (a.type != J_LIST && a.type != J_TUPLE))
        jheap_fail(h, "'<' not supported between instances of '%s' and '%s'", jval_type_name(a),
                   jval_type_name(b));
    for (size_t i = 0; i < a.list->n && i < b.list->n; i++)
        if (!jval_equal(h, a.list->at[i], b.list->at[i]))
            return jval_less(h, a.list->at[i], b.list->at[i]);
    return a.list->n < b.list->n;
}

bool jval_less(struct jheap *h, struct jval a, struct jval b)
{
    enter(h);
    bool is_less = less(h, a, b);
    h->depth--;
    return is_less;
}

static bool in_range(struct jval v, const struct jrange *r)
{
    int64_t i;
    if (v.type == J_FLOAT && v.f == trunc(v.f) && fabs(v.f) < 0x1p62)
        i = (int64_t)v.f;
    else if (!jval_as_int(v, &i))
        return false;
    bool within = r->step > 0 ? i >= r->start && i < r->stop : i <= r->start && i > r->stop;
    return within && (i - r->start) % r->step == 0;
}

bool jval_contains(struct jheap *h, struct jval container, struct jval item)
{
    switch (container.type) {
    case J_STR:
        if (item.type != J_STR)
            jheap_fail(h, "'in <string>' requires string as left operand, not %s", jval_type_name(item));
        return jstr_find(h, container.s, item.s, 0, container.s->len) != SIZE_MAX;
    case J_DICT:
        return jdict_get(h, container.dict, item) != NULL;
    case J_VIEW:
        if (container.view->kind == JVIEW_KEYS)
            return jdict_get(h, container.view->dict, item) != NULL;
        break;
    case J_RANGE:
        return in_range(item, container.range);
    case J_ITER: { /* it stops after the item */
        struct jiter *iter = container.iter;
        while (iter->at < iter->list->n)
            if (jval_equal(h, iter->list->at[iter->at++], item))
                return true;
        return false;
    }
    default:
        if (!jval_is_iterable(container))
            jheap_fail(h, "argument of type '%s' is not iterable", jval_type_name(container));
    }
    const struct jlist *list = jval_items(h, container);
    for (size_t i = 0; i < list->n; i++)
        if (jval_equal(h, list->at[i], item))
            return true;
    return false;
}

static void merge(struct jheap *h, const struct jval *key, const size_t *from, size_t *to, size_t a, size_t b,
                  size_t end, bool reverse)
{
    size_t left = a, right = b, n = a;
    while (left < b && right < end) {
        /* The right one comes first only when it must: that keeps the order of equals. */
        bool take_right = reverse ? jval_less(h, key[from[left]], key[from[right]])
                                  : jval_less(h, key[from[right]], key[from[left]]);
        to[n++] = take_right ? from[right++] : from[left++];
    }
    while (left < b)
        to[n++] = from[left++];
    while (right < end)
        to[n++] = from[right++];
}

void jval_sort(struct jheap *h, struct jval *key, struct jval *item, size_t n, bool reverse)
{
    size_t *order = jheap_alloc(h, n, sizeof(*order)), *other = jheap_alloc(h, n, sizeof(*other));
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t a = 0; a < n; a += 2 * width) {
            size_t b = a + width < n ? a + width : n, end = b + width < n ? b + width : n;
            merge(h, key, order, other, a, b, end, reverse);
        }
        size_t *swap = order;
        order = other;
        other = swap;
    }
    struct jval *copy = jheap_alloc(h, n, sizeof(*copy));
    for (size_t i = 0; i < n; i++)
        copy[i] = item[order[i]];
    for (size_t i = 0; i < n; i++)
        item[i] = copy[i];
}
