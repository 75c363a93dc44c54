#include "text/jinja_repr.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja.h"
#include "text/jinja_unicode.h"

static void enter(struct jheap *h)
{
    jheap_spend(h, 1);
    if (++h->depth > JINJA_DEPTH_MAX)
        jheap_fail(h, "values are nested too deep to be printed");
}

void jrepr_add_float(struct jtext *t, double x, bool input)
{
    if (!isfinite(x)) {
        jtext_add_lit(t, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf", input);
        return;
    }
    char digits[40];
    int precision = 1;
    do
        snprintf(digits, sizeof(digits), "%.*e", precision - 1, x);
    while (strtod(digits, NULL) != x && ++precision <= 17);
    jheap_spend(t->h, 4);
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) {
        jtext_add(t, digits, (size_t)(e - digits), input);
        jtext_printf(t, input, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else {
        int decimals = precision - 1 - exponent;
        jtext_printf(t, input, "%.*f", decimals > 1 ? decimals : 1, x);
    }
}

static void add_string_repr(struct jtext *t, const struct jstr *s)
{
    bool has_single = memchr(s->p, '\'', s->len) != NULL, has_double = memchr(s->p, '"', s->len) != NULL;
    uint32_t quote = has_single && !has_double ? '"' : '\'';
    if (s->markup)
        jtext_add_lit(t, "Markup(", true);
    jtext_add_code(t, quote, true);
    jheap_spend(t->h, s->n_char / 8);
    for (struct jchars c = {.s = s}; jchars_next(&c);) {
        if (c.code == quote || c.code == '\\')
            jtext_add_lit(t, "\\", c.input);
        if (c.code == '\n')
            jtext_add_lit(t, "\\n", c.input);
        else if (c.code == '\r')
            jtext_add_lit(t, "\\r", c.input);
        else if (c.code == '\t')
            jtext_add_lit(t, "\\t", c.input);
        else if (junicode_is_printable(c.code))
            jtext_add_code(t, c.code, c.input);
        else
            jtext_printf(t, c.input,
                         c.code < 0x100     ? "\\x%02x"
                         : c.code < 0x10000 ? "\\u%04x"
                                            : "\\U%08x",
                         c.code);
    }
    jtext_add_code(t, quote, true);
    if (s->markup)
        jtext_add_lit(t, ")", true);
}

static void add_items(struct jtext *t, const struct jlist *list, const char *open, const char *close)
{
    jtext_add_lit(t, open, true);
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            jtext_add_lit(t, ", ", true);
        jrepr_add_repr(t, list->at[i]);
    }
    jtext_add_lit(t, close, true);
}

static void add_dict(struct jtext *t, const struct jdict *d)
{
    jtext_add_lit(t, "{", true);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jtext_add_lit(t, ", ", true);
        jrepr_add_repr(t, d->key[i]);
        jtext_add_lit(t, ": ", true);
        jrepr_add_repr(t, d->value[i]);
    }
    jtext_add_lit(t, "}", true);
}

static void add_range(struct jtext *t, const struct jrange *r)
{
    jtext_printf(t, true, "range(%lld, %lld", (long long)r->start, (long long)r->stop);
    if (r->step != 1)
        jtext_printf(t, true, ", %lld", (long long)r->step);
    jtext_add_lit(t, ")", true);
}

/* Marks of containers count as input: what a template glues from them is nothing it spelled out. */
static void add_repr(struct jtext *t, struct jval v)
{
    switch (v.type) {
    case J_UNDEFINED:
        jtext_add_lit(t, "Undefined", false);
        break;
    case J_NONE:
        jtext_add_lit(t, "None", false);
        break;
    case J_BOOL:
        jtext_add_lit(t, v.b ? "True" : "False", false);
        break;
    case J_INT:
        jtext_printf(t, v.input, "%lld", (long long)v.i);
        break;
    case J_BIG:
        jtext_add_str(t, v.s);
        break;
    case J_FLOAT:
        jrepr_add_float(t, v.f, v.input);
        break;
    case J_STR:
        add_string_repr(t, v.s);
        break;
    case J_LIST:
        add_items(t, v.list, "[", "]");
        break;
    case J_TUPLE:
        add_items(t, v.list, "(", v.list->n == 1 ? ",)" : ")");
        break;
    case J_DICT:
        add_dict(t, v.dict);
        break;
    case J_RANGE:
        add_range(t, v.range);
        break;
    case J_VIEW:
        jtext_add_lit(t, jval_type_name(v), true);
        add_items(t, jval_items(t->h, v), "([", "])");
        break;
    case J_NAMESPACE:
        jtext_add_lit(t, "<Namespace ", true);
        add_dict(t, v.dict);
        jtext_add_lit(t, ">", true);
        break;
    default: /* Python would print an address */
        jtext_printf(t, true, "<%s>", jval_type_name(v));
    }
}

void jrepr_add_repr(struct jtext *t, struct jval v)
{
    enter(t->h);
    add_repr(t, v);
    t->h->depth--;
}

void jrepr_add_str(struct jtext *t, struct jval v)
{
    if (v.type == J_STR)
        jtext_add_str(t, v.s);
    else if (v.type != J_UNDEFINED)
        jrepr_add_repr(t, v);
}

const struct jstr *jrepr_str(struct jheap *h, struct jval v)
{
    if (v.type == J_STR)
        return jstr_as_markup(h, v.s, false);
    struct jtext t = {.h = h};
    jrepr_add_str(&t, v);
    return jtext_take(&t);
}

static void add_json_string(struct jtext *t, const struct jstr *s, bool ascii)
{
    static const char plain[] = "\b\f\n\r\t", letter[] = "bfnrt";
    jtext_add_lit(t, "\"", true);
    jheap_spend(t->h, s->n_char / 8);
    for (struct jchars c = {.s = s}; jchars_next(&c);) {
        const char *escape = c.code && c.code < 0x20 ? strchr(plain, (int)c.code) : NULL;
        if (c.code == '"' || c.code == '\\')
            jtext_printf(t, c.input, "\\%c", (int)c.code);
        else if (escape)
            jtext_printf(t, c.input, "\\%c", letter[escape - plain]);
        else if (ascii && c.code >= 0x10000)
            jtext_printf(t, c.input, "\\u%04x\\u%04x", 0xd800 + ((c.code - 0x10000) >> 10),
                         0xdc00 + ((c.code - 0x10000) & 0x3ff));
        else if (c.code < 0x20 || (ascii && c.code >= 0x7f))
            jtext_printf(t, c.input, "\\u%04x", c.code);
        else
            jtext_add_code(t, c.code, c.input);
    }
    jtext_add_lit(t, "\"", true);
}

static void add_json(struct jtext *t, struct jval v, const struct jrepr_json *format, size_t level);

static void add_break(struct jtext *t, const struct jrepr_json *format, size_t level)
{
    if (!format->indent)
        return;
    jtext_add_lit(t, "\n", true);
    for (size_t i = 0; i < level; i++)
        jtext_add_str(t, format->indent);
}

static void add_json_list(struct jtext *t, const struct jlist *list, const struct jrepr_json *format,
                          size_t level)
{
    jtext_add_lit(t, "[", true);
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            jtext_add_str(t, format->item_separator);
        add_break(t, format, level + 1);
        add_json(t, list->at[i], format, level + 1);
    }
    if (list->n)
        add_break(t, format, level);
    jtext_add_lit(t, "]", true);
}

static void add_json_float(struct jtext *t, struct jval v)
{
    if (isfinite(v.f))
        jrepr_add_float(t, v.f, v.input);
    else
        jtext_add_lit(t, isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity", v.input);
}

static void add_json_key(struct jtext *t, struct jval key, bool ascii)
{
    if (key.type == J_STR) {
        add_json_string(t, key.s, ascii);
        return;
    }
    if (key.type != J_NONE && !jval_is_number(key))
        jheap_fail(t->h, "keys must be str, int, float, bool or None, not %s", jval_type_name(key));
    jtext_add_lit(t, "\"", true);
    add_json(t, key, &(struct jrepr_json){0}, 0);
    jtext_add_lit(t, "\"", true);
}

static void add_json_dict(struct jtext *t, const struct jdict *d, const struct jrepr_json *format,
                          size_t level)
{
    struct jval *order = jheap_alloc(t->h, d->n, sizeof(*order));
    for (size_t i = 0; i < d->n; i++)
        order[i] = jval_int((int64_t)i);
    if (format->sort_keys)
        jval_sort(t->h, d->key, order, d->n, false);
    jtext_add_lit(t, "{", true);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            jtext_add_str(t, format->item_separator);
        add_break(t, format, level + 1);
        add_json_key(t, d->key[order[i].i], format->ensure_ascii);
        jtext_add_str(t, format->key_separator);
        add_json(t, d->value[order[i].i], format, level + 1);
    }
    if (d->n)
        add_break(t, format, level);
    jtext_add_lit(t, "}", true);
}

static void add_json(struct jtext *t, struct jval v, const struct jrepr_json *format, size_t level)
{
    enter(t->h);
    switch (v.type) {
    case J_NONE:
        jtext_add_lit(t, "null", false);
        break;
    case J_BOOL:
        jtext_add_lit(t, v.b ? "true" : "false", false);
        break;
    case J_INT:
    case J_BIG:
        jrepr_add_repr(t, v);
        break;
    case J_FLOAT:
        add_json_float(t, v);
        break;
    case J_STR:
        add_json_string(t, v.s, format->ensure_ascii);
        break;
    case J_LIST:
    case J_TUPLE:
        add_json_list(t, v.list, format, level);
        break;
    case J_DICT:
        add_json_dict(t, v.dict, format, level);
        break;
    default:
        jheap_fail(t->h, "Object of type %s is not JSON serializable", jval_type_name(v));
    }
    t->h->depth--;
}

void jrepr_add_json(struct jtext *t, struct jval v, const struct jrepr_json *format)
{
    add_json(t, v, format, 0);
}
