/* Arenas: allocations that die together. Three lifetimes use them: process, request, step.
 * Not thread-safe. arena_reset keeps the memory, so a steady step loop allocates nothing. */
#ifndef NYB_BASE_ARENA_H
#define NYB_BASE_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_chunk *head; /* chunk being filled; older ones behind it */
    size_t chunk_bytes;       /* size of the next chunk                   */
    size_t used, peak;        /* bytes handed out since the last reset    */
};

void arena_init(struct arena *a, size_t chunk_bytes);
void *arena_alloc(struct arena *a, size_t n, size_t size);  /* (n, size), 64-byte aligned, not zeroed */
void *arena_calloc(struct arena *a, size_t n, size_t size); /* zeroed */
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n);
void arena_reset(struct arena *a);
void arena_free(struct arena *a);

#endif
