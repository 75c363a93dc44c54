/* Filters of numbers and single values; and the way to all filters. */
#include "text/jinja_filter.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat_json.h"
#include "text/jinja_access.h"
#include "text/jinja_op.h"
#include "text/jinja_repr.h"
#include "text/jinja_unicode.h"

static struct jval filter_abs(struct jrun *r, struct jval v, const struct jargs *a)
{
    int64_t i;
    jargs_none(r, a, "abs");
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if (!jval_is_number(v))
        jheap_fail(&r->h, "bad operand type for abs(): '%s'", jval_type_name(v));
    if (v.type == J_FLOAT)
        return jval_float(fabs(v.f));
    bool negative = v.type == J_BIG ? v.s->p[0] == '-' : jval_as_int(v, &i) && i < 0;
    return negative ? jop_unary(r, JOP_SUB, v) : jop_unary(r, JOP_ADD, v);
}

static struct jval filter_default(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[2];
    jargs_bind(r, a, "default", "default_value,boolean", 0, p);
    if (v.type != J_UNDEFINED && (jval_truth(v) || !jargs_bool(p[1], false)))
        return v;
    return p[0].type == J_MISSING ? jval_lit(&r->h, "") : p[0];
}

/* Strings that Python's int() and float() take: trimmed, single underscores between digits. False: not such a
 * one. */
static bool number_text(struct jrun *r, const struct jstr *s, char *dst, size_t cap)
{
    size_t n = 0;
    bool digit = false;
    struct jchars c = {.s = s};
    size_t from = 0, to = s->len;
    while (jchars_next(&c) && junicode_is_space(c.code))
        from = c.at;
    while (to > from && (unsigned char)s->p[to - 1] < 0x80 && junicode_is_space((uint32_t)s->p[to - 1]))
        to--;
    jheap_spend(&r->h, s->len / 16);
    for (size_t i = from; i < to; i++) {
        bool is_digit = (s->p[i] >= '0' && s->p[i] <= '9') || (s->p[i] | 0x20) >= 'a';
        if (s->p[i] == '_') {
            if (!digit || i + 1 >= to || s->p[i + 1] == '_')
                return false;
            digit = false;
            continue;
        }
        if (n + 1 >= cap || s->p[i] == 0)
            return false;
        digit = is_digit;
        dst[n++] = s->p[i];
    }
    dst[n] = 0;
    return n > 0;
}

static bool parse_float(struct jrun *r, const struct jstr *s, double *out)
{
    char text[400], *end;
    if (!number_text(r, s, text, sizeof(text)) || strpbrk(text, "xX"))
        return false;
    size_t sign = text[0] == '-' || text[0] == '+';
    if (strspn(text + sign, "0123456789.eE+-") != strlen(text + sign) && strcasecmp(text + sign, "inf") &&
        strcasecmp(text + sign, "infinity") && strcasecmp(text + sign, "nan"))
        return false;
    *out = strtod(text, &end);
    return *end == 0;
}

static bool parse_int(struct jrun *r, const struct jstr *s, int64_t base, struct jval *out)
{
    char text[400], *end;
    if (!number_text(r, s, text, sizeof(text)) || base < 0 || base == 1 || base > 36)
        return false;
    char *p = text + (text[0] == '-' || text[0] == '+');
    char letter = p[0] == '0' ? (char)(p[1] | 0x20) : 0;
    int64_t named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (named && (base == named || base == 0)) {
        base = named;
        memmove(p, p + 2, strlen(p + 2) + 1);
    }
    if (!p[0] || p[0] == '-' || p[0] == '+' || p[0] == ' ' ||
        (base == 0 && p[0] == '0' && strspn(p, "0") != strlen(p)))
        return false;
    errno = 0;
    long long value = strtoll(text, &end, base ? (int)base : 10);
    if (*end || strpbrk(text, " \t\n\v\f\r"))
        return false;
    if (base == 16 && (p[0] == '0' && (p[1] | 0x20) == 'x'))
        return false;
    *out = jval_int(value);
    if (errno == ERANGE) {
        if (base != 10)
            jheap_fail(&r->h, "an integer does not fit 64 bits");
        p += strspn(p, "0");
        struct jtext t = {.h = &r->h};
        jtext_add_lit(&t, text[0] == '-' ? "-" : "", true);
        jtext_add_lit(&t, p, true);
        *out = (struct jval){.type = J_BIG, .s = jtext_take(&t)};
    }
    return true;
}

static struct jval int_of_float(struct jrun *r, double f, bool input)
{
    if (!isfinite(f))
        jheap_fail(&r->h, "cannot convert float %s to integer", isnan(f) ? "NaN" : "infinity");
    f = trunc(f);
    if (fabs(f) < 0x1p63)
        return (struct jval){.type = J_INT, .input = input, .i = (int64_t)f};
    struct jtext t = {.h = &r->h};
    jtext_printf(&t, input, "%.0f", f);
    return (struct jval){.type = J_BIG, .input = input, .s = jtext_take(&t)};
}

static struct jval filter_int(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[2], out;
    double f;
    jargs_bind(r, a, "int", "default,base", 0, p);
    int64_t base = jargs_int(r, p[1], "int", 10);
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if (v.type == J_STR && parse_int(r, v.s, base, &out)) {
        out.input = jstr_any_input(v.s);
        return out;
    }
    if (v.type == J_STR && parse_float(r, v.s, &f))
        return isnan(f) ? (p[0].type == J_MISSING ? jval_int(0) : p[0])
                        : int_of_float(r, f, jstr_any_input(v.s));
    if (v.type == J_FLOAT && isnan(v.f))
        return p[0].type == J_MISSING ? jval_int(0) : p[0];
    if (v.type == J_FLOAT)
        return int_of_float(r, v.f, v.input);
    if (jval_is_number(v))
        return jop_unary(r, JOP_ADD, v);
    return p[0].type == J_MISSING ? jval_int(0) : p[0];
}

static struct jval filter_float(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p;
    double f;
    jargs_bind(r, a, "float", "default", 0, &p);
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if ((v.type == J_STR && parse_float(r, v.s, &f)) || jval_as_double(v, &f))
        return (struct jval){.type = J_FLOAT, .input = jval_is_input(v), .f = f};
    return p.type == J_MISSING ? jval_float(0.0) : p;
}

/* Python's round of a float: half to even on the exact binary value, which is what printf does. */
static double round_float(struct jrun *r, double x, int64_t digits)
{
    char text[700];
    if (!isfinite(x) || digits > 323)
        return x;
    if (digits < -308)
        return copysign(0.0, x);
    if (digits >= 0) {
        snprintf(text, sizeof(text), "%.*f", (int)digits, x);
        return strtod(text, NULL);
    }
    double scale = pow(10.0, (double)-digits), y = nearbyint(x / scale) * scale;
    if (!isfinite(y))
        jheap_fail(&r->h, "rounded value too large to represent");
    return y;
}

static struct jval filter_round(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[2];
    double x;
    int64_t i;
    jargs_bind(r, a, "round", "precision,method", 0, p);
    int64_t digits = jargs_int(r, p[0], "round", 0);
    const struct jstr *method = jargs_str(r, p[1], "round");
    bool common = !method || jstr_is(method, "common");
    if (!common && !jstr_is(method, "ceil") && !jstr_is(method, "floor"))
        jheap_fail(&r->h, "method must be common, ceil or floor");
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if (!jval_as_double(v, &x))
        jheap_fail(&r->h, "type %s doesn't define __round__ method", jval_type_name(v));
    if (common && (v.type == J_BIG || jval_as_int(v, &i))) {
        if (digits >= 0)
            return jop_unary(r, JOP_ADD, v);
        if (digits < -18 || v.type == J_BIG)
            jheap_fail(&r->h, "an integer does not fit 64 bits");
        int64_t scale = 1;
        for (int64_t k = 0; k > digits; k--)
            scale *= 10;
        int64_t rest = ((i % scale) + scale) % scale, low = i - rest, half = scale / 2;
        bool up = rest > half || (rest == half && (low / scale) % 2 != 0);
        return (struct jval){.type = J_INT, .input = v.input, .i = up ? low + scale : low};
    }
    if (!common) {
        double scale = pow(10.0, (double)digits);
        x = (jstr_is(method, "ceil") ? ceil(x * scale) : floor(x * scale)) / scale;
    } else {
        x = round_float(r, x, digits);
    }
    return (struct jval){.type = J_FLOAT, .input = v.input, .f = x};
}

/* indent of json.dumps: an integer is that many spaces, None is none. */
static const struct jstr *indent_of(struct jrun *r, struct jval v)
{
    char spaces[64];
    if (v.type == J_MISSING || v.type == J_NONE)
        return NULL;
    if (v.type == J_STR)
        return v.s;
    int64_t n = jargs_int(r, v, "tojson", 0);
    if (n > (int64_t)sizeof(spaces))
        jheap_fail(&r->h, "tojson: an indent of more than %zu spaces", sizeof(spaces));
    memset(spaces, ' ', sizeof(spaces));
    return jstr_new(&r->h, spaces, n > 0 ? (size_t)n : 0, false);
}

static struct jval filter_tojson(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[4];
    jargs_bind(r, a, "tojson", "ensure_ascii,indent,separators,sort_keys", 0, p);
    struct jrepr_json format = {
        .ensure_ascii = jargs_bool(p[0], false),
        .sort_keys = jargs_bool(p[3], false),
        .indent = indent_of(r, p[1]),
    };
    format.item_separator = jstr_view(&r->h, ", ", format.indent ? 1 : 2, true);
    format.key_separator = jstr_view(&r->h, ": ", 2, true);
    if (p[2].type != J_MISSING && p[2].type != J_NONE) {
        const struct jlist *pair = jval_items(&r->h, p[2]);
        if (pair->n != 2)
            jheap_fail(&r->h, "tojson: separators must be two strings");
        format.item_separator = jargs_str(r, pair->at[0], "tojson: separators");
        format.key_separator = jargs_str(r, pair->at[1], "tojson: separators");
    }
    struct jtext t = {.h = &r->h};
    jrepr_add_json(&t, v, &format);
    return jval_str(jtext_take(&t));
}

/* Not of transformers, but some published templates call it: the value of a JSON text. */
static struct jval filter_from_json(struct jrun *r, struct jval v, const struct jargs *a)
{
    json_t *json;
    struct nyb_err err;
    jargs_none(r, a, "from_json");
    const struct jstr *s = jargs_str(r, v, "from_json");
    jheap_spend(&r->h, s->len);
    if (chat_json_parse(&json, s->p, s->len, "from_json", &err) != NYB_OK)
        jheap_fail(&r->h, "from_json: %s", err.message);
    /* Strings stay where jansson has them, so the tree lives as long as the render. */
    if (!r->parsed)
        r->parsed = json_array();
    if (json_array_append_new(r->parsed, json))
        jheap_fail(&r->h, "out of memory");
    return jval_from_json(&r->h, json, jstr_any_input(s));
}

static struct jval filter_safe(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "safe");
    const struct jstr *s = v.type == J_STR ? v.s : jrepr_str(&r->h, v);
    return jval_str(jstr_as_markup(&r->h, s, true));
}

static struct jval filter_string(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "string");
    return v.type == J_STR ? v : jval_str(jrepr_str(&r->h, v));
}

static struct jval filter_escape(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "escape");
    return jval_str(jop_escape(r, v.type == J_STR ? v.s : jrepr_str(&r->h, v)));
}

static struct jval filter_forceescape(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "forceescape");
    return jval_str(jop_escape(r, jrepr_str(&r->h, v)));
}

static struct jval filter_attr(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval name;
    jargs_bind(r, a, "attr", "name", 1, &name);
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    const struct jstr *s = jrepr_str(&r->h, name);
    if (v.type == J_DICT && !jmethod_find(J_DICT, s)) /* attributes only, never items */
        return jval_undefined("the attribute");
    return jaccess_attr(r, v, s);
}

static const struct jfilter jfilter_value[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"from_json", filter_from_json},
    {"int", filter_int},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"tojson", filter_tojson},
    {NULL, NULL},
};

const struct jfilter *jfilter_find(const char *name)
{
    const struct jfilter *const tables[] = {jfilter_value, jfilter_text, jfilter_seq, jfilter_pick};
    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
        for (const struct jfilter *f = tables[t]; f->name; f++)
            if (!strcmp(f->name, name))
                return f;
    return NULL;
}
