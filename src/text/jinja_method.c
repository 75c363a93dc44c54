/* Methods of strings about case, classes and padding; and the way to all methods. */
#include <string.h>

#include "text/jinja_access.h"
#include "text/jinja_method.h"
#include "text/jinja_repr.h"
#include "text/jinja_unicode.h"

static struct jval mapped(struct jrun *r, struct jval self, const struct jargs *a,
                          const struct jstr *(*map)(struct jheap *h, const struct jstr *s))
{
    jargs_none(r, a, "the method");
    return jval_str(jstr_as_markup(&r->h, map(&r->h, self.s), self.s->markup));
}

static struct jval str_upper(struct jrun *r, struct jval self, const struct jargs *a)
{
    return mapped(r, self, a, junicode_upper);
}
static struct jval str_lower(struct jrun *r, struct jval self, const struct jargs *a)
{
    return mapped(r, self, a, junicode_lower);
}
static struct jval str_casefold(struct jrun *r, struct jval self, const struct jargs *a)
{
    return mapped(r, self, a, junicode_fold);
}
static struct jval str_capitalize(struct jrun *r, struct jval self, const struct jargs *a)
{
    return mapped(r, self, a, junicode_capitalize);
}

static bool is_cased(uint32_t code)
{
    return junicode_is_upper(code) || junicode_is_lower(code) || junicode_is_title(code);
}

static const struct jstr *swap_case(struct jheap *h, const struct jstr *s)
{
    struct jtext t = {.h = h};
    jheap_spend(h, s->n_char / 8);
    struct jchars c = {.s = s};
    for (size_t from = 0; jchars_next(&c); from = c.at) {
        if (junicode_is_upper(c.code))
            junicode_add_lower_at(&t, &c, from);
        else if (junicode_is_lower(c.code))
            junicode_add_upper(&t, c.code, c.input);
        else
            jtext_add_code(&t, c.code, c.input);
    }
    return jtext_take(&t);
}

static const struct jstr *title_case(struct jheap *h, const struct jstr *s)
{
    struct jtext t = {.h = h};
    bool after_cased = false;
    jheap_spend(h, s->n_char / 8);
    struct jchars c = {.s = s};
    for (size_t from = 0; jchars_next(&c); from = c.at) {
        if (after_cased)
            junicode_add_lower_at(&t, &c, from);
        else
            junicode_add_title(&t, c.code, c.input);
        after_cased = is_cased(c.code);
    }
    return jtext_take(&t);
}

static struct jval str_swapcase(struct jrun *r, struct jval self, const struct jargs *a)
{
    return mapped(r, self, a, swap_case);
}
static struct jval str_title(struct jrun *r, struct jval self, const struct jargs *a)
{
    return mapped(r, self, a, title_case);
}

static bool is_alnum(uint32_t code)
{
    return junicode_is_alpha(code) || junicode_is_numeric(code);
}
static bool is_ascii(uint32_t code)
{
    return code < 0x80;
}

/* Do all characters belong to the class? */
static struct jval all(struct jrun *r, struct jval self, const struct jargs *a, bool (*is)(uint32_t),
                       bool if_empty)
{
    jargs_none(r, a, "the method");
    jheap_spend(&r->h, self.s->n_char / 8);
    for (struct jchars c = {.s = self.s}; jchars_next(&c);)
        if (!is(c.code))
            return jval_bool(false);
    return jval_bool(self.s->len ? true : if_empty);
}

#define CLASS_METHOD(name, is, if_empty)                                                   \
    static struct jval str_##name(struct jrun *r, struct jval self, const struct jargs *a) \
    {                                                                                      \
        return all(r, self, a, is, if_empty);                                              \
    }
CLASS_METHOD(isalpha, junicode_is_alpha, false)
CLASS_METHOD(isalnum, is_alnum, false)
CLASS_METHOD(isdecimal, junicode_is_decimal, false)
CLASS_METHOD(isdigit, junicode_is_digit, false)
CLASS_METHOD(isnumeric, junicode_is_numeric, false)
CLASS_METHOD(isspace, junicode_is_space, false)
CLASS_METHOD(isascii, is_ascii, true)
CLASS_METHOD(isprintable, junicode_is_printable, true)

/* At least one cased character, and no other case. */
static struct jval is_case(struct jrun *r, struct jval self, const struct jargs *a, bool (*is)(uint32_t))
{
    bool any = false;
    jargs_none(r, a, "the method");
    jheap_spend(&r->h, self.s->n_char / 8);
    for (struct jchars c = {.s = self.s}; jchars_next(&c);) {
        if (!is(c.code) && is_cased(c.code))
            return jval_bool(false);
        any |= is(c.code);
    }
    return jval_bool(any);
}

static struct jval str_isupper(struct jrun *r, struct jval self, const struct jargs *a)
{
    return is_case(r, self, a, junicode_is_upper);
}
static struct jval str_islower(struct jrun *r, struct jval self, const struct jargs *a)
{
    return is_case(r, self, a, junicode_is_lower);
}

static struct jval str_istitle(struct jrun *r, struct jval self, const struct jargs *a)
{
    bool any = false, after_cased = false;
    jargs_none(r, a, "istitle");
    jheap_spend(&r->h, self.s->n_char / 8);
    for (struct jchars c = {.s = self.s}; jchars_next(&c);) {
        bool upper = junicode_is_upper(c.code) || junicode_is_title(c.code),
             lower = junicode_is_lower(c.code);
        if ((upper && after_cased) || (lower && !after_cased))
            return jval_bool(false);
        after_cased = upper || lower;
        any |= after_cased;
    }
    return jval_bool(any);
}

const struct jstr *jmethod_pad(struct jrun *r, const struct jstr *s, int64_t width, const struct jstr *fill,
                               char align)
{
    if (fill && fill->n_char != 1)
        jheap_fail(&r->h, "The fill character must be exactly one character long");
    if (width <= (int64_t)s->n_char)
        return s;
    if (width > (int64_t)r->h.max)
        jheap_fail(&r->h, "the template needs more memory than the limit of %zu bytes", r->h.max);
    size_t pad = (size_t)width - s->n_char;
    size_t left = align == '<' ? 0 : align == '>' ? pad : pad / 2 + (pad & (size_t)width & 1);
    struct jtext t = {.h = &r->h};
    jheap_spend(&r->h, pad);
    for (size_t i = 0; i < left; i++)
        fill ? jtext_add_str(&t, fill) : jtext_add_lit(&t, " ", false);
    jtext_add_str(&t, s);
    for (size_t i = left; i < pad; i++)
        fill ? jtext_add_str(&t, fill) : jtext_add_lit(&t, " ", false);
    return jstr_as_markup(&r->h, jtext_take(&t), s->markup);
}

static struct jval pad(struct jrun *r, struct jval self, const struct jargs *a, char align)
{
    struct jval v[2];
    jargs_bind(r, a, "the method", "width,fillchar", 1, v);
    return jval_str(
        jmethod_pad(r, self.s, jargs_int(r, v[0], "width", 0), jargs_str(r, v[1], "fillchar"), align));
}

static struct jval str_ljust(struct jrun *r, struct jval self, const struct jargs *a)
{
    return pad(r, self, a, '<');
}
static struct jval str_rjust(struct jrun *r, struct jval self, const struct jargs *a)
{
    return pad(r, self, a, '>');
}
static struct jval str_center(struct jrun *r, struct jval self, const struct jargs *a)
{
    return pad(r, self, a, '^');
}

static struct jval str_zfill(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v;
    jargs_bind(r, a, "zfill", "width", 1, &v);
    const struct jstr *s = self.s, *zero = jval_lit(&r->h, "0").s;
    int64_t width = jargs_int(r, v, "zfill", 0);
    size_t sign = s->len && (s->p[0] == '-' || s->p[0] == '+');
    const struct jstr *digits = jstr_part(&r->h, s, sign, s->len);
    digits = jmethod_pad(r, digits, width - (int64_t)sign, zero, '>');
    return jval_str(jstr_concat(&r->h, jstr_part(&r->h, s, 0, sign), digits));
}

const struct jmethod jmethod_str_case[] = {
    {"upper", J_STR, str_upper},         {"lower", J_STR, str_lower},
    {"casefold", J_STR, str_casefold},   {"capitalize", J_STR, str_capitalize},
    {"swapcase", J_STR, str_swapcase},   {"title", J_STR, str_title},
    {"isalpha", J_STR, str_isalpha},     {"isalnum", J_STR, str_isalnum},
    {"isdecimal", J_STR, str_isdecimal}, {"isdigit", J_STR, str_isdigit},
    {"isnumeric", J_STR, str_isnumeric}, {"isspace", J_STR, str_isspace},
    {"isascii", J_STR, str_isascii},     {"isprintable", J_STR, str_isprintable},
    {"isupper", J_STR, str_isupper},     {"islower", J_STR, str_islower},
    {"istitle", J_STR, str_istitle},     {"ljust", J_STR, str_ljust},
    {"rjust", J_STR, str_rjust},         {"center", J_STR, str_center},
    {"zfill", J_STR, str_zfill},         {NULL, J_MISSING, NULL},
};

const struct jmethod *jmethod_find(enum jtype type, const struct jstr *name)
{
    const struct jmethod *const tables[] = {jmethod_str_cut, jmethod_str_case, jmethod_seq, jloop_methods};
    for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
        for (const struct jmethod *m = tables[t]; m->name; m++)
            if (m->type == type && jstr_is(name, m->name))
                return m;
    return NULL;
}
