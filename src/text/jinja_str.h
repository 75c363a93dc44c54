/* Strings that know where each of their characters came from, and the builder that makes them. Immutable,
 * well-formed UTF-8; parts of a string share its bytes. */
#ifndef NYB_TEXT_JINJA_STR_H
#define NYB_TEXT_JINJA_STR_H

#include "text/jinja_heap.h"

struct jseg {
    size_t len; /* bytes */
    bool input;
};

struct jstr {
    const char *p; /* (len), not terminated */
    size_t len;
    size_t n_char;
    const struct jseg *seg; /* (n_seg) together len bytes; NULL: all of it has the origin `input` */
    size_t n_seg;
    bool input;
    bool markup; /* Python's Markup: adding plain text to it escapes that text */
};

const struct jstr *jstr_new(struct jheap *h, const char *p, size_t len, bool input); /* copies p */
const struct jstr *jstr_view(struct jheap *h, const char *p, size_t len,
                             bool input); /* p outlives the heap */
const struct jstr *jstr_part(struct jheap *h, const struct jstr *s, size_t from, size_t to); /* bytes */
const struct jstr *jstr_concat(struct jheap *h, const struct jstr *a, const struct jstr *b);
const struct jstr *jstr_as_markup(struct jheap *h, const struct jstr *s, bool markup);

bool jstr_equal(const struct jstr *a, const struct jstr *b);
bool jstr_is(const struct jstr *s, const char *text);
int jstr_compare(const struct jstr *a, const struct jstr *b); /* by code points */
bool jstr_any_input(const struct jstr *s);

/* Byte offset of the character with this index (index <= n_char). */
size_t jstr_offset(struct jheap *h, const struct jstr *s, size_t index);
/* Characters before this byte. */
size_t jstr_index(struct jheap *h, const struct jstr *s, size_t offset);
/* First occurrence at or after byte `from` that ends at or before `to`; SIZE_MAX: none. */
size_t jstr_find(struct jheap *h, const struct jstr *s, const struct jstr *what, size_t from, size_t to);
size_t jstr_rfind(struct jheap *h, const struct jstr *s, const struct jstr *what, size_t from, size_t to);

/* Walks over the characters of a string. Zeroed but for s, it stands before the first. */
struct jchars {
    const struct jstr *s;
    size_t at; /* byte after the character */
    size_t seg, seg_end;
    uint32_t code;
    bool input;
};
bool jchars_next(struct jchars *c);

struct jtext {
    struct jheap *h;
    char *p;
    size_t len, cap;
    struct jseg *seg;
    size_t n_seg, cap_seg;
};
void jtext_add(struct jtext *t, const char *p, size_t n, bool input);
void jtext_add_lit(struct jtext *t, const char *s, bool input);
void jtext_add_str(struct jtext *t, const struct jstr *s);
void jtext_add_part(struct jtext *t, const struct jstr *s, size_t from, size_t to); /* bytes */
void jtext_add_code(struct jtext *t, uint32_t code, bool input);
void jtext_printf(struct jtext *t, bool input, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
const struct jstr *jtext_take(struct jtext *t); /* ends the builder's life */

#endif
