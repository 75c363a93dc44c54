#include "text/jinja_unicode.h"

#include <string.h>
#include <utf8proc.h>

#include "text/utf8.h"

static int category(uint32_t code)
{
    return (int)utf8proc_category((utf8proc_int32_t)code);
}

bool junicode_is_space(uint32_t code)
{
    if (code < 0x80)
        return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x1f);
    return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
           code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool junicode_is_line_end(uint32_t code)
{
    return (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

bool junicode_is_printable(uint32_t code)
{
    if (code < 0x80)
        return code >= 0x20 && code < 0x7f;
    switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

bool junicode_is_alpha(uint32_t code)
{
    int c = category(code);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool junicode_is_decimal(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_ND;
}

bool junicode_is_digit(uint32_t code)
{
    /* Besides decimal digits those of Numeric_Type=Digit: superscripts, subscripts, circled and the like. */
    return junicode_is_decimal(code) || code == 0xb2 || code == 0xb3 || code == 0xb9 || code == 0x2070 ||
           (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089) ||
           (code >= 0x2460 && code <= 0x2468) || (code >= 0x2474 && code <= 0x247c) ||
           (code >= 0x2488 && code <= 0x2490) || code == 0x24ea || (code >= 0x24f5 && code <= 0x24fd) ||
           code == 0x24ff || (code >= 0x2776 && code <= 0x277e) || (code >= 0x2780 && code <= 0x2788) ||
           (code >= 0x278a && code <= 0x2792);
}

bool junicode_is_numeric(uint32_t code)
{
    int c = category(code);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool junicode_is_upper(uint32_t code)
{
    if (code < 0x80)
        return code >= 'A' && code <= 'Z';
    return category(code) == UTF8PROC_CATEGORY_LU || (code >= 0x2160 && code <= 0x216f) ||
           (code >= 0x24b6 && code <= 0x24cf);
}

bool junicode_is_lower(uint32_t code)
{
    if (code < 0x80)
        return code >= 'a' && code <= 'z';
    return category(code) == UTF8PROC_CATEGORY_LL || code == 0xaa || code == 0xba ||
           (code >= 0x2170 && code <= 0x217f) || (code >= 0x24d0 && code <= 0x24e9);
}

bool junicode_is_title(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_LT;
}

bool junicode_is_word(uint32_t code)
{
    return code == '_' || junicode_is_alpha(code) || junicode_is_numeric(code);
}

static const struct special_case {
    uint32_t code;
    const char *upper, *title;
} specials[] = {
#define X(code, upper, title) {code, upper, title},
#include "text/jinja_case.def"
#undef X
};

static const struct special_case *find_special(uint32_t code)
{
    size_t low = 0, high = sizeof(specials) / sizeof(specials[0]);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (specials[mid].code < code)
            low = mid + 1;
        else
            high = mid;
    }
    if (low < sizeof(specials) / sizeof(specials[0]) && specials[low].code == code)
        return &specials[low];
    return NULL;
}

void junicode_add_upper(struct jtext *t, uint32_t code, bool input)
{
    const struct special_case *special = code < 0x80 ? NULL : find_special(code);
    if (special)
        jtext_add_lit(t, special->upper, input);
    else
        jtext_add_code(t, (uint32_t)utf8proc_toupper((utf8proc_int32_t)code), input);
}

void junicode_add_title(struct jtext *t, uint32_t code, bool input)
{
    const struct special_case *special = code < 0x80 ? NULL : find_special(code);
    if (special)
        jtext_add_lit(t, special->title, input);
    else
        jtext_add_code(t, (uint32_t)utf8proc_totitle((utf8proc_int32_t)code), input);
}

void junicode_add_lower(struct jtext *t, uint32_t code, bool input)
{
    if (code == 0x130) /* the one row of SpecialCasing that lengthens a lower case */
        jtext_add_lit(t, "i\xCC\x87", input);
    else
        jtext_add_code(t, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code), input);
}

/* Marks, format characters and the like: they do not count when a cased letter is looked for. */
static bool is_case_ignorable(uint32_t code)
{
    switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return code == '\'' || code == '.' || code == ':' || code == 0xb7 || code == 0x2019;
    }
}

static bool is_cased(uint32_t code)
{
    return junicode_is_upper(code) || junicode_is_lower(code) || junicode_is_title(code);
}

/* A sigma (at bytes from to to) is final when a cased letter stands before it and none after. */
static bool is_final_sigma(const struct jstr *s, size_t from, size_t to)
{
    bool before = false;
    for (struct jchars c = {.s = s}; c.at < from && jchars_next(&c);)
        if (!is_case_ignorable(c.code))
            before = is_cased(c.code);
    for (size_t at = to; at < s->len; at += utf8_size(s->p[at]))
        if (!is_case_ignorable(utf8_code(s->p + at)))
            return before && !is_cased(utf8_code(s->p + at));
    return before;
}

void junicode_add_lower_at(struct jtext *t, const struct jchars *c, size_t from)
{
    if (c->code == 0x3a3) {
        jheap_spend(t->h, c->s->len / 8);
        jtext_add_code(t, is_final_sigma(c->s, from, c->at) ? 0x3c2 : 0x3c3, c->input);
    } else {
        junicode_add_lower(t, c->code, c->input);
    }
}

const struct jstr *junicode_upper(struct jheap *h, const struct jstr *s)
{
    struct jtext t = {.h = h};
    jheap_spend(h, s->n_char / 8);
    for (struct jchars c = {.s = s}; jchars_next(&c);)
        junicode_add_upper(&t, c.code, c.input);
    return jtext_take(&t);
}

const struct jstr *junicode_lower(struct jheap *h, const struct jstr *s)
{
    struct jtext t = {.h = h};
    jheap_spend(h, s->n_char / 8);
    struct jchars c = {.s = s};
    for (size_t from = 0; jchars_next(&c); from = c.at)
        junicode_add_lower_at(&t, &c, from);
    return jtext_take(&t);
}

const struct jstr *junicode_capitalize(struct jheap *h, const struct jstr *s)
{
    struct jtext t = {.h = h};
    jheap_spend(h, s->n_char / 8);
    struct jchars c = {.s = s};
    for (size_t from = 0; jchars_next(&c); from = c.at) {
        if (from == 0)
            junicode_add_title(&t, c.code, c.input);
        else
            junicode_add_lower_at(&t, &c, from);
    }
    return jtext_take(&t);
}

const struct jstr *junicode_fold(struct jheap *h, const struct jstr *s)
{
    struct jtext t = {.h = h};
    jheap_spend(h, s->n_char / 8);
    for (struct jchars c = {.s = s}; jchars_next(&c);) {
        utf8proc_int32_t out[8];
        int last = 0;
        utf8proc_ssize_t n =
            utf8proc_decompose_char((utf8proc_int32_t)c.code, out, 8, UTF8PROC_CASEFOLD, &last);
        for (utf8proc_ssize_t i = 0; i < n && i < 8; i++)
            jtext_add_code(&t, (uint32_t)out[i], c.input);
    }
    return jtext_take(&t);
}
