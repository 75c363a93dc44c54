/* "...".format(values). */
#include <stdlib.h>
#include <string.h>

#include "text/jinja_access.h"
#include "text/jinja_format.h"
#include "text/jinja_repr.h"
#include "text/jinja_spec.h"

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
            jspec_fail(b->r, "cannot switch from manual field specification to automatic field numbering");
        index = b->next++;
    } else if (is_digits(p, n)) {
        if (b->next > 0)
            jspec_fail(b->r, "cannot switch from automatic field numbering to manual field specification");
        b->next = -1;
        index = strtol(p, NULL, 10);
    }
    if (index >= 0) {
        if ((uint64_t)index >= b->a->n)
            jspec_fail(b->r, "Replacement index out of range for positional args tuple");
        return b->a->at[index];
    }
    for (size_t i = 0; i < b->a->n_kw; i++)
        if (b->a->kw[i].name->len == n && !memcmp(b->a->kw[i].name->p, p, n))
            return b->a->kw[i].value;
    jspec_fail(b->r, "a named argument is missing");
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
            jspec_fail(b->r, "a replacement field is malformed");
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
        if (n > JSPEC_WIDTH_MAX)
            jspec_fail(b->r, "the width is too large");
    }
    return n;
}

static struct jspec parse_spec(struct braces *b, const struct jstr *s)
{
    struct jspec spec = {.fill = ' ', .width = -1, .precision = -1};
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
            jspec_fail(b->r, "Format specifier missing precision");
    }
    if (at < s->len)
        spec.type = s->p[at++];
    if (at < s->len)
        jspec_fail(b->r, "Invalid format specifier");
    if (spec.zero && spec.group)
        jspec_fail(b->r, "zeros with separators between them are not supported");
    return spec;
}

static void add_formatted(struct braces *b, struct jtext *t, struct jval v, const struct jstr *text)
{
    struct jspec spec = parse_spec(b, text);
    bool is_int = v.type == J_INT || v.type == J_BIG || (v.type == J_BOOL && text->len);
    if (is_int && (!spec.type || strchr("dxXobn", spec.type))) {
        if (spec.precision >= 0)
            jspec_fail(b->r, "Precision not allowed in integer format specifier");
        jspec_add_int(b->r, t, &spec, v);
    } else if ((is_int || v.type == J_FLOAT) && (!spec.type || strchr("eEfFgGn%", spec.type))) {
        jspec_add_float(b->r, t, &spec, v);
    } else if (v.type == J_STR && (!spec.type || spec.type == 's')) {
        if (spec.align == '=' && !spec.zero)
            jspec_fail(b->r, "'=' alignment not allowed in string format specifier");
        if (spec.sign || spec.alternate || spec.group)
            jspec_fail(b->r, "a string takes no sign, # or separator");
        spec.align = spec.align == '=' ? '<' : spec.align;
        jspec_add_text(b->r, t, &spec, v.s);
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
            jspec_fail(b->r, "Unknown conversion specifier");
        v = jval_str(jtext_take(&one));
        end += 2;
        if (end < s->len && s->p[end] != ':')
            jspec_fail(b->r, "expected ':' after conversion specifier");
    }
    struct jtext spec = {.h = &b->r->h};
    if (end < s->len)
        expand(b, &spec, jstr_part(&b->r->h, s, end + 1, s->len), depth + 1);
    add_formatted(b, t, v, jtext_take(&spec));
}

static void expand(struct braces *b, struct jtext *t, const struct jstr *s, int depth)
{
    if (depth > 2)
        jspec_fail(b->r, "Max string recursion exceeded");
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
            jspec_fail(b->r, "Single '}' encountered in format string");
        size_t close = end + 1, level = 1;
        for (; close < s->len && level; close++)
            level += (size_t)(s->p[close] == '{') - (size_t)(s->p[close] == '}');
        if (level)
            jspec_fail(b->r, "expected '}' before end of string");
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
