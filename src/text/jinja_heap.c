#include "text/jinja_heap.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define CHUNK_MIN ((size_t)16 << 10)
#define CHUNK_MAX ((size_t)1 << 20)

struct jheap_chunk {
    struct jheap_chunk *next;
    _Alignas(16) char data[];
};

void jheap_init(struct jheap *h, size_t max_bytes, uint64_t steps)
{
    memset(h, 0, sizeof(*h));
    h->max = max_bytes;
    h->steps = steps;
}

void jheap_free(struct jheap *h)
{
    while (h->chunk) {
        struct jheap_chunk *next = h->chunk->next;
        free(h->chunk);
        h->chunk = next;
    }
}

/* Make room for n bytes in the region; what was left of its chunk stays unused. */
static void refill(struct jheap *h, struct jheap_region *region, size_t n)
{
    size_t size = h->used / 4 < CHUNK_MIN ? CHUNK_MIN : h->used / 4 > CHUNK_MAX ? CHUNK_MAX : h->used / 4;
    size = (size + 15) & ~(size_t)15;
    if (size < n)
        size = n;
    if (size > h->max - h->used)
        size = n;
    if (size > h->max - h->used)
        jheap_fail(h, "the template needs more memory than the limit of %zu bytes", h->max);
    struct jheap_chunk *chunk = malloc(sizeof(*chunk) + size);
    if (!chunk)
        jheap_fail(h, "out of memory");
    chunk->next = h->chunk;
    h->chunk = chunk;
    h->used += size;
    region->top = chunk->data;
    region->end = chunk->data + size;
}

void *jheap_alloc(struct jheap *h, size_t n, size_t size)
{
    size_t bytes;
    if (!size_mul(n, size, &bytes) || bytes > h->max)
        jheap_fail(h, "the template needs more memory than the limit of %zu bytes", h->max);
    bytes = (bytes + 15) & ~(size_t)15;
    if (!h->object.top || (size_t)(h->object.end - h->object.top) < bytes)
        refill(h, &h->object, bytes);
    void *p = h->object.top;
    h->object.top += bytes;
    if (bytes)
        memset(p, 0, bytes);
    jheap_spend_bytes(h, bytes);
    return p;
}

char *jheap_text(struct jheap *h, size_t n)
{
    if (n > h->max)
        jheap_fail(h, "the template needs more memory than the limit of %zu bytes", h->max);
    if (!h->text.top || (size_t)(h->text.end - h->text.top) < n)
        refill(h, &h->text, n + 1);
    char *p = h->text.top;
    h->text.top += n;
    jheap_spend_bytes(h, n);
    return p;
}

bool jheap_text_extend(struct jheap *h, const char *end, size_t more)
{
    if (end != h->text.top || (size_t)(h->text.end - h->text.top) < more)
        return false;
    h->text.top += more;
    jheap_spend_bytes(h, more);
    return true;
}

void jheap_text_shrink(struct jheap *h, char *end, const char *allocated_end)
{
    if (allocated_end == h->text.top)
        h->text.top = end;
}

void jheap_spend(struct jheap *h, size_t steps)
{
    if (h->steps < steps)
        jheap_fail(h, "the template takes more steps than the limit");
    h->steps -= steps;
}

void jheap_spend_bytes(struct jheap *h, size_t n)
{
    jheap_spend(h, n / 64);
}

_Noreturn void jheap_fail(struct jheap *h, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(h->message, sizeof(h->message), fmt, args);
    va_end(args);
    longjmp(h->on_fail, 1);
}
