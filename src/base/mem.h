/* Heap helpers: overflow-checked sizes, and growth that cannot silently fail.
 * mem_* abort on exhaustion: they serve small bookkeeping. Sizes that a file or
 * a client chooses go through mem_try_*, which return NULL. */
#ifndef NYB_BASE_MEM_H
#define NYB_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

void *mem_alloc(size_t n, size_t size);         /* zeroed (n, size)           */
void *mem_grow(void *p, size_t n, size_t size); /* realloc to (n, size)       */
void *mem_try_alloc(size_t n, size_t size);     /* zeroed, or NULL            */
/* 64-byte aligned, or NULL; free(). What takes several pages of the large kind is made of such where
 * possible. */
void *mem_try_aligned(size_t bytes);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* a * b and a + b into *out; false on overflow. */
static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

#endif
