/* A growing byte string. data is always NUL-terminated once anything was added;
 * the terminator is not counted in len. A zeroed struct is an empty one. */
#ifndef NYB_BASE_BUF_H
#define NYB_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data;
    size_t len, cap;
};

void buf_reserve(struct buf *b, size_t more);
void buf_add(struct buf *b, const void *p, size_t n);
void buf_add_str(struct buf *b, const char *s);
void buf_add_byte(struct buf *b, char c);
void buf_add_utf8(struct buf *b, uint32_t code_point); /* invalid ones become U+FFFD */
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_clear(struct buf *b);  /* keeps the memory */
char *buf_steal(struct buf *b); /* caller frees; never NULL */
void buf_free(struct buf *b);

#endif
