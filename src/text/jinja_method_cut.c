/* Methods of strings that search and cut. */
#include <string.h>

#include "text/jinja_format.h"
#include "text/jinja_method.h"
#include "text/jinja_repr.h"
#include "text/jinja_unicode.h"
#include "text/utf8.h"

static bool in_set(uint32_t code, const struct jstr *chars)
{
    if (!chars)
        return junicode_is_space(code);
    for (struct jchars c = {.s = chars}; jchars_next(&c);)
        if (c.code == code)
            return true;
    return false;
}

static size_t char_start(const struct jstr *s, size_t end)
{
    do
        end--;
    while (end > 0 && utf8_is_tail(s->p[end]));
    return end;
}

const struct jstr *jmethod_strip(struct jrun *r, const struct jstr *s, const struct jstr *chars, bool left,
                                 bool right)
{
    size_t from = 0, to = s->len;
    while (left && from < to && in_set(utf8_code(s->p + from), chars))
        from += utf8_size(s->p[from]);
    while (right && to > from && in_set(utf8_code(s->p + char_start(s, to)), chars))
        to = char_start(s, to);
    jheap_spend(&r->h, (s->len - (to - from)) * (chars ? chars->len + 1 : 1) / 16);
    return jstr_part(&r->h, s, from, to);
}

static struct jval strip(struct jrun *r, struct jval self, const struct jargs *a, bool left, bool right)
{
    struct jval chars;
    jargs_bind(r, a, "strip", "chars", 0, &chars);
    if (chars.type == J_NONE)
        chars.type = J_MISSING;
    return jval_str(jmethod_strip(r, self.s, jargs_str(r, chars, "strip"), left, right));
}

static struct jval str_strip(struct jrun *r, struct jval self, const struct jargs *a)
{
    return strip(r, self, a, true, true);
}
static struct jval str_lstrip(struct jrun *r, struct jval self, const struct jargs *a)
{
    return strip(r, self, a, true, false);
}
static struct jval str_rstrip(struct jrun *r, struct jval self, const struct jargs *a)
{
    return strip(r, self, a, false, true);
}

static void add_part(struct jrun *r, struct jlist *list, const struct jstr *s, size_t from, size_t to)
{
    jlist_add(&r->h, list, jval_str(jstr_part(&r->h, s, from, to)));
}

static void split_space(struct jrun *r, struct jlist *out, const struct jstr *s, int64_t max)
{
    size_t at = 0;
    for (;;) {
        while (at < s->len && junicode_is_space(utf8_code(s->p + at)))
            at += utf8_size(s->p[at]);
        if (at >= s->len)
            return;
        size_t from = at;
        if (max >= 0 && out->n >= (size_t)max) {
            add_part(r, out, s, from, s->len);
            return;
        }
        while (at < s->len && !junicode_is_space(utf8_code(s->p + at)))
            at += utf8_size(s->p[at]);
        add_part(r, out, s, from, at);
    }
}

static void reverse(struct jlist *list)
{
    for (size_t i = 0; i < list->n / 2; i++) {
        struct jval v = list->at[i];
        list->at[i] = list->at[list->n - 1 - i];
        list->at[list->n - 1 - i] = v;
    }
}

static void rsplit_space(struct jrun *r, struct jlist *out, const struct jstr *s, int64_t max)
{
    size_t at = s->len;
    for (;;) {
        while (at > 0 && junicode_is_space(utf8_code(s->p + char_start(s, at))))
            at = char_start(s, at);
        if (at == 0)
            break;
        size_t to = at;
        if (max >= 0 && out->n >= (size_t)max) {
            add_part(r, out, s, 0, to);
            break;
        }
        while (at > 0 && !junicode_is_space(utf8_code(s->p + char_start(s, at))))
            at = char_start(s, at);
        add_part(r, out, s, at, to);
    }
    reverse(out);
}

static void split_by(struct jrun *r, struct jlist *out, const struct jstr *s, const struct jstr *by,
                     int64_t max)
{
    size_t at = 0, hit;
    while ((max < 0 || out->n < (size_t)max) && (hit = jstr_find(&r->h, s, by, at, s->len)) != SIZE_MAX) {
        add_part(r, out, s, at, hit);
        at = hit + by->len;
    }
    add_part(r, out, s, at, s->len);
}

static void rsplit_by(struct jrun *r, struct jlist *out, const struct jstr *s, const struct jstr *by,
                      int64_t max)
{
    size_t to = s->len, hit;
    while ((max < 0 || out->n < (size_t)max) && (hit = jstr_rfind(&r->h, s, by, 0, to)) != SIZE_MAX) {
        add_part(r, out, s, hit + by->len, to);
        to = hit;
    }
    add_part(r, out, s, 0, to);
    reverse(out);
}

static struct jval split(struct jrun *r, struct jval self, const struct jargs *a, bool from_right)
{
    struct jval v[2];
    jargs_bind(r, a, "split", "sep,maxsplit", 0, v);
    if (v[0].type == J_NONE)
        v[0].type = J_MISSING;
    const struct jstr *by = jargs_str(r, v[0], "split");
    int64_t max = jargs_int(r, v[1], "split", -1);
    struct jlist *out = jlist_new(&r->h, 0);
    if (by && by->len == 0)
        jheap_fail(&r->h, "empty separator");
    jheap_spend(&r->h, self.s->len / 16);
    if (by)
        (from_right ? rsplit_by : split_by)(r, out, self.s, by, max);
    else
        (from_right ? rsplit_space : split_space)(r, out, self.s, max);
    return jval_list(out);
}

static struct jval str_split(struct jrun *r, struct jval self, const struct jargs *a)
{
    return split(r, self, a, false);
}
static struct jval str_rsplit(struct jrun *r, struct jval self, const struct jargs *a)
{
    return split(r, self, a, true);
}

struct jlist *jmethod_split_lines(struct jrun *r, const struct jstr *s, bool keep)
{
    struct jlist *out = jlist_new(&r->h, 0);
    size_t from = 0;
    jheap_spend(&r->h, s->len / 16);
    for (struct jchars c = {.s = s}; jchars_next(&c);) {
        if (!junicode_is_line_end(c.code))
            continue;
        size_t end = char_start(s, c.at);
        if (c.code == '\r' && c.at < s->len && s->p[c.at] == '\n')
            jchars_next(&c);
        add_part(r, out, s, from, keep ? c.at : end);
        from = c.at;
    }
    if (from < s->len)
        add_part(r, out, s, from, s->len);
    return out;
}

static struct jval str_splitlines(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval keep;
    jargs_bind(r, a, "splitlines", "keepends", 0, &keep);
    return jval_list(jmethod_split_lines(r, self.s, jargs_bool(keep, false)));
}

static struct jval partition(struct jrun *r, struct jval self, const struct jargs *a, bool from_right)
{
    struct jval v;
    jargs_bind(r, a, "partition", "sep", 1, &v);
    const struct jstr *s = self.s, *by = jargs_str(r, v, "partition");
    if (by->len == 0)
        jheap_fail(&r->h, "empty separator");
    size_t hit = (from_right ? jstr_rfind : jstr_find)(&r->h, s, by, 0, s->len);
    struct jlist *out = jlist_new(&r->h, 3);
    size_t none = from_right ? 0 : s->len; /* where nothing was found, all is on this side of it */
    add_part(r, out, s, 0, hit == SIZE_MAX ? none : hit);
    jlist_add(&r->h, out, hit == SIZE_MAX ? jval_lit(&r->h, "") : jval_str(by));
    add_part(r, out, s, hit == SIZE_MAX ? none : hit + by->len, s->len);
    return jval_tuple(out);
}

static struct jval str_partition(struct jrun *r, struct jval self, const struct jargs *a)
{
    return partition(r, self, a, false);
}
static struct jval str_rpartition(struct jrun *r, struct jval self, const struct jargs *a)
{
    return partition(r, self, a, true);
}

/* Bounds in characters, as slices have them, to bytes. False: the start lies beyond the end of the string. */
static bool bounds(struct jrun *r, const struct jstr *s, struct jval start, struct jval stop, size_t *from,
                   size_t *to)
{
    int64_t n = (int64_t)s->n_char;
    int64_t i = start.type == J_NONE ? 0 : jargs_int(r, start, "start", 0);
    int64_t j = stop.type == J_NONE ? n : jargs_int(r, stop, "end", n);
    i = i < -n ? 0 : i < 0 ? i + n : i;
    j = j < -n ? 0 : j < 0 ? j + n : j > n ? n : j;
    if (i > n || i > j)
        return false;
    *from = jstr_offset(&r->h, s, (size_t)i);
    *to = jstr_offset(&r->h, s, (size_t)j);
    return true;
}

static struct jval find(struct jrun *r, struct jval self, const struct jargs *a, bool from_right, bool must)
{
    struct jval v[3];
    size_t from, to, hit = SIZE_MAX;
    jargs_bind(r, a, "find", "sub,start,end", 1, v);
    const struct jstr *what = jargs_str(r, v[0], "find");
    if (bounds(r, self.s, v[1], v[2], &from, &to))
        hit = (from_right ? jstr_rfind : jstr_find)(&r->h, self.s, what, from, to);
    if (hit == SIZE_MAX && must)
        jheap_fail(&r->h, "substring not found");
    return jval_int(hit == SIZE_MAX ? -1 : (int64_t)jstr_index(&r->h, self.s, hit));
}

static struct jval str_find(struct jrun *r, struct jval self, const struct jargs *a)
{
    return find(r, self, a, false, false);
}
static struct jval str_rfind(struct jrun *r, struct jval self, const struct jargs *a)
{
    return find(r, self, a, true, false);
}
static struct jval str_index(struct jrun *r, struct jval self, const struct jargs *a)
{
    return find(r, self, a, false, true);
}
static struct jval str_rindex(struct jrun *r, struct jval self, const struct jargs *a)
{
    return find(r, self, a, true, true);
}

static struct jval str_count(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v[3];
    size_t from, to, hit, n = 0;
    jargs_bind(r, a, "count", "sub,start,end", 1, v);
    const struct jstr *what = jargs_str(r, v[0], "count");
    if (!bounds(r, self.s, v[1], v[2], &from, &to))
        return jval_int(0);
    if (what->len == 0)
        return jval_int((int64_t)(jstr_index(&r->h, self.s, to) - jstr_index(&r->h, self.s, from)) + 1);
    for (; (hit = jstr_find(&r->h, self.s, what, from, to)) != SIZE_MAX; n++)
        from = hit + what->len;
    return jval_int((int64_t)n);
}

static bool has_affix(const struct jstr *s, size_t from, size_t to, const struct jstr *what, bool at_end)
{
    return what->len <= to - from && !memcmp(s->p + (at_end ? to - what->len : from), what->p, what->len);
}

static struct jval affix(struct jrun *r, struct jval self, const struct jargs *a, bool at_end,
                         const char *name)
{
    struct jval v[3];
    size_t from, to;
    jargs_bind(r, a, name, "what,start,end", 1, v);
    if (v[0].type == J_UNDEFINED)
        jval_fail_undefined(&r->h, v[0]);
    if (v[0].type != J_STR && v[0].type != J_TUPLE)
        jheap_fail(&r->h, "%s first arg must be str or a tuple of str, not %s", name, jval_type_name(v[0]));
    bool within = bounds(r, self.s, v[1], v[2], &from, &to);
    if (v[0].type == J_STR)
        return jval_bool(within && has_affix(self.s, from, to, v[0].s, at_end));
    for (size_t i = 0; within && i < v[0].list->n; i++)
        if (has_affix(self.s, from, to, jargs_str(r, v[0].list->at[i], name), at_end))
            return jval_bool(true);
    return jval_bool(false);
}

static struct jval str_startswith(struct jrun *r, struct jval self, const struct jargs *a)
{
    return affix(r, self, a, false, "startswith");
}
static struct jval str_endswith(struct jrun *r, struct jval self, const struct jargs *a)
{
    return affix(r, self, a, true, "endswith");
}

static struct jval str_removeprefix(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v;
    jargs_bind(r, a, "removeprefix", "prefix", 1, &v);
    const struct jstr *s = self.s, *what = jargs_str(r, v, "removeprefix");
    return has_affix(s, 0, s->len, what, false) ? jval_str(jstr_part(&r->h, s, what->len, s->len)) : self;
}

static struct jval str_removesuffix(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v;
    jargs_bind(r, a, "removesuffix", "suffix", 1, &v);
    const struct jstr *s = self.s, *what = jargs_str(r, v, "removesuffix");
    return has_affix(s, 0, s->len, what, true) ? jval_str(jstr_part(&r->h, s, 0, s->len - what->len)) : self;
}

const struct jstr *jmethod_replace(struct jrun *r, const struct jstr *s, const struct jstr *from,
                                   const struct jstr *to, int64_t count)
{
    struct jtext t = {.h = &r->h};
    size_t at = 0, hit;
    for (; count != 0 && from->len; count -= count > 0) {
        hit = jstr_find(&r->h, s, from, at, s->len);
        if (hit == SIZE_MAX)
            break;
        jtext_add_part(&t, s, at, hit);
        jtext_add_str(&t, to);
        at = hit + from->len;
        jheap_spend(&r->h, 1);
    }
    while (!from->len && count != 0) { /* before each character and at the end */
        jtext_add_str(&t, to);
        jheap_spend(&r->h, 1);
        count -= count > 0;
        if (at >= s->len)
            break;
        size_t n = utf8_size(s->p[at]);
        jtext_add_part(&t, s, at, at + n);
        at += n;
    }
    if (at == 0 && t.len == 0)
        return s;
    jtext_add_part(&t, s, at, s->len);
    return jstr_as_markup(&r->h, jtext_take(&t), s->markup);
}

static struct jval str_replace(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v[3];
    if (a->n_kw)
        jheap_fail(&r->h, "str.replace() takes no keyword arguments");
    jargs_bind(r, a, "replace", "old,new,count", 2, v);
    const struct jstr *from = jargs_str(r, v[0], "replace"), *to = jargs_str(r, v[1], "replace");
    return jval_str(jmethod_replace(r, self.s, from, to, jargs_int(r, v[2], "replace", -1)));
}

static struct jval str_join(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v;
    jargs_bind(r, a, "join", "iterable", 1, &v);
    const struct jlist *items = jval_items(&r->h, v);
    struct jtext t = {.h = &r->h};
    for (size_t i = 0; i < items->n; i++) {
        if (items->at[i].type != J_STR)
            jheap_fail(&r->h, "sequence item %zu: expected str instance, %s found", i,
                       jval_type_name(items->at[i]));
        if (i)
            jtext_add_str(&t, self.s);
        jtext_add_str(&t, items->at[i].s);
        jheap_spend(&r->h, 1);
    }
    return jval_str(jstr_as_markup(&r->h, jtext_take(&t), self.s->markup));
}

static struct jval str_format(struct jrun *r, struct jval self, const struct jargs *a)
{
    return jval_str(jformat_braces(r, self.s, a));
}

static struct jval str_expandtabs(struct jrun *r, struct jval self, const struct jargs *a)
{
    struct jval v;
    jargs_bind(r, a, "expandtabs", "tabsize", 0, &v);
    int64_t size = jargs_int(r, v, "expandtabs", 8), column = 0;
    struct jtext t = {.h = &r->h};
    for (struct jchars c = {.s = self.s}; jchars_next(&c);) {
        if (c.code != '\t') {
            jtext_add_code(&t, c.code, c.input);
            column = c.code == '\n' || c.code == '\r' ? 0 : column + 1;
            continue;
        }
        int64_t n = size > 0 ? size - column % size : 0;
        for (int64_t i = 0; i < n; i++) {
            jheap_spend(&r->h, 1);
            jtext_add_lit(&t, " ", c.input);
        }
        column += n;
    }
    return jval_str(jtext_take(&t));
}

const struct jmethod jmethod_str_cut[] = {
    {"strip", J_STR, str_strip},
    {"lstrip", J_STR, str_lstrip},
    {"rstrip", J_STR, str_rstrip},
    {"split", J_STR, str_split},
    {"rsplit", J_STR, str_rsplit},
    {"splitlines", J_STR, str_splitlines},
    {"partition", J_STR, str_partition},
    {"rpartition", J_STR, str_rpartition},
    {"find", J_STR, str_find},
    {"rfind", J_STR, str_rfind},
    {"index", J_STR, str_index},
    {"rindex", J_STR, str_rindex},
    {"count", J_STR, str_count},
    {"startswith", J_STR, str_startswith},
    {"endswith", J_STR, str_endswith},
    {"removeprefix", J_STR, str_removeprefix},
    {"removesuffix", J_STR, str_removesuffix},
    {"replace", J_STR, str_replace},
    {"join", J_STR, str_join},
    {"format", J_STR, str_format},
    {"expandtabs", J_STR, str_expandtabs},
    {NULL, J_MISSING, NULL},
};
