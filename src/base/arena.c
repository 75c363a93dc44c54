#include "base/arena.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define ALIGN 64
#define HUGE  ((size_t)2 << 20) /* a page of the large kind */

struct arena_chunk {
    struct arena_chunk *next;
    size_t cap, used;
    _Alignas(ALIGN) unsigned char data[];
};

void arena_init(struct arena *a, size_t chunk_bytes)
{
    *a = (struct arena){.chunk_bytes = chunk_bytes < 4096 ? 4096 : chunk_bytes};
}

/* What takes several large pages fills them (mem_try_aligned makes it of such): activations are written a
 * line here and a line there. */
static void push_chunk(struct arena *a, size_t cap)
{
    bool large = cap >= 2 * HUGE;
    size_t unit = large ? HUGE : ALIGN, bytes = (sizeof(struct arena_chunk) + cap + unit - 1) / unit * unit;
    struct arena_chunk *c = mem_try_aligned(bytes);
    if (!c)
        mem_grow(NULL, SIZE_MAX, 2); /* dies with the usual message */
    cap = bytes - sizeof(*c);
    c->next = a->head;
    c->cap = cap;
    c->used = 0;
    a->head = c;
}

void *arena_alloc(struct arena *a, size_t n, size_t size)
{
    size_t bytes;
    ASSERT(size_mul(n, size, &bytes) && bytes <= SIZE_MAX / 4);
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (!a->head || a->head->cap - a->head->used < bytes) {
        size_t cap = bytes > a->chunk_bytes ? bytes : a->chunk_bytes;
        push_chunk(a, (cap + ALIGN - 1) & ~(size_t)(ALIGN - 1));
    }
    void *p = a->head->data + a->head->used;
    a->head->used += bytes;
    a->used += bytes;
    if (a->used > a->peak)
        a->peak = a->used;
    return p;
}

void *arena_calloc(struct arena *a, size_t n, size_t size)
{
    void *p = arena_alloc(a, n, size);
    memset(p, 0, n * size);
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *copy = arena_alloc(a, n + 1, 1);
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

/* Several chunks become one of their sum, so that the next round finds it all in one piece. */
void arena_reset(struct arena *a)
{
    size_t total = 0;
    for (struct arena_chunk *c = a->head; c; c = c->next)
        total += c->cap;
    if (a->head && a->head->next) {
        while (a->head) {
            struct arena_chunk *next = a->head->next;
            free(a->head);
            a->head = next;
        }
        push_chunk(a, total);
    } else if (a->head) {
        a->head->used = 0;
    }
    a->used = 0;
}

void arena_free(struct arena *a)
{
    while (a->head) {
        struct arena_chunk *next = a->head->next;
        free(a->head);
        a->head = next;
    }
    a->used = 0;
}
