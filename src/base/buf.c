#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

void buf_reserve(struct buf *b, size_t more)
{
    size_t need;
    ASSERT(size_add(b->len, more, &need) && size_add(need, 1, &need));
    if (need <= b->cap)
        return;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap += cap / 2 + 1;
    b->data = mem_grow(b->data, cap, 1);
    b->cap = cap;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    buf_reserve(b, n);
    if (n)
        memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = 0;
}

void buf_add_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_add_byte(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_add_utf8(struct buf *b, uint32_t c)
{
    unsigned char u[4];
    size_t n;
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        c = 0xfffd;
    if (c < 0x80) {
        u[0] = (unsigned char)c;
        n = 1;
    } else if (c < 0x800) {
        u[0] = (unsigned char)(0xc0 | c >> 6);
        u[1] = (unsigned char)(0x80 | (c & 63));
        n = 2;
    } else if (c < 0x10000) {
        u[0] = (unsigned char)(0xe0 | c >> 12);
        u[1] = (unsigned char)(0x80 | (c >> 6 & 63));
        u[2] = (unsigned char)(0x80 | (c & 63));
        n = 3;
    } else {
        u[0] = (unsigned char)(0xf0 | c >> 18);
        u[1] = (unsigned char)(0x80 | (c >> 12 & 63));
        u[2] = (unsigned char)(0x80 | (c >> 6 & 63));
        u[3] = (unsigned char)(0x80 | (c & 63));
        n = 4;
    }
    buf_add(b, u, n);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    char *text;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    ASSERT(n >= 0);
    buf_add(b, text, (size_t)n);
    free(text);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data)
        b->data[0] = 0;
}

char *buf_steal(struct buf *b)
{
    buf_reserve(b, 0);
    b->data[b->len] = 0;
    char *data = b->data;
    *b = (struct buf){0};
    return data;
}

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}
