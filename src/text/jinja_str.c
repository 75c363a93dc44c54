#include "text/jinja_str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/utf8.h"

static size_t count_chars(const char *p, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += !utf8_is_tail(p[i]);
    return n;
}

const struct jstr *jstr_view(struct jheap *h, const char *p, size_t len, bool input)
{
    struct jstr *s = jheap_alloc(h, 1, sizeof(*s));
    jheap_spend_bytes(h, len);
    s->p = p;
    s->len = len;
    s->n_char = count_chars(p, len);
    s->input = input;
    return s;
}

const struct jstr *jstr_new(struct jheap *h, const char *p, size_t len, bool input)
{
    char *copy = jheap_text(h, len);
    if (len)
        memcpy(copy, p, len);
    return jstr_view(h, copy, len, input);
}

/* Append the segments of s[from..to) to seg, which ends with n of them; returns the new number. */
static size_t copy_segs(struct jseg *seg, size_t n, const struct jstr *s, size_t from, size_t to)
{
    size_t start = 0;
    for (size_t i = 0; i < (s->seg ? s->n_seg : 1); i++) {
        size_t len = s->seg ? s->seg[i].len : s->len;
        bool input = s->seg ? s->seg[i].input : s->input;
        size_t a = start > from ? start : from, b = start + len < to ? start + len : to;
        start += len;
        if (a >= b)
            continue;
        if (n && seg[n - 1].input == input)
            seg[n - 1].len += b - a;
        else
            seg[n++] = (struct jseg){b - a, input};
    }
    return n;
}

/* One origin for all of it, where that holds. */
static void settle_segs(struct jstr *s, const struct jseg *seg, size_t n)
{
    s->seg = n > 1 ? seg : NULL;
    s->n_seg = n > 1 ? n : 0;
    s->input = n ? seg[0].input : s->input;
}

const struct jstr *jstr_part(struct jheap *h, const struct jstr *s, size_t from, size_t to)
{
    if (from == 0 && to == s->len)
        return s;
    struct jstr *part = jheap_alloc(h, 1, sizeof(*part));
    part->p = s->p + from;
    part->len = to - from;
    part->input = s->input;
    part->markup = s->markup;
    if (s->n_char == s->len) {
        part->n_char = part->len;
    } else {
        jheap_spend_bytes(h, part->len);
        part->n_char = count_chars(part->p, part->len);
    }
    if (s->seg) {
        struct jseg *seg = jheap_alloc(h, s->n_seg, sizeof(*seg));
        settle_segs(part, seg, copy_segs(seg, 0, s, from, to));
    }
    return part;
}

const struct jstr *jstr_concat(struct jheap *h, const struct jstr *a, const struct jstr *b)
{
    if (a->len == 0 && !a->markup)
        return b;
    if (b->len == 0)
        return a;
    struct jstr *s = jheap_alloc(h, 1, sizeof(*s));
    s->len = a->len + b->len;
    s->n_char = a->n_char + b->n_char;
    s->markup = a->markup;
    if (jheap_text_extend(h, a->p + a->len, b->len)) {
        s->p = a->p;
        memcpy((char *)(uintptr_t)(a->p + a->len), b->p, b->len);
    } else {
        char *p = jheap_text(h, s->len);
        if (a->len)
            memcpy(p, a->p, a->len);
        memcpy(p + a->len, b->p, b->len);
        s->p = p;
    }
    s->input = a->len ? a->input : b->input;
    if (a->len && (a->seg || b->seg || a->input != b->input)) {
        struct jseg *seg = jheap_alloc(h, a->n_seg + b->n_seg + 2, sizeof(*seg));
        size_t n = copy_segs(seg, 0, a, 0, a->len);
        settle_segs(s, seg, copy_segs(seg, n, b, 0, b->len));
    } else if (!a->len) {
        s->seg = b->seg;
        s->n_seg = b->n_seg;
    }
    return s;
}

const struct jstr *jstr_as_markup(struct jheap *h, const struct jstr *s, bool markup)
{
    if (s->markup == markup)
        return s;
    struct jstr *copy = jheap_alloc(h, 1, sizeof(*copy));
    *copy = *s;
    copy->markup = markup;
    return copy;
}

bool jstr_equal(const struct jstr *a, const struct jstr *b)
{
    return a->len == b->len && (a->len == 0 || !memcmp(a->p, b->p, a->len));
}

bool jstr_is(const struct jstr *s, const char *text)
{
    return s->len == strlen(text) && !memcmp(s->p, text, s->len);
}

int jstr_compare(const struct jstr *a, const struct jstr *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int order = n ? memcmp(a->p, b->p, n) : 0;
    return order ? order : a->len < b->len ? -1 : a->len > b->len;
}

bool jstr_any_input(const struct jstr *s)
{
    return s->seg || s->input; /* more than one segment: one of them is */
}

size_t jstr_offset(struct jheap *h, const struct jstr *s, size_t index)
{
    if (s->n_char == s->len)
        return index;
    size_t at = 0;
    for (size_t i = 0; i < index; i++)
        at += utf8_size(s->p[at]);
    jheap_spend_bytes(h, at);
    return at;
}

size_t jstr_index(struct jheap *h, const struct jstr *s, size_t offset)
{
    if (s->n_char == s->len)
        return offset;
    jheap_spend_bytes(h, offset);
    return count_chars(s->p, offset);
}

size_t jstr_find(struct jheap *h, const struct jstr *s, const struct jstr *what, size_t from, size_t to)
{
    if (from > to || what->len > to - from)
        return SIZE_MAX;
    if (what->len == 0)
        return from;
    const char *hit = memmem(s->p + from, to - from, what->p, what->len);
    jheap_spend_bytes(h, hit ? (size_t)(hit - s->p) - from : to - from);
    return hit ? (size_t)(hit - s->p) : SIZE_MAX;
}

size_t jstr_rfind(struct jheap *h, const struct jstr *s, const struct jstr *what, size_t from, size_t to)
{
    if (from > to || what->len > to - from)
        return SIZE_MAX;
    if (what->len == 0)
        return to;
    jheap_spend(h, (to - from) / 16 + what->len / 16); /* comparisons mostly end at their first byte */
    for (size_t at = to - what->len + 1; at-- > from;) {
        if (s->p[at] != what->p[0])
            continue;
        jheap_spend_bytes(h, what->len);
        if (!memcmp(s->p + at, what->p, what->len))
            return at;
    }
    return SIZE_MAX;
}

bool jchars_next(struct jchars *c)
{
    const struct jstr *s = c->s;
    if (c->at >= s->len)
        return false;
    if (!s->seg) {
        c->input = s->input;
    } else if (c->at >= c->seg_end) {
        c->input = s->seg[c->seg].input;
        c->seg_end += s->seg[c->seg++].len;
    }
    c->code = utf8_code(s->p + c->at);
    c->at += utf8_size(s->p[c->at]);
    return true;
}

static void reserve(struct jtext *t, size_t more)
{
    if (more <= t->cap - t->len)
        return;
    size_t cap = t->cap + (t->cap > more ? t->cap : more);
    cap = cap < 64 ? 64 : cap;
    if (t->p && jheap_text_extend(t->h, t->p + t->cap, cap - t->cap)) {
        t->cap = cap;
        return;
    }
    char *p = jheap_text(t->h, cap);
    if (t->len)
        memcpy(p, t->p, t->len);
    t->p = p;
    t->cap = cap;
}

static void add_seg(struct jtext *t, size_t len, bool input)
{
    if (t->n_seg && t->seg[t->n_seg - 1].input == input) {
        t->seg[t->n_seg - 1].len += len;
        return;
    }
    if (t->n_seg == t->cap_seg) {
        size_t cap = t->cap_seg ? t->cap_seg * 2 : 4;
        struct jseg *seg = jheap_alloc(t->h, cap, sizeof(*seg));
        if (t->n_seg)
            memcpy(seg, t->seg, t->n_seg * sizeof(*seg));
        t->seg = seg;
        t->cap_seg = cap;
    }
    t->seg[t->n_seg++] = (struct jseg){len, input};
}

void jtext_add(struct jtext *t, const char *p, size_t n, bool input)
{
    if (n == 0)
        return;
    reserve(t, n);
    memcpy(t->p + t->len, p, n);
    t->len += n;
    add_seg(t, n, input);
    jheap_spend_bytes(t->h, n);
}

void jtext_add_lit(struct jtext *t, const char *s, bool input)
{
    jtext_add(t, s, strlen(s), input);
}

void jtext_add_str(struct jtext *t, const struct jstr *s)
{
    jtext_add_part(t, s, 0, s->len);
}

void jtext_add_part(struct jtext *t, const struct jstr *s, size_t from, size_t to)
{
    if (!s->seg) {
        jtext_add(t, s->p + from, to - from, s->input);
        return;
    }
    size_t start = 0;
    for (size_t i = 0; i < s->n_seg && start < to; i++) {
        size_t end = start + s->seg[i].len;
        size_t a = start > from ? start : from, b = end < to ? end : to;
        if (a < b)
            jtext_add(t, s->p + a, b - a, s->seg[i].input);
        start = end;
    }
}

void jtext_add_code(struct jtext *t, uint32_t code, bool input)
{
    char u[4];
    size_t n;
    if (code < 0x80) {
        u[0] = (char)code;
        n = 1;
    } else if (code < 0x800) {
        u[0] = (char)(0xC0 | code >> 6);
        n = 2;
    } else if (code < 0x10000) {
        u[0] = (char)(0xE0 | code >> 12);
        n = 3;
    } else {
        u[0] = (char)(0xF0 | code >> 18);
        n = 4;
    }
    for (size_t i = 1; i < n; i++)
        u[i] = (char)(0x80 | (code >> (6 * (n - 1 - i)) & 0x3F));
    jtext_add(t, u, n, input);
}

void jtext_printf(struct jtext *t, bool input, const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof(line))
        jheap_fail(t->h, "a formatted value is longer than %zu bytes", sizeof(line));
    jtext_add(t, line, (size_t)n, input);
}

const struct jstr *jtext_take(struct jtext *t)
{
    struct jstr *s = jheap_alloc(t->h, 1, sizeof(*s));
    if (t->p)
        jheap_text_shrink(t->h, t->p + t->len, t->p + t->cap);
    s->p = t->p ? t->p : "";
    s->len = t->len;
    s->n_char = count_chars(s->p, s->len);
    settle_segs(s, t->seg, t->n_seg);
    return s;
}
