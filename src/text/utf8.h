/* UTF-8, strictly: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef NYB_TEXT_UTF8_H
#define NYB_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Offset of the first byte that does not belong to a well-formed character; len when all do. */
size_t utf8_valid_prefix(const char *s, size_t len);

/* What stands at s[0..len), len > 0. */
enum utf8_kind {
    UTF8_CHAR,       /* a whole character of *n bytes                                      */
    UTF8_BAD,        /* *n bytes that no continuation can make well-formed (maximal part)  */
    UTF8_INCOMPLETE, /* the text ends within a character that is well-formed so far        */
};
enum utf8_kind utf8_look(const char *s, size_t len, size_t *n);

/* Append s; each maximal ill-formed part becomes one U+FFFD (Unicode 3.9, and Rust's from_utf8_lossy). */
void utf8_add_lossy(struct buf *out, const char *s, size_t len);

/* Bytes of the character that starts with this byte, in well-formed text. */
static inline size_t utf8_size(char first)
{
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* The code point at s in well-formed text. */
static inline uint32_t utf8_code(const char *s)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80)
        return u[0];
    if (u[0] < 0xE0)
        return (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
    if (u[0] < 0xF0)
        return (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
    return (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
}

/* True for a byte that continues a character. */
static inline bool utf8_is_tail(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

#endif
