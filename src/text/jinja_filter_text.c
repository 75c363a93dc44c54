/* Filters of strings. */
#include <string.h>

#include "text/jinja_filter.h"
#include "text/jinja_format.h"
#include "text/jinja_method.h"
#include "text/jinja_op.h"
#include "text/jinja_repr.h"
#include "text/jinja_unicode.h"

/* Python's soft_str: a string stays as it is. */
static const struct jstr *text_of(struct jrun *r, struct jval v)
{
    return v.type == J_STR ? v.s : jrepr_str(&r->h, v);
}

static struct jval mapped(struct jrun *r, struct jval v, const struct jargs *a,
                          const struct jstr *(*map)(struct jheap *h, const struct jstr *s))
{
    jargs_none(r, a, "the filter");
    const struct jstr *s = text_of(r, v);
    return jval_str(jstr_as_markup(&r->h, map(&r->h, s), s->markup));
}

static struct jval filter_upper(struct jrun *r, struct jval v, const struct jargs *a)
{
    return mapped(r, v, a, junicode_upper);
}
static struct jval filter_lower(struct jrun *r, struct jval v, const struct jargs *a)
{
    return mapped(r, v, a, junicode_lower);
}
static struct jval filter_capitalize(struct jrun *r, struct jval v, const struct jargs *a)
{
    return mapped(r, v, a, junicode_capitalize);
}

/* Words begin after whitespace and after - ( { [ <, unlike those of str.title. */
static const struct jstr *title(struct jheap *h, const struct jstr *s)
{
    struct jtext t = {.h = h};
    bool begins = true;
    jheap_spend(h, s->n_char / 8);
    for (struct jchars c = {.s = s}; jchars_next(&c);) {
        bool separates =
            junicode_is_space(c.code) || (c.code && c.code < 0x80 && strchr("-({[<", (int)c.code));
        if (begins && !separates)
            junicode_add_upper(&t, c.code, c.input);
        else
            junicode_add_lower(&t, c.code, c.input);
        begins = separates;
    }
    return jtext_take(&t);
}

static struct jval filter_title(struct jrun *r, struct jval v, const struct jargs *a)
{
    return mapped(r, v, a, title);
}

static struct jval filter_trim(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval chars;
    jargs_bind(r, a, "trim", "chars", 0, &chars);
    if (chars.type == J_NONE)
        chars.type = J_MISSING;
    return jval_str(jmethod_strip(r, text_of(r, v), jargs_str(r, chars, "trim"), true, true));
}

static struct jval filter_replace(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[3];
    jargs_bind(r, a, "replace", "old,new,count", 2, p);
    int64_t count = p[2].type == J_NONE ? -1 : jargs_int(r, p[2], "replace", -1);
    return jval_str(
        jmethod_replace(r, jrepr_str(&r->h, v), jrepr_str(&r->h, p[0]), jrepr_str(&r->h, p[1]), count));
}

static struct jval filter_center(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p;
    jargs_bind(r, a, "center", "width", 0, &p);
    return jval_str(jmethod_pad(r, text_of(r, v), jargs_int(r, p, "center", 80), NULL, '^'));
}

static struct jval filter_format(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval values;
    if (a->n && a->n_kw)
        jheap_fail(&r->h, "can't handle positional and keyword arguments at the same time");
    if (a->n_kw) {
        struct jdict *d = jdict_new(&r->h, a->n_kw);
        for (size_t i = 0; i < a->n_kw; i++)
            jdict_set(&r->h, d, jval_str(a->kw[i].name), a->kw[i].value);
        values = jval_dict(d);
    } else {
        struct jlist *list = jlist_new(&r->h, a->n);
        for (size_t i = 0; i < a->n; i++)
            jlist_add(&r->h, list, a->at[i]);
        values = jval_tuple(list);
    }
    return jval_str(jformat_percent(r, text_of(r, v), values));
}

static struct jval filter_indent(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[3];
    jargs_bind(r, a, "indent", "width,first,blank", 0, p);
    if (v.type != J_STR)
        jheap_fail(&r->h, "indent: must be str, not %s", jval_type_name(v));
    const struct jstr *by = p[0].type == J_STR ? p[0].s : NULL;
    if (!by)
        by = jmethod_pad(r, jval_lit(&r->h, "").s, jargs_int(r, p[0], "indent", 4), NULL, '<');
    bool first = jargs_bool(p[1], false), blank = jargs_bool(p[2], false);
    const struct jstr *s = jstr_concat(&r->h, jstr_as_markup(&r->h, v.s, false), jval_lit(&r->h, "\n").s);
    const struct jlist *lines = jmethod_split_lines(r, s, false);
    struct jtext t = {.h = &r->h};
    for (size_t i = 0; i < lines->n; i++) {
        if (i)
            jtext_add_lit(&t, "\n", false);
        if (i ? blank || lines->at[i].s->len : first)
            jtext_add_str(&t, by);
        jtext_add_str(&t, lines->at[i].s);
    }
    return jval_str(jstr_as_markup(&r->h, jtext_take(&t), v.s->markup));
}

static struct jval filter_truncate(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jval p[4];
    jargs_bind(r, a, "truncate", "length,killwords,end,leeway", 0, p);
    size_t n;
    int64_t length = jargs_int(r, p[0], "truncate", 255);
    const struct jstr *end =
        p[2].type == J_MISSING ? jval_lit(&r->h, "...").s : jargs_str(r, p[2], "truncate");
    int64_t leeway = p[3].type == J_NONE ? 5 : jargs_int(r, p[3], "truncate", 5);
    if (length < (int64_t)end->n_char || leeway < 0 || length > INT64_MAX - leeway)
        jheap_fail(&r->h, "truncate: expected length >= %zu and leeway >= 0", end->n_char);
    if (jval_len(v, &n) && (int64_t)n <= length + leeway)
        return v;
    if (v.type != J_STR)
        jheap_fail(&r->h, "truncate: must be str, not %s", jval_type_name(v));
    const struct jstr *s = v.s;
    s = jstr_part(&r->h, s, 0, jstr_offset(&r->h, s, (size_t)length - end->n_char));
    if (!jargs_bool(p[1], false)) {
        size_t space = jstr_rfind(&r->h, s, jval_lit(&r->h, " ").s, 0, s->len);
        s = jstr_part(&r->h, s, 0, space == SIZE_MAX ? s->len : space);
    }
    return jop_binary(r, JOP_ADD, jval_str(s), jval_str(end));
}

/* Tags and comments away, each run of whitespace to one space, entities of the escape filter back to
 * characters. */
static struct jval filter_striptags(struct jrun *r, struct jval v, const struct jargs *a)
{
    jargs_none(r, a, "striptags");
    const struct jstr *s = jrepr_str(&r->h, v);
    struct jtext t = {.h = &r->h};
    for (size_t at = 0; at < s->len;) {
        const char *tag = memchr(s->p + at, '<', s->len - at), *close = NULL;
        size_t start = tag ? (size_t)(tag - s->p) : s->len;
        bool comment = s->len - start >= 4 && !memcmp(s->p + start, "<!--", 4);
        if (tag && comment)
            close = memmem(s->p + start + 4, s->len - start - 4, "-->", 3);
        else if (tag)
            close = memchr(s->p + start, '>', s->len - start);
        jtext_add_part(&t, s, at, close ? start : s->len);
        if (!close)
            break;
        at = (size_t)(close - s->p) + (comment ? 3 : 1);
        jheap_spend(&r->h, 1);
    }
    s = jtext_take(&t);
    static const char *const entity[][2] = {{"&lt;", "<"},    {"&gt;", ">"},  {"&#34;", "\""},
                                            {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
    struct jtext out = {.h = &r->h};
    bool space = false;
    for (struct jchars c = {.s = s}; jchars_next(&c);) {
        if (junicode_is_space(c.code)) {
            space = true;
            continue;
        }
        if (space && out.len)
            jtext_add_lit(&out, " ", c.input);
        space = false;
        jtext_add_code(&out, c.code, c.input);
    }
    s = jtext_take(&out);
    for (size_t i = 0; i < sizeof(entity) / sizeof(entity[0]); i++)
        s = jmethod_replace(r, s, jval_lit(&r->h, entity[i][0]).s, jval_lit(&r->h, entity[i][1]).s, -1);
    return jval_str(s);
}

static void add_quoted(struct jtext *t, const struct jstr *s, bool query)
{
    jheap_spend(t->h, s->len / 8);
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->p[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
                     (c && c < 0x80 && strchr("_.-~", c));
        if (plain || (c == '/' && !query))
            jtext_add(t, s->p + i, 1, jstr_any_input(s));
        else if (c == ' ' && query)
            jtext_add_lit(t, "+", jstr_any_input(s));
        else
            jtext_printf(t, jstr_any_input(s), "%%%02X", c);
    }
}

static struct jval filter_urlencode(struct jrun *r, struct jval v, const struct jargs *a)
{
    struct jtext t = {.h = &r->h};
    jargs_none(r, a, "urlencode");
    if (v.type == J_STR || !jval_is_iterable(v)) {
        add_quoted(&t, text_of(r, v), false);
        return jval_str(jtext_take(&t));
    }
    struct jview view = {v.dict, JVIEW_ITEMS};
    if (v.type == J_DICT)
        v = (struct jval){.type = J_VIEW, .view = &view};
    const struct jlist *items = jval_items(&r->h, v);
    for (size_t i = 0; i < items->n; i++) {
        const struct jlist *pair = jval_items(&r->h, items->at[i]);
        if (pair->n != 2)
            jheap_fail(&r->h, "urlencode: expected pairs");
        if (i)
            jtext_add_lit(&t, "&", true);
        add_quoted(&t, text_of(r, pair->at[0]), true);
        jtext_add_lit(&t, "=", true);
        add_quoted(&t, text_of(r, pair->at[1]), true);
    }
    return jval_str(jtext_take(&t));
}

static struct jval filter_wordcount(struct jrun *r, struct jval v, const struct jargs *a)
{
    int64_t n = 0;
    bool in_word = false;
    jargs_none(r, a, "wordcount");
    const struct jstr *s = text_of(r, v);
    jheap_spend(&r->h, s->n_char / 8);
    for (struct jchars c = {.s = s}; jchars_next(&c);) {
        bool word = junicode_is_word(c.code);
        n += word && !in_word;
        in_word = word;
    }
    return jval_int(n);
}

const struct jfilter jfilter_text[] = {
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"format", filter_format},
    {"indent", filter_indent},
    {"lower", filter_lower},
    {"replace", filter_replace},
    {"striptags", filter_striptags},
    {"title", filter_title},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"wordcount", filter_wordcount},
    {NULL, NULL},
};
