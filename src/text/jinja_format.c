#include "text/jinja_format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_access.h"
#include "text/jinja_repr.h"

#define WIDTH_MAX     1000000
#define PRECISION_MAX 300

struct spec {
    uint32_t fill;
    char align; /* one of "<>=^", 0: by type */
    char sign;  /* one of "+- ", 0: '-' */
    bool alternate, zero;
    int64_t width, precision; /* -1: none */
    char group;               /* ',' or '_', 0: none */
    char type;                /* 0: none */
};

static _Noreturn void fail_format(struct jrun *r, const char *why)
{
    jheap_fail(&r->h, "format: %s", why);
}

/* Put body (with a sign and a prefix of `head` bytes) into its field. */
static void add_field(struct jtext *t, const struct spec *spec, const struct jstr *body, size_t head,
                      char align, bool input)
{
    size_t pad = spec->width > (int64_t)body->n_char ? (size_t)spec->width - body->n_char : 0;
    size_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    size_t middle = align == '=' ? pad : 0;
    jheap_spend(t->h, pad);
    for (size_t i = 0; i < left; i++)
        jtext_add_code(t, spec->fill, input);
    jtext_add_part(t, body, 0, head);
    for (size_t i = 0; i < middle; i++)
        jtext_add_code(t, spec->fill, input);
    jtext_add_part(t, body, head, body->len);
    for (size_t i = left + middle; i < pad; i++)
        jtext_add_code(t, spec->fill, input);
}

static void add_sign(struct jtext *t, const struct spec *spec, bool negative, bool input)
{
    if (negative)
        jtext_add_lit(t, "-", input);
    else if (spec->sign == '+' || spec->sign == ' ')
        jtext_add(t, &spec->sign, 1, input);
}

/* Digits with a separator before each `every` of them from the right. */
static void add_grouped(struct jtext *t, const char *digits, size_t n, char group, size_t every, bool input)
{
    for (size_t i = 0; i < n; i++) {
        if (group && i && (n - i) % every == 0)
            jtext_add(t, &group, 1, input);
        jtext_add(t, digits + i, 1, input);
    }
}

static void add_int(struct jrun *r, struct jtext *out, const struct spec *spec, struct jval v)
{
    char digits[80];
    struct jtext t = {.h = &r->h};
    char type = spec->type ? spec->type : 'd';
    bool negative = v.type == J_BIG ? v.s->p[0] == '-' : jval_truth(v) && v.type == J_INT && v.i < 0;
    uint64_t u = v.type == J_BOOL  ? v.b
                 : v.type == J_INT ? (negative ? 0 - (uint64_t)v.i : (uint64_t)v.i)
                                   : 0;
    size_t n = 0;
    if (v.type == J_BIG && type != 'd' && type != 'i' && type != 'u' && type != 'n')
        fail_format(r, "an integer does not fit 64 bits");
    add_sign(&t, spec, negative, v.input);
    if (spec->alternate && strchr("xXob", type))
        jtext_printf(&t, v.input, "0%c", type);
    size_t head = t.len;
    if (v.type == J_BIG) {
        jtext_add_part(&t, v.s, negative, v.s->len);
        if (spec->group)
            fail_format(r, "an integer does not fit 64 bits");
    } else if (type == 'b') {
        for (int bit = 63; bit >= 0; bit--)
            if (n || (u >> bit & 1) || bit == 0)
                digits[n++] = (char)('0' + (u >> bit & 1));
    } else {
        const char *f = type == 'x' ? "%llx" : type == 'X' ? "%llX" : type == 'o' ? "%llo" : "%llu";
        n = (size_t)snprintf(digits, sizeof(digits), f, (unsigned long long)u);
    }
    for (int64_t i = (int64_t)n; i < spec->precision; i++)
        jtext_add_lit(&t, "0", v.input);
    add_grouped(&t, digits, n, spec->group, strchr("xXob", type) ? 4 : 3, v.input);
    char align = spec->align ? spec->align : '>';
    add_field(out, spec, jtext_take(&t), head, align, v.input);
}

/* The digits of a finite float by printf, with Python's exponents ("e+05" is the same in C). */
static void print_float(struct jrun *r, char *dst, size_t cap, const struct spec *spec, double x, char type)
{
    char f[16];
    if (spec->precision > PRECISION_MAX)
        fail_format(r, "the precision is too large");
    snprintf(f, sizeof(f), "%%%s.*%c", spec->alternate ? "#" : "", type);
    snprintf(dst, cap, f, (int)(spec->precision < 0 ? 6 : spec->precision), x);
}

static void add_float(struct jrun *r, struct jtext *out, const struct spec *spec, struct jval v)
{
    char digits[1024];
    double x = 0;
    struct jtext t = {.h = &r->h};
    jval_as_double(v, &x);
    bool negative = signbit(x) && !isnan(x);
    char type = spec->type;
    add_sign(&t, spec, negative, v.input);
    size_t head = t.len;
    x = fabs(x);
    if (!isfinite(x)) {
        bool upper = type == 'F' || type == 'E' || type == 'G';
        jtext_add_lit(&t, isnan(x) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf"), v.input);
    } else if (!type && spec->precision < 0) {
        jrepr_add_float(&t, x, v.input);
    } else {
        print_float(r, digits, sizeof(digits), spec, type == '%' ? x * 100 : x,
                    type == '%'            ? 'f'
                    : type == 'n' || !type ? 'g'
                                           : type);
        size_t n = strspn(digits, "0123456789");
        add_grouped(&t, digits, n, spec->group, 3, v.input);
        jtext_add_lit(&t, digits + n, v.input);
        if (!type && !strpbrk(digits, ".en"))
            jtext_add_lit(&t, ".0", v.input);
        if (type == '%')
            jtext_add_lit(&t, "%", v.input);
    }
    add_field(out, spec, jtext_take(&t), head, spec->align ? spec->align : '>', v.input);
}

static void add_text(struct jrun *r, struct jtext *out, const struct spec *spec, const struct jstr *s)
{
    if (spec->precision >= 0 && (uint64_t)spec->precision < s->n_char)
        s = jstr_part(&r->h, s, 0, jstr_offset(&r->h, s, (size_t)spec->precision));
    add_field(out, spec, s, 0, spec->align ? spec->align : '<', jstr_any_input(s));
}

/* ---- % ---- */

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
            fail_format(p->r, "not enough arguments for format string");
        return p->values;
    }
    if (p->used >= p->values.list->n)
        fail_format(p->r, "not enough arguments for format string");
    return p->values.list->at[p->used++];
}

static char look(const struct percent *p)
{
    if (p->at >= p->s->len)
        fail_format(p->r, "incomplete format");
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
            n = n < WIDTH_MAX ? n * 10 + (look(p) - '0') : n;
    }
    if (n > WIDTH_MAX || n < -WIDTH_MAX)
        fail_format(p->r, "the width is too large");
    return n;
}

static struct jval mapped_value(struct percent *p)
{
    size_t from = ++p->at, depth = 1;
    for (; depth; p->at++)
        depth += (size_t)(look(p) == '(') - (size_t)(look(p) == ')');
    if (p->values.type != J_DICT)
        fail_format(p->r, "format requires a mapping");
    p->mapped = true;
    const struct jstr *name = jstr_part(&p->r->h, p->s, from, p->at - 1);
    const struct jval *v = jdict_get(&p->r->h, p->values.dict, jval_str(name));
    if (!v)
        fail_format(p->r, "a key is not in the mapping");
    return *v;
}

static void percent_flags(struct percent *p, struct spec *spec)
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

static void percent_number_value(struct percent *p, struct jtext *t, struct spec *spec, struct jval v)
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
        add_float(p->r, t, spec, v);
        return;
    }
    if (v.type == J_FLOAT) {
        if (strchr("xXo", spec->type) || !(fabs(v.f) < 0x1p62))
            jheap_fail(&p->r->h, "%%%c format: an integer is required, not float", spec->type);
        v = (struct jval){.type = J_INT, .input = v.input, .i = (int64_t)v.f};
    }
    add_int(p->r, t, spec, v);
}

static void percent_char(struct percent *p, struct jtext *t, const struct spec *spec, struct jval v)
{
    struct jtext one = {.h = &p->r->h};
    int64_t code;
    if (v.type == J_STR && v.s->n_char == 1)
        jtext_add_str(&one, v.s);
    else if (jval_as_int(v, &code) && code >= 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff))
        jtext_add_code(&one, (uint32_t)code, true);
    else
        fail_format(p->r, "%c requires int or char");
    add_field(t, spec, jtext_take(&one), 0, spec->align ? spec->align : '>', v.input);
}

static void percent_item(struct percent *p, struct jtext *t)
{
    struct spec spec = {.fill = ' ', .width = -1, .precision = -1};
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
        fail_format(p->r, "unsupported format character");
    if (v.type == J_MISSING)
        v = next_value(p);
    if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
        struct jtext one = {.h = &p->r->h};
        if (spec.type == 's')
            jrepr_add_str(&one, v);
        else
            jrepr_add_repr(&one, v);
        spec.align = spec.align ? spec.align : '>';
        add_text(p->r, t, &spec, jtext_take(&one));
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
        fail_format(r, "not all arguments converted during string formatting");
    return jstr_as_markup(&r->h, jtext_take(&t), format->markup);
}

/* ---- format() ---- */

struct braces {
    struct jrun *r;
    const struct jargs *a;
    int64_t next; /* of {}; -1: numbers are given */
};

static bool is_digits(const char *p, size_t n)
{
    return n > 0 && n < 10 && strspn(p, "0123456789") >= n;
}

static struct jval braces_arg(struct braces *b, const char *p, size_t n)
{
    int64_t index = -1;
    if (n == 0) {
        if (b->next < 0)
            fail_format(b->r, "cannot switch from manual field specification to automatic field numbering");
        index = b->next++;
    } else if (is_digits(p, n)) {
        if (b->next > 0)
            fail_format(b->r, "cannot switch from automatic field numbering to manual field specification");
        b->next = -1;
        index = strtol(p, NULL, 10);
    }
    if (index >= 0) {
        if ((uint64_t)index >= b->a->n)
            fail_format(b->r, "Replacement index out of range for positional args tuple");
        return b->a->at[index];
    }
    for (size_t i = 0; i < b->a->n_kw; i++)
        if (b->a->kw[i].name->len == n && !memcmp(b->a->kw[i].name->p, p, n))
            return b->a->kw[i].value;
    fail_format(b->r, "a named argument is missing");
}

/* name.attribute[item]: the sandbox looks these up as the template would. */
static struct jval braces_field(struct braces *b, const struct jstr *s, size_t from, size_t to)
{
    size_t n = 0;
    while (from + n < to && s->p[from + n] != '.' && s->p[from + n] != '[')
        n++;
    struct jval v = braces_arg(b, s->p + from, n);
    for (size_t at = from + n; at < to;) {
        bool item = s->p[at] == '[';
        size_t end = ++at;
        while (end < to && (item ? s->p[end] != ']' : s->p[end] != '.' && s->p[end] != '['))
            end++;
        if (end == at || (item && end == to))
            fail_format(b->r, "a replacement field is malformed");
        struct jval key = jval_str(jstr_part(&b->r->h, s, at, end));
        if (item && is_digits(s->p + at, end - at))
            key = jval_int(strtol(s->p + at, NULL, 10));
        v = item ? jaccess_item(b->r, v, key) : jaccess_attr(b->r, v, key.s);
        at = end + item;
    }
    return v;
}

static int64_t spec_number(struct braces *b, const struct jstr *s, size_t *at)
{
    int64_t n = -1;
    for (; *at < s->len && s->p[*at] >= '0' && s->p[*at] <= '9'; ++*at) {
        n = (n < 0 ? 0 : n * 10) + (s->p[*at] - '0');
        if (n > WIDTH_MAX)
            fail_format(b->r, "the width is too large");
    }
    return n;
}

static struct spec parse_spec(struct braces *b, const struct jstr *s)
{
    struct spec spec = {.fill = ' ', .width = -1, .precision = -1};
    size_t at = 0;
    struct jchars first = {.s = s};
    if (jchars_next(&first) && first.at < s->len && strchr("<>=^", s->p[first.at])) {
        spec.fill = first.code;
        spec.align = s->p[first.at];
        at = first.at + 1;
    } else if (s->len && strchr("<>=^", s->p[0]) && s->p[0]) {
        spec.align = s->p[0];
        at = 1;
    }
    if (at < s->len && strchr("+- ", s->p[at]) && s->p[at])
        spec.sign = s->p[at++];
    if (at < s->len && s->p[at] == '#') {
        spec.alternate = true;
        at++;
    }
    if (at < s->len && s->p[at] == '0' && !spec.align) {
        spec.fill = '0';
        spec.align = '=';
        spec.zero = true;
        at++;
    }
    spec.width = spec_number(b, s, &at);
    if (at < s->len && (s->p[at] == ',' || s->p[at] == '_'))
        spec.group = s->p[at++];
    if (at < s->len && s->p[at] == '.') {
        at++;
        spec.precision = spec_number(b, s, &at);
        if (spec.precision < 0)
            fail_format(b->r, "Format specifier missing precision");
    }
    if (at < s->len)
        spec.type = s->p[at++];
    if (at < s->len)
        fail_format(b->r, "Invalid format specifier");
    if (spec.zero && spec.group)
        fail_format(b->r, "zeros with separators between them are not supported");
    return spec;
}

static void add_formatted(struct braces *b, struct jtext *t, struct jval v, const struct jstr *text)
{
    struct spec spec = parse_spec(b, text);
    bool is_int = v.type == J_INT || v.type == J_BIG || (v.type == J_BOOL && text->len);
    if (is_int && (!spec.type || strchr("dxXobn", spec.type))) {
        if (spec.precision >= 0)
            fail_format(b->r, "Precision not allowed in integer format specifier");
        add_int(b->r, t, &spec, v);
    } else if ((is_int || v.type == J_FLOAT) && (!spec.type || strchr("eEfFgGn%", spec.type))) {
        add_float(b->r, t, &spec, v);
    } else if (v.type == J_STR && (!spec.type || spec.type == 's')) {
        if (spec.align == '=' && !spec.zero)
            fail_format(b->r, "'=' alignment not allowed in string format specifier");
        if (spec.sign || spec.alternate || spec.group)
            fail_format(b->r, "a string takes no sign, # or separator");
        spec.align = spec.align == '=' ? '<' : spec.align;
        add_text(b->r, t, &spec, v.s);
    } else if (text->len == 0) {
        jrepr_add_str(t, v);
    } else {
        jheap_fail(&b->r->h, "unsupported format string passed to %s.__format__", jval_type_name(v));
    }
}

static void expand(struct braces *b, struct jtext *t, const struct jstr *s, int depth);

/* One {field!conversion:spec}, without its braces. */
static void replacement(struct braces *b, struct jtext *t, const struct jstr *s, int depth)
{
    size_t end = 0, brackets = 0;
    while (end < s->len && (brackets || (s->p[end] != '!' && s->p[end] != ':'))) {
        brackets = s->p[end] == '[' ? 1 : s->p[end] == ']' ? 0 : brackets;
        end++;
    }
    struct jval v = braces_field(b, s, 0, end);
    if (end < s->len && s->p[end] == '!') {
        char kind = end + 1 < s->len ? s->p[end + 1] : 0;
        struct jtext one = {.h = &b->r->h};
        if (kind == 'r' || kind == 'a')
            jrepr_add_repr(&one, v);
        else if (kind == 's')
            jrepr_add_str(&one, v);
        else
            fail_format(b->r, "Unknown conversion specifier");
        v = jval_str(jtext_take(&one));
        end += 2;
        if (end < s->len && s->p[end] != ':')
            fail_format(b->r, "expected ':' after conversion specifier");
    }
    struct jtext spec = {.h = &b->r->h};
    if (end < s->len)
        expand(b, &spec, jstr_part(&b->r->h, s, end + 1, s->len), depth + 1);
    add_formatted(b, t, v, jtext_take(&spec));
}

static void expand(struct braces *b, struct jtext *t, const struct jstr *s, int depth)
{
    if (depth > 2)
        fail_format(b->r, "Max string recursion exceeded");
    for (size_t at = 0; at < s->len;) {
        size_t end = at;
        while (end < s->len && s->p[end] != '{' && s->p[end] != '}')
            end++;
        jtext_add_part(t, s, at, end);
        jheap_spend(&b->r->h, 1);
        if (end == s->len)
            return;
        if (end + 1 < s->len && s->p[end + 1] == s->p[end]) {
            jtext_add_part(t, s, end, end + 1);
            at = end + 2;
            continue;
        }
        if (s->p[end] == '}')
            fail_format(b->r, "Single '}' encountered in format string");
        size_t close = end + 1, level = 1;
        for (; close < s->len && level; close++)
            level += (size_t)(s->p[close] == '{') - (size_t)(s->p[close] == '}');
        if (level)
            fail_format(b->r, "expected '}' before end of string");
        replacement(b, t, jstr_part(&b->r->h, s, end + 1, close - 1), depth);
        at = close;
    }
}

const struct jstr *jformat_braces(struct jrun *r, const struct jstr *format, const struct jargs *a)
{
    struct braces b = {.r = r, .a = a};
    struct jtext t = {.h = &r->h};
    expand(&b, &t, format, 0);
    return jstr_as_markup(&r->h, jtext_take(&t), format->markup);
}
