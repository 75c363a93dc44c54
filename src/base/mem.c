#include "base/mem.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *or_die(void *p)
{
    if (!p) {
        fputs("nybble: out of memory\n", stderr);
        abort();
    }
    return p;
}

void *mem_alloc(size_t n, size_t size)
{
    return or_die(calloc(n ? n : 1, size ? size : 1));
}

void *mem_grow(void *p, size_t n, size_t size)
{
    size_t bytes;
    if (!size_mul(n, size, &bytes))
        return or_die(NULL);
    return or_die(realloc(p, bytes ? bytes : 1));
}

void *mem_try_alloc(size_t n, size_t size)
{
    size_t bytes;
    if (!size_mul(n, size, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    return calloc(bytes ? bytes : 1, 1);
}

void *mem_try_aligned(size_t bytes)
{
    size_t padded;
    if (!size_add(bytes, 63, &padded) || padded > PTRDIFF_MAX)
        return NULL;
    return aligned_alloc(64, (padded & ~(size_t)63) | (padded < 64 ? 64 : 0));
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

char *mem_strndup(const char *s, size_t n)
{
    char *copy = mem_alloc(n + 1, 1);
    memcpy(copy, s, n);
    return copy;
}

char *mem_printf(const char *fmt, ...)
{
    char *text;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    return or_die(n < 0 ? NULL : text);
}
