#include "text/jinja_access.h"

#include <string.h>

static bool is_one_of(const struct jstr *name, const char *const *names)
{
    for (; *names; names++)
        if (jstr_is(name, *names))
            return true;
    return false;
}

/* Methods that change their value: the immutable sandbox answers with an undefined one. */
static bool is_unsafe(struct jval v, const struct jstr *name)
{
    static const char *const of_list[] = {"append", "reverse", "insert", "sort", "extend", "remove", NULL};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    return v.type == J_LIST ? is_one_of(name, of_list) : v.type == J_DICT && is_one_of(name, of_dict);
}

static bool find_own_attr(struct jrun *r, struct jval v, const struct jstr *name, struct jval *out)
{
    switch (v.type) {
    case J_LOOP:
        *out = jloop_attr(r, v.loop, name);
        return out->type != J_MISSING;
    case J_NAMESPACE: {
        const struct jval *found = jdict_get(&r->h, v.dict, jval_str(name));
        if (found)
            *out = *found;
        return found != NULL;
    }
    case J_TUPLE:
        if (!v.list->is_group || (!jstr_is(name, "grouper") && !jstr_is(name, "list")))
            return false;
        *out = v.list->at[jstr_is(name, "list")];
        return true;
    case J_CYCLER:
        if (!jstr_is(name, "current"))
            return false;
        *out = v.cycle->items->at[v.cycle->at];
        return true;
    default:
        return false;
    }
}

/* Python's getattr, where there is such an attribute. */
static bool find_attr(struct jrun *r, struct jval v, const struct jstr *name, struct jval *out)
{
    if (is_unsafe(v, name)) {
        *out = jval_undefined(name->n_char ? "an attribute that the sandbox forbids" : "");
        return true;
    }
    const struct jmethod *method = jmethod_find((enum jtype)v.type, name);
    if (method) {
        struct jbound *bound = jheap_alloc(&r->h, 1, sizeof(*bound));
        bound->self = v;
        bound->method = method;
        *out = (struct jval){.type = J_METHOD, .bound = bound};
        return true;
    }
    return find_own_attr(r, v, name, out);
}

static struct jval sequence_item(struct jval v, int64_t i, bool *found)
{
    size_t n = 0;
    jval_len(v, &n);
    i += i < 0 ? (int64_t)n : 0;
    *found = i >= 0 && i < (int64_t)n;
    if (!*found)
        return JVAL_NONE;
    if (v.type == J_RANGE)
        return jval_int(v.range->start + i * v.range->step);
    return v.list->at[i];
}

/* Python's v[key], where there is such an item. */
static bool find_item(struct jrun *r, struct jval v, struct jval key, struct jval *out)
{
    int64_t i;
    bool found = false;
    if (v.type == J_DICT) {
        if (key.type == J_LIST || key.type == J_DICT)
            return false;
        const struct jval *value = jdict_get(&r->h, v.dict, key);
        if (value)
            *out = *value;
        return value != NULL;
    }
    if (!jval_as_int(key, &i))
        return false;
    if (v.type == J_LIST || v.type == J_TUPLE || v.type == J_RANGE) {
        *out = sequence_item(v, i, &found);
    } else if (v.type == J_STR) {
        i += i < 0 ? (int64_t)v.s->n_char : 0;
        found = i >= 0 && i < (int64_t)v.s->n_char;
        if (found) {
            size_t from = jstr_offset(&r->h, v.s, (size_t)i);
            size_t to = from + 1;
            while (to < v.s->len && ((unsigned char)v.s->p[to] & 0xC0) == 0x80)
                to++;
            *out = jval_str(jstr_part(&r->h, v.s, from, to));
        }
    }
    return found;
}

static struct jval nothing(struct jrun *r, const struct jstr *name)
{
    if (name->len > 200)
        return jval_undefined("the item");
    char *text = jheap_text(&r->h, name->len + 1);
    memcpy(text, name->p, name->len);
    text[name->len] = 0;
    return jval_undefined(text);
}

struct jval jaccess_attr(struct jrun *r, struct jval v, const struct jstr *name)
{
    struct jval out;
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if (find_attr(r, v, name, &out) || find_item(r, v, jval_str(name), &out))
        return out;
    return nothing(r, name);
}

struct jval jaccess_item(struct jrun *r, struct jval v, struct jval key)
{
    struct jval out;
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if (find_item(r, v, key, &out) || (key.type == J_STR && find_attr(r, v, key.s, &out)))
        return out;
    return key.type == J_STR ? nothing(r, key.s) : jval_undefined("the item");
}

struct slice {
    int64_t start, end, step;
    size_t n;
};

/* A bound of a slice over n items, brought into [low, high]. */
static int64_t clamp_bound(struct jrun *r, struct jval v, int64_t otherwise, int64_t n, int64_t low,
                           int64_t high)
{
    int64_t i;
    if (v.type == J_NONE)
        return otherwise;
    if (!jval_as_int(v, &i))
        jheap_fail(&r->h, "slice indices must be integers or None");
    if (i < 0 && __builtin_add_overflow(i, n, &i))
        i = low;
    return i < low ? low : i > high ? high : i;
}

static struct slice slice_of(struct jrun *r, int64_t n, struct jval start, struct jval stop, struct jval step)
{
    struct slice s = {.step = 1};
    if (step.type != J_NONE && !jval_as_int(step, &s.step))
        jheap_fail(&r->h, "slice indices must be integers or None");
    if (s.step == 0)
        jheap_fail(&r->h, "slice step cannot be zero");
    bool back = s.step < 0;
    int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
    s.start = clamp_bound(r, start, back ? high : low, n, low, high);
    s.end = clamp_bound(r, stop, back ? low : high, n, low, high);
    int64_t distance = back ? s.start - s.end : s.end - s.start;
    uint64_t stride = back ? 0 - (uint64_t)s.step : (uint64_t)s.step;
    s.n = distance > 0 ? (size_t)(((uint64_t)distance - 1) / stride + 1) : 0;
    return s;
}

static const struct jstr *slice_str(struct jrun *r, const struct jstr *s, struct slice k)
{
    if (k.step == 1) {
        size_t from = jstr_offset(&r->h, s, (size_t)k.start), to = s->len;
        if (k.start + (int64_t)k.n < (int64_t)s->n_char)
            to = jstr_offset(&r->h, s, (size_t)k.start + k.n);
        return jstr_part(&r->h, s, from, k.n ? to : from);
    }
    struct jlist *chars = jval_items(&r->h, jval_str(s));
    struct jtext t = {.h = &r->h};
    jheap_spend(&r->h, k.n);
    for (size_t i = 0; i < k.n; i++)
        jtext_add_str(&t, chars->at[k.start + (int64_t)i * k.step].s);
    return jstr_as_markup(&r->h, jtext_take(&t), s->markup);
}

struct jval jaccess_slice(struct jrun *r, struct jval v, struct jval start, struct jval stop,
                          struct jval step)
{
    size_t n;
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if (v.type != J_STR && v.type != J_LIST && v.type != J_TUPLE && v.type != J_RANGE)
        jheap_fail(&r->h, "'%s' object is not subscriptable by a slice", jval_type_name(v));
    jval_len(v, &n);
    struct slice k = slice_of(r, (int64_t)n, start, stop, step);
    if (v.type == J_STR)
        return jval_str(slice_str(r, v.s, k));
    if (v.type == J_RANGE) {
        struct jrange *range = jheap_alloc(&r->h, 1, sizeof(*range));
        range->step = v.range->step * k.step;
        range->start = v.range->start + k.start * v.range->step;
        range->stop = v.range->start + k.end * v.range->step;
        return (struct jval){.type = J_RANGE, .range = range};
    }
    struct jlist *out = jlist_new(&r->h, k.n);
    for (size_t i = 0; i < k.n; i++)
        out->at[i] = v.list->at[k.start + (int64_t)i * k.step];
    out->n = k.n;
    return v.type == J_LIST ? jval_list(out) : jval_tuple(out);
}

struct jval jaccess_path(struct jrun *r, struct jval v, struct jval path)
{
    if (path.type != J_STR)
        return jaccess_item(r, v, path);
    const struct jstr *s = path.s;
    for (size_t at = 0; at <= s->len;) {
        const char *dot = memchr(s->p + at, '.', s->len - at);
        size_t end = dot ? (size_t)(dot - s->p) : s->len;
        const struct jstr *part = jstr_part(&r->h, s, at, end);
        int64_t index = 0;
        bool is_index = part->len > 0 && part->len < 10;
        for (size_t i = 0; i < part->len && is_index; i++) {
            is_index = part->p[i] >= '0' && part->p[i] <= '9';
            index = index * 10 + (part->p[i] - '0');
        }
        v = jaccess_item(r, v, is_index ? jval_int(index) : jval_str(part));
        at = end + 1;
    }
    return v;
}
