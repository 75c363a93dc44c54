#include "base/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LINE  ((size_t)64)      /* of the cache           */
#define LARGE ((size_t)2 << 20) /* a page of the large kind */

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
    bool large = bytes >= 2 * LARGE;
    size_t unit = large ? LARGE : LINE, padded;
    if (!size_add(bytes, unit - 1, &padded) || padded > PTRDIFF_MAX)
        return NULL;
    padded &= ~(unit - 1);
    void *p = aligned_alloc(unit, padded ? padded : unit);
    if (p && large) {
        int saved = errno;                 /* callers may be about to report another call's */
        madvise(p, padded, MADV_HUGEPAGE); /* best effort */
        errno = saved;
    }
    return p;
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
