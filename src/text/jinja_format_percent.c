/* "..." % values. */
#include <math.h>
#include <string.h>

#include "text/jinja_access.h"
#include "text/jinja_format.h"
#include "text/jinja_repr.h"
#include "text/jinja_spec.h"

struct percent {
    struct jrun *r;
    const struct jstr *s;
    size_t at;
    struct jval values;
    size_t used;
    bool mapped; /* a %(name) was there */
};

static struct jval next_value(struct percent *p)
{
    if (p->values.type != J_TUPLE) {
        if (p->used++)
            jspec_fail(p->r, "not enough arguments for format string");
        return p->values;
    }
    if (p->used >= p->values.list->n)
        jspec_fail(p->r, "not enough arguments for format string");
    return p->values.list->at[p->used++];
}

static char look(const struct percent *p)
{
    if (p->at >= p->s->len)
        jspec_fail(p->r, "incomplete format");
    return p->s->p[p->at];
}

/* Digits, or * and an argument. */
static int64_t percent_number(struct percent *p, int64_t otherwise)
{
    int64_t n = 0;
    if (look(p) == '*') {
        p->at++;
        n = jargs_int(p->r, next_value(p), "* in a format", 0);
    } else {
        if (look(p) < '0' || look(p) > '9')
            return otherwise;
        for (; look(p) >= '0' && look(p) <= '9'; p->at++)
            n = n < JSPEC_WIDTH_MAX ? n * 10 + (look(p) - '0') : n;
    }
    if (n > JSPEC_WIDTH_MAX || n < -JSPEC_WIDTH_MAX)
        jspec_fail(p->r, "the width is too large");
    return n;
}

static struct jval mapped_value(struct percent *p)
{
    size_t from = ++p->at, depth = 1;
    for (; depth; p->at++)
        depth += (size_t)(look(p) == '(') - (size_t)(look(p) == ')');
    if (p->values.type != J_DICT)
        jspec_fail(p->r, "format requires a mapping");
    p->mapped = true;
    const struct jstr *name = jstr_part(&p->r->h, p->s, from, p->at - 1);
    const struct jval *v = jdict_get(&p->r->h, p->values.dict, jval_str(name));
    if (!v)
        jspec_fail(p->r, "a key is not in the mapping");
    return *v;
}

static void percent_flags(struct percent *p, struct jspec *spec)
{
    for (;; p->at++) {
        char c = look(p);
        if (c == '-')
            spec->align = '<';
        else if (c == '+')
            spec->sign = '+';
        else if (c == ' ')
            spec->sign = spec->sign ? spec->sign : ' ';
        else if (c == '0')
            spec->zero = true;
        else if (c == '#')
            spec->alternate = true;
        else
            return;
    }
}

static void percent_number_value(struct percent *p, struct jtext *t, struct jspec *spec, struct jval v)
{
    bool real = strchr("eEfFgG", spec->type) != NULL;
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&p->r->h, v);
    if (!jval_is_number(v))
        jheap_fail(&p->r->h, "%%%c format: a real number is required, not %s", spec->type, jval_type_name(v));
    if (spec->zero && spec->align != '<') {
        spec->fill = '0';
        spec->align = '=';
    }
    if (real) {
        jspec_add_float(p->r, t, spec, v);
        return;
    }
    if (v.type == J_FLOAT) {
        if (strchr("xXo", spec->type) || !(fabs(v.f) < 0x1p62))
            jheap_fail(&p->r->h, "%%%c format: an integer is required, not float", spec->type);
        v = (struct jval){.type = J_INT, .input = v.input, .i = (int64_t)v.f};
    }
    jspec_add_int(p->r, t, spec, v);
}

static void percent_char(struct percent *p, struct jtext *t, const struct jspec *spec, struct jval v)
{
    struct jtext one = {.h = &p->r->h};
    int64_t code;
    if (v.type == J_STR && v.s->n_char == 1)
        jtext_add_str(&one, v.s);
    else if (jval_as_int(v, &code) && code >= 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff))
        jtext_add_code(&one, (uint32_t)code, true);
    else
        jspec_fail(p->r, "%c requires int or char");
    jspec_add_field(t, spec, jtext_take(&one), 0, spec->align ? spec->align : '>', v.input);
}

static void percent_item(struct percent *p, struct jtext *t)
{
    struct jspec spec = {.fill = ' ', .width = -1, .precision = -1};
    struct jval v = {.type = J_MISSING};
    if (look(p) == '(')
        v = mapped_value(p);
    percent_flags(p, &spec);
    spec.width = percent_number(p, -1);
    if (spec.width < -1) {
        spec.align = '<';
        spec.width = -spec.width;
    }
    if (look(p) == '.') {
        p->at++;
        spec.precision = percent_number(p, 0);
        spec.precision = spec.precision < 0 ? 0 : spec.precision;
    }
    while (look(p) == 'l' || look(p) == 'h' || look(p) == 'L')
        p->at++;
    spec.type = look(p);
    p->at++;
    if (spec.type == '%') {
        jtext_add_lit(t, "%", false);
        return;
    }
    if (!spec.type || !strchr("sradiuxXoeEfFgGc", spec.type))
        jspec_fail(p->r, "unsupported format character");
    if (v.type == J_MISSING)
        v = next_value(p);
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
        struct jtext one = {.h = &p->r->h};
        if (spec.type == 's')
            jrepr_add_str(&one, v);
        else
            jrepr_add_repr(&one, v);
        spec.align = spec.align ? spec.align : '>';
        jspec_add_text(p->r, t, &spec, jtext_take(&one));
    } else if (spec.type == 'c') {
        percent_char(p, t, &spec, v);
    } else {
        percent_number_value(p, t, &spec, v);
    }
}

const struct jstr *jformat_percent(struct jrun *r, const struct jstr *format, struct jval values)
{
    struct percent p = {.r = r, .s = format, .values = values};
    struct jtext t = {.h = &r->h};
    while (p.at < format->len) {
        const char *next = memchr(format->p + p.at, '%', format->len - p.at);
        size_t end = next ? (size_t)(next - format->p) : format->len;
        jtext_add_part(&t, format, p.at, end);
        p.at = end + 1;
        jheap_spend(&r->h, 1);
        if (next)
            percent_item(&p, &t);
    }
    /* What Python calls a mapping may hold more than was asked for. */
    bool is_mapping = values.type == J_DICT || values.type == J_LIST || values.type == J_UNDEFINED ||
                      values.type == J_RANGE;
    bool spare = values.type == J_TUPLE ? p.used < values.list->n : !p.used && !p.mapped && !is_mapping;
    if (spare)
        jspec_fail(r, "not all arguments converted during string formatting");
    return jstr_as_markup(&r->h, jtext_take(&t), format->markup);
}
