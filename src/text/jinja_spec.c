#include "text/jinja_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_repr.h"

#define PRECISION_MAX 300

void jspec_fail(struct jrun *r, const char *why)
{
    jheap_fail(&r->h, "format: %s", why);
}

void jspec_add_field(struct jtext *t, const struct jspec *spec, const struct jstr *body, size_t head,
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

static void add_sign(struct jtext *t, const struct jspec *spec, bool negative, bool input)
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

void jspec_add_int(struct jrun *r, struct jtext *out, const struct jspec *spec, struct jval v)
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
        jspec_fail(r, "an integer does not fit 64 bits");
    add_sign(&t, spec, negative, v.input);
    if (spec->alternate && strchr("xXob", type))
        jtext_printf(&t, v.input, "0%c", type);
    size_t head = t.len;
    if (v.type == J_BIG) {
        jtext_add_part(&t, v.s, negative, v.s->len);
        if (spec->group)
            jspec_fail(r, "an integer does not fit 64 bits");
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
    jspec_add_field(out, spec, jtext_take(&t), head, align, v.input);
}

/* The digits of a finite float by printf, with Python's exponents ("e+05" is the same in C). */
static void print_float(struct jrun *r, char *dst, size_t cap, const struct jspec *spec, double x, char type)
{
    char f[16];
    if (spec->precision > PRECISION_MAX)
        jspec_fail(r, "the precision is too large");
    snprintf(f, sizeof(f), "%%%s.*%c", spec->alternate ? "#" : "", type);
    snprintf(dst, cap, f, (int)(spec->precision < 0 ? 6 : spec->precision), x);
}

void jspec_add_float(struct jrun *r, struct jtext *out, const struct jspec *spec, struct jval v)
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
    jspec_add_field(out, spec, jtext_take(&t), head, spec->align ? spec->align : '>', v.input);
}

void jspec_add_text(struct jrun *r, struct jtext *out, const struct jspec *spec, const struct jstr *s)
{
    if (spec->precision >= 0 && (uint64_t)spec->precision < s->n_char)
        s = jstr_part(&r->h, s, 0, jstr_offset(&r->h, s, (size_t)spec->precision));
    jspec_add_field(out, spec, s, 0, spec->align ? spec->align : '<', jstr_any_input(s));
}
