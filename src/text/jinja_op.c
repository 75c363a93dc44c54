#include "text/jinja_op.h"

#include <math.h>

#include "text/jinja_format.h"
#include "text/jinja_repr.h"

static const char *const symbols[] = {
    [JOP_ADD] = "+",       [JOP_SUB] = "-", [JOP_MUL] = "*",           [JOP_DIV] = "/",
    [JOP_FLOORDIV] = "//", [JOP_MOD] = "%", [JOP_POW] = "** or pow()",
};

static _Noreturn void fail_types(struct jrun *r, enum jop op, struct jval a, struct jval b)
{
    if (a.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, a);
    if (b.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, b);
    if (op == JOP_ADD && (a.type == J_STR || a.type == J_LIST || a.type == J_TUPLE))
        jheap_fail(&r->h, "can only concatenate %s (not \"%s\") to %s", jval_type_name(a), jval_type_name(b),
                   jval_type_name(a));
    jheap_fail(&r->h, "unsupported operand type(s) for %s: '%s' and '%s'", symbols[op], jval_type_name(a),
               jval_type_name(b));
}

const struct jstr *jop_escape(struct jrun *r, const struct jstr *s)
{
    if (s->markup)
        return s;
    static const struct {
        char c;
        const char *text;
    } rows[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
    struct jtext t = {.h = &r->h};
    jheap_spend(&r->h, s->n_char / 8);
    for (struct jchars c = {.s = s}; jchars_next(&c);) {
        const char *text = NULL;
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
            if (c.code == (uint32_t)rows[i].c)
                text = rows[i].text;
        if (text)
            jtext_add_lit(&t, text, c.input);
        else
            jtext_add_code(&t, c.code, c.input);
    }
    return jstr_as_markup(&r->h, jtext_take(&t), true);
}

static struct jval add_strings(struct jrun *r, const struct jstr *a, const struct jstr *b)
{
    if (a->markup != b->markup) { /* the plain one is escaped */
        a = jop_escape(r, a);
        b = jop_escape(r, b);
    }
    return jval_str(jstr_concat(&r->h, a, b));
}

static struct jval add_lists(struct jrun *r, struct jval a, struct jval b)
{
    struct jlist *out = jlist_new(&r->h, a.list->n + b.list->n);
    for (size_t i = 0; i < a.list->n; i++)
        out->at[out->n++] = a.list->at[i];
    for (size_t i = 0; i < b.list->n; i++)
        out->at[out->n++] = b.list->at[i];
    return a.type == J_LIST ? jval_list(out) : jval_tuple(out);
}

/* A sequence n times. */
static struct jval repeat(struct jrun *r, struct jval v, int64_t n)
{
    size_t times = n > 0 ? (size_t)n : 0, total;
    if (v.type == J_STR) {
        if (__builtin_mul_overflow(times, v.s->len, &total) || total > r->h.max)
            jheap_fail(&r->h, "the template needs more memory than the limit of %zu bytes", r->h.max);
        if (v.s->len == 0 || times == 1)
            return v;
        jheap_spend(&r->h, times);
        struct jtext t = {.h = &r->h};
        for (size_t i = 0; i < times; i++)
            jtext_add_str(&t, v.s);
        return jval_str(jstr_as_markup(&r->h, jtext_take(&t), v.s->markup));
    }
    if (__builtin_mul_overflow(times, v.list->n, &total))
        total = SIZE_MAX / sizeof(struct jval) / 2;
    struct jlist *out = jlist_new(&r->h, total);
    for (size_t i = 0; i < total; i++)
        out->at[i] = v.list->at[i % v.list->n];
    out->n = total;
    return v.type == J_LIST ? jval_list(out) : jval_tuple(out);
}

static bool is_sequence(struct jval v)
{
    return v.type == J_STR || v.type == J_LIST || v.type == J_TUPLE;
}

static _Noreturn void fail_overflow(struct jrun *r)
{
    jheap_fail(&r->h, "an integer does not fit 64 bits");
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static struct jval int_pow(struct jrun *r, int64_t a, int64_t b)
{
    if (b < 0) {
        if (a == 0)
            jheap_fail(&r->h, "0.0 cannot be raised to a negative power");
        return jval_float(pow((double)a, (double)b));
    }
    int64_t result = 1;
    for (;; b >>= 1) {
        if ((b & 1) && __builtin_mul_overflow(result, a, &result))
            fail_overflow(r);
        if (b <= 1)
            return jval_int(result);
        if (__builtin_mul_overflow(a, a, &a))
            fail_overflow(r);
    }
}

static struct jval int_op(struct jrun *r, enum jop op, int64_t a, int64_t b)
{
    int64_t c = 0;
    bool overflow = false;
    if ((op == JOP_DIV || op == JOP_FLOORDIV || op == JOP_MOD) && b == 0)
        jheap_fail(&r->h, "division by zero");
    switch (op) {
    case JOP_ADD:
        overflow = __builtin_add_overflow(a, b, &c);
        break;
    case JOP_SUB:
        overflow = __builtin_sub_overflow(a, b, &c);
        break;
    case JOP_MUL:
        overflow = __builtin_mul_overflow(a, b, &c);
        break;
    case JOP_DIV: /* a long double holds both exactly, and the quotient is rounded twice only in rare ties */
        return jval_float((double)((long double)a / (long double)b));
    case JOP_FLOORDIV:
        if (b == -1)
            overflow = __builtin_sub_overflow((int64_t)0, a, &c);
        else
            c = floor_div(a, b);
        break;
    case JOP_MOD:
        c = b == -1 ? 0 : a - floor_div(a, b) * b;
        break;
    default:
        return int_pow(r, a, b);
    }
    if (overflow)
        fail_overflow(r);
    return jval_int(c);
}

/* The remainder with the sign of b, and the floor of the quotient, as Python computes both. */
static double float_mod(double a, double b, double *quotient)
{
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod != 0) {
        if ((b < 0) != (mod < 0)) {
            mod += b;
            div -= 1.0;
        }
    } else {
        mod = copysign(0.0, b);
    }
    *quotient = div != 0 ? floor(div) : copysign(0.0, a / b);
    if (div != 0 && div - *quotient > 0.5)
        *quotient += 1.0;
    return mod;
}

static struct jval float_pow(struct jrun *r, double a, double b)
{
    if (a == 0 && b < 0)
        jheap_fail(&r->h, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        jheap_fail(&r->h, "a negative number to a fractional power is complex");
    double c = pow(a, b);
    if (isinf(c) && isfinite(a) && isfinite(b))
        jheap_fail(&r->h, "Numerical result out of range");
    return jval_float(c);
}

static struct jval float_op(struct jrun *r, enum jop op, double a, double b)
{
    double quotient;
    if ((op == JOP_DIV || op == JOP_FLOORDIV || op == JOP_MOD) && b == 0)
        jheap_fail(&r->h, "float division by zero");
    switch (op) {
    case JOP_ADD:
        return jval_float(a + b);
    case JOP_SUB:
        return jval_float(a - b);
    case JOP_MUL:
        return jval_float(a * b);
    case JOP_DIV:
        return jval_float(a / b);
    case JOP_MOD:
        return jval_float(float_mod(a, b, &quotient));
    case JOP_FLOORDIV:
        float_mod(a, b, &quotient);
        return jval_float(quotient);
    default:
        return float_pow(r, a, b);
    }
}

static struct jval number_op(struct jrun *r, enum jop op, struct jval a, struct jval b)
{
    int64_t i, j;
    double x, y;
    struct jval out;
    if (jval_as_int(a, &i) && jval_as_int(b, &j)) {
        out = int_op(r, op, i, j);
    } else {
        if ((a.type == J_BIG || b.type == J_BIG) && a.type != J_FLOAT && b.type != J_FLOAT && op != JOP_DIV)
            fail_overflow(r);
        jval_as_double(a, &x);
        jval_as_double(b, &y);
        out = float_op(r, op, x, y);
    }
    out.input = a.input || b.input;
    return out;
}

struct jval jop_binary(struct jrun *r, enum jop op, struct jval a, struct jval b)
{
    int64_t n;
    if (jval_is_number(a) && jval_is_number(b))
        return number_op(r, op, a, b);
    if (op == JOP_ADD && a.type == J_STR && b.type == J_STR)
        return add_strings(r, a.s, b.s);
    if (op == JOP_ADD && a.type == b.type && (a.type == J_LIST || a.type == J_TUPLE))
        return add_lists(r, a, b);
    if (op == JOP_MUL && is_sequence(a) && jval_as_int(b, &n))
        return repeat(r, a, n);
    if (op == JOP_MUL && is_sequence(b) && jval_as_int(a, &n))
        return repeat(r, b, n);
    if (op == JOP_MOD && a.type == J_STR)
        return jval_str(jformat_percent(r, a.s, b));
    fail_types(r, op, a, b);
}

struct jval jop_unary(struct jrun *r, enum jop op, struct jval v)
{
    int64_t i;
    if (v.type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v);
    if (!jval_is_number(v))
        jheap_fail(&r->h, "bad operand type for unary %s: '%s'", symbols[op], jval_type_name(v));
    struct jval out = v;
    if (jval_as_int(v, &i)) {
        if (op == JOP_SUB && __builtin_sub_overflow((int64_t)0, i, &i))
            fail_overflow(r);
        out = jval_int(i);
    } else if (op == JOP_SUB && v.type == J_FLOAT) {
        out.f = -v.f;
    } else if (op == JOP_SUB) {
        struct jtext t = {.h = &r->h};
        bool negative = v.s->p[0] == '-';
        if (!negative)
            jtext_add_lit(&t, "-", jstr_any_input(v.s));
        jtext_add_part(&t, v.s, negative, v.s->len);
        out.s = jtext_take(&t);
        if (jstr_is(out.s, "-9223372036854775808"))
            out = jval_int(INT64_MIN);
    }
    out.input = v.input;
    return out;
}

bool jop_compare(struct jrun *r, enum jop op, struct jval a, struct jval b)
{
    struct jheap *h = &r->h;
    switch (op) {
    case JOP_EQ:
        return jval_equal(h, a, b);
    case JOP_NE:
        return !jval_equal(h, a, b);
    case JOP_LT:
        return jval_less(h, a, b);
    case JOP_GT:
        return jval_less(h, b, a);
    case JOP_LE: /* not b < a, but false beside a NaN */
        return jval_less(h, a, b) || jval_equal(h, a, b);
    case JOP_GE:
        return jval_less(h, b, a) || jval_equal(h, a, b);
    case JOP_IN:
        return jval_contains(h, b, a);
    default:
        return !jval_contains(h, b, a);
    }
}
