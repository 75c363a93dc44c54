#include "text/jinja_value.h"

#include <math.h>
#include <string.h>

#include "text/jinja.h"

struct jval jval_lit(struct jheap *h, const char *text)
{
    return jval_str(jstr_view(h, text, strlen(text), false));
}

struct jval jval_iter(struct jheap *h, struct jlist *list, const char *type_name)
{
    struct jiter *iter = jheap_alloc(h, 1, sizeof(*iter));
    iter->list = list;
    iter->type_name = type_name;
    return (struct jval){.type = J_ITER, .iter = iter};
}

struct jlist *jlist_new(struct jheap *h, size_t cap)
{
    struct jlist *list = jheap_alloc(h, 1, sizeof(*list));
    list->at = cap ? jheap_alloc(h, cap, sizeof(*list->at)) : NULL;
    list->cap = cap;
    return list;
}

/* (cap) values that begin with the n old ones. */
static struct jval *grow(struct jheap *h, const struct jval *old, size_t n, size_t cap)
{
    struct jval *at = jheap_alloc(h, cap, sizeof(*at));
    if (n)
        memcpy(at, old, n * sizeof(*at));
    return at;
}

void jlist_add(struct jheap *h, struct jlist *list, struct jval v)
{
    if (list->n == list->cap) {
        list->cap = list->cap ? list->cap * 2 : 4;
        list->at = grow(h, list->at, list->n, list->cap);
    }
    list->at[list->n++] = v;
}

struct jdict *jdict_new(struct jheap *h, size_t cap)
{
    struct jdict *d = jheap_alloc(h, 1, sizeof(*d));
    d->key = cap ? jheap_alloc(h, cap, sizeof(*d->key)) : NULL;
    d->value = cap ? jheap_alloc(h, cap, sizeof(*d->value)) : NULL;
    d->cap = cap;
    return d;
}

static bool is_hashable(struct jval v)
{
    if (v.type == J_LIST || v.type == J_DICT)
        return false;
    for (size_t i = 0; v.type == J_TUPLE && i < v.list->n; i++)
        if (!is_hashable(v.list->at[i]))
            return false;
    return true;
}

/* Dicts of templates are small: a scan beats a table, and steps bound the large ones. */
static size_t find_key(struct jheap *h, const struct jdict *d, struct jval key)
{
    jheap_spend(h, d->n / 8);
    if (key.type == J_STR) {
        for (size_t i = 0; i < d->n; i++)
            if (d->key[i].type == J_STR && jstr_equal(d->key[i].s, key.s))
                return i;
        return SIZE_MAX;
    }
    if (!is_hashable(key))
        jheap_fail(h, "unhashable type: '%s'", jval_type_name(key));
    for (size_t i = 0; i < d->n; i++)
        if (jval_equal(h, d->key[i], key))
            return i;
    return SIZE_MAX;
}

const struct jval *jdict_get(struct jheap *h, const struct jdict *d, struct jval key)
{
    size_t i = find_key(h, d, key);
    return i == SIZE_MAX ? NULL : &d->value[i];
}

static void add_pair(struct jheap *h, struct jdict *d, struct jval key, struct jval value)
{
    if (d->n == d->cap) {
        d->cap = d->cap ? d->cap * 2 : 4;
        d->key = grow(h, d->key, d->n, d->cap);
        d->value = grow(h, d->value, d->n, d->cap);
    }
    d->key[d->n] = key;
    d->value[d->n++] = value;
}

void jdict_set(struct jheap *h, struct jdict *d, struct jval key, struct jval value)
{
    size_t i = find_key(h, d, key);
    if (i != SIZE_MAX)
        d->value[i] = value;
    else
        add_pair(h, d, key, value);
}

static struct jval string_from_json(struct jheap *h, const json_t *json, bool input)
{
    const char *p = json_string_value(json);
    size_t len = json_string_length(json), prefix = strlen(JINJA_BIG_INT);
    struct jval v = jval_str(jstr_view(h, p, len, input));
    if (len <= prefix || memcmp(p, JINJA_BIG_INT, prefix))
        return v;
    size_t digits = prefix + (p[prefix] == '-');
    if (digits == len || strspn(p + digits, "0123456789") != len - digits)
        return v;
    return (struct jval){.type = J_BIG, .input = input, .s = jstr_part(h, v.s, prefix, len)};
}

static struct jval from_json(struct jheap *h, const json_t *json, bool input, int depth)
{
    if (depth > JINJA_VALUE_DEPTH_MAX)
        jheap_fail(h, "a value has more than %d levels", JINJA_VALUE_DEPTH_MAX);
    switch (json_typeof(json)) {
    case JSON_OBJECT: {
        struct jdict *d = jdict_new(h, json_object_size(json));
        const char *key;
        size_t len;
        json_t *item;
        json_object_keylen_foreach((json_t *)(uintptr_t)json, key, len, item)
        {
            struct jval k = jval_str(jstr_view(h, key, len, input)); /* distinct: jansson's are */
            add_pair(h, d, k, from_json(h, item, input, depth + 1));
        }
        return jval_dict(d);
    }
    case JSON_ARRAY: {
        struct jlist *list = jlist_new(h, json_array_size(json));
        for (size_t i = 0; i < json_array_size(json); i++)
            list->at[list->n++] = from_json(h, json_array_get(json, i), input, depth + 1);
        return jval_list(list);
    }
    case JSON_STRING:
        return string_from_json(h, json, input);
    case JSON_INTEGER:
        return (struct jval){.type = J_INT, .input = input, .i = json_integer_value(json)};
    case JSON_REAL:
        return (struct jval){.type = J_FLOAT, .input = input, .f = json_real_value(json)};
    case JSON_TRUE:
    case JSON_FALSE:
        return jval_bool(json_is_true(json));
    default:
        return JVAL_NONE;
    }
}

struct jval jval_from_json(struct jheap *h, const json_t *json, bool input)
{
    return json ? from_json(h, json, input, 0) : JVAL_NONE;
}

const char *jval_type_name(struct jval v)
{
    static const char *const names[] = {
        [J_MISSING] = "missing",
        [J_UNDEFINED] = "Undefined",
        [J_NONE] = "NoneType",
        [J_BOOL] = "bool",
        [J_INT] = "int",
        [J_BIG] = "int",
        [J_FLOAT] = "float",
        [J_STR] = "str",
        [J_LIST] = "list",
        [J_TUPLE] = "tuple",
        [J_DICT] = "dict",
        [J_RANGE] = "range",
        [J_VIEW] = "dict_keys",
        [J_ITER] = "generator",
        [J_NAMESPACE] = "Namespace",
        [J_FUNC] = "function",
        [J_METHOD] = "method",
        [J_MACRO] = "Macro",
        [J_LOOP] = "LoopContext",
        [J_JOINER] = "Joiner",
        [J_CYCLER] = "Cycler",
    };
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    if (v.type == J_VIEW)
        return views[v.view->kind];
    if (v.type == J_ITER)
        return v.iter->type_name;
    if (v.type == J_STR && v.s->markup)
        return "Markup";
    return names[v.type];
}

bool jval_truth(struct jval v)
{
    size_t n;
    switch (v.type) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v.b;
    case J_INT:
        return v.i != 0;
    case J_FLOAT:
        return v.f != 0.0;
    case J_BIG: /* beyond 64 bits: not zero */
        return true;
    default:
        return jval_len(v, &n) ? n != 0 : true;
    }
}

bool jval_is_number(struct jval v)
{
    return v.type == J_BOOL || v.type == J_INT || v.type == J_BIG || v.type == J_FLOAT;
}

bool jval_is_callable(struct jval v)
{
    /* Undefined has a __call__, which raises. */
    return v.type == J_FUNC || v.type == J_METHOD || v.type == J_MACRO || v.type == J_LOOP ||
           v.type == J_JOINER || v.type == J_UNDEFINED;
}

bool jval_is_input(struct jval v)
{
    return v.type == J_STR ? jstr_any_input(v.s) : v.input;
}

bool jval_as_int(struct jval v, int64_t *out)
{
    if (v.type != J_INT && v.type != J_BOOL)
        return false;
    *out = v.type == J_INT ? v.i : v.b;
    return true;
}

bool jval_as_double(struct jval v, double *out)
{
    int64_t i;
    if (v.type == J_FLOAT) {
        *out = v.f;
    } else if (jval_as_int(v, &i)) {
        *out = (double)i;
    } else if (v.type == J_BIG) {
        char digits[400];
        size_t n = v.s->len < sizeof(digits) ? v.s->len : sizeof(digits) - 1;
        memcpy(digits, v.s->p, n);
        digits[n] = 0;
        *out = v.s->len >= sizeof(digits) ? (digits[0] == '-' ? -HUGE_VAL : HUGE_VAL) : strtod(digits, NULL);
    } else {
        return false;
    }
    return true;
}

int64_t jrange_len(const struct jrange *r)
{
    /* jinja_func.c keeps start, stop and step within what cannot overflow here. */
    if (r->step > 0)
        return r->start < r->stop ? (r->stop - r->start - 1) / r->step + 1 : 0;
    return r->start > r->stop ? (r->start - r->stop - 1) / -r->step + 1 : 0;
}

static struct jlist *chars_of(struct jheap *h, const struct jstr *s)
{
    struct jlist *list = jlist_new(h, s->n_char);
    struct jchars c = {.s = s};
    for (size_t from = 0; jchars_next(&c); from = c.at) {
        struct jstr *one = jheap_alloc(h, 1, sizeof(*one));
        *one = (struct jstr){.p = s->p + from, .len = c.at - from, .n_char = 1, .input = c.input};
        list->at[list->n++] = jval_str(one);
    }
    return list;
}

static struct jlist *items_of_view(struct jheap *h, const struct jview *view)
{
    const struct jdict *d = view->dict;
    struct jlist *list = jlist_new(h, d->n);
    for (size_t i = 0; i < d->n; i++) {
        struct jval v = view->kind == JVIEW_KEYS ? d->key[i] : d->value[i];
        if (view->kind == JVIEW_ITEMS) {
            struct jlist *pair = jlist_new(h, 2);
            pair->at[0] = d->key[i];
            pair->at[1] = d->value[i];
            pair->n = 2;
            v = jval_tuple(pair);
        }
        list->at[list->n++] = v;
    }
    return list;
}

static struct jlist *rest_of_iter(struct jheap *h, struct jiter *iter)
{
    struct jlist *rest = iter->list;
    if (iter->at) {
        rest = jlist_new(h, 0);
        rest->at = iter->list->at + iter->at;
        rest->n = rest->cap = iter->list->n - iter->at;
    }
    iter->at = iter->list->n;
    return rest;
}

bool jval_is_iterable(struct jval v)
{
    switch (v.type) {
    case J_UNDEFINED:
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_RANGE:
    case J_VIEW:
    case J_ITER:
        return true;
    default:
        return false;
    }
}

struct jlist *jval_items(struct jheap *h, struct jval v)
{
    jheap_spend(h, 1);
    switch (v.type) {
    case J_UNDEFINED:
        return jlist_new(h, 0);
    case J_STR:
        return chars_of(h, v.s);
    case J_LIST:
    case J_TUPLE:
        return v.list;
    case J_DICT:
        return items_of_view(h, &(struct jview){v.dict, JVIEW_KEYS});
    case J_VIEW:
        return items_of_view(h, v.view);
    case J_ITER:
        return rest_of_iter(h, v.iter);
    case J_RANGE: {
        size_t n = (size_t)jrange_len(v.range);
        struct jlist *list = jlist_new(h, n);
        for (size_t i = 0; i < n; i++)
            list->at[i] = jval_int(v.range->start + (int64_t)i * v.range->step);
        list->n = n;
        return list;
    }
    default:
        jheap_fail(h, "'%s' object is not iterable", jval_type_name(v));
    }
}

bool jval_len(struct jval v, size_t *n)
{
    *n = 0;
    switch (v.type) {
    case J_UNDEFINED:
        return true;
    case J_STR:
        *n = v.s->n_char;
        return true;
    case J_LIST:
    case J_TUPLE:
        *n = v.list->n;
        return true;
    case J_DICT:
        *n = v.dict->n;
        return true;
    case J_VIEW:
        *n = v.view->dict->n;
        return true;
    case J_RANGE:
        *n = (size_t)jrange_len(v.range);
        return true;
    default:
        return false;
    }
}

_Noreturn void jval_fail_undefined(struct jheap *h, struct jval v)
{
    jheap_fail(h, "'%s' is undefined", v.undefined ? v.undefined : "value");
}
