#include "model/pages.h"

#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"

#ifndef MREMAP_DONTUNMAP /* Linux 5.7 */
#define MREMAP_DONTUNMAP 4
#endif

#define COPY_PIECE ((size_t)1 << 20) /* an item of the pool                    */
#define COPY_BLOCK ((size_t)8 << 10) /* on the stack, so that it stays in cache */

/* It begins on a huge page, so that the kernel can back all of it with them: a decode step reads the weights
 * once through, and with 4 KB pages the TLB would miss on every one. */
enum nyb_code pages_reserve(struct pages *p, size_t bytes, struct nyb_err *err)
{
    *p = (struct pages){.bytes = bytes};
    if (!size_add(bytes, PAGES_HUGE, &p->mapped))
        return err_set(err, NYB_E_MEMORY, "%zu bytes of weights are more than memory can address", bytes);
    void *base =
        mmap(NULL, p->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        *p = (struct pages){0};
        return err_set(err, NYB_E_MEMORY, "no memory for %.2f GB of weights", (double)bytes * 1e-9);
    }
    p->map_base = base;
    p->data = (uint8_t *)(((uintptr_t)base + PAGES_HUGE - 1) & ~(uintptr_t)(PAGES_HUGE - 1));
    if (bytes >= PAGES_HUGE) /* whole pages only: a small model must not grow to 2 MB */
        madvise(p->data, bytes & ~(PAGES_HUGE - 1), MADV_HUGEPAGE);
    return NYB_OK;
}

void pages_free(struct pages *p)
{
    if (p->map_base)
        munmap(p->map_base, p->mapped);
    *p = (struct pages){0};
}

/* ---- by page tables ------------------------------------------------------------------------------ */

/* The pages at `from` go to `to`, replacing what was there; `from` stays mapped and reads as zeros. Were it
 * unmapped, another thread's next mmap could be given that range, and would lose it again. */
static bool move(uint8_t *from, uint8_t *to, size_t bytes)
{
    return mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) == to;
}

/* A move that must not fail: what page tables cannot do, copying can. */
static void move_back(uint8_t *from, uint8_t *to, size_t bytes)
{
    if (!move(from, to, bytes))
        memcpy(to, from, bytes);
}

static bool exchange_by_moving(uint8_t *a, uint8_t *b, size_t bytes)
{
    struct pages aside;
    if (pages_reserve(&aside, bytes, NULL) != NYB_OK)
        return false;
    bool moved = move(a, aside.data, bytes);
    if (moved) {
        bool second = move(b, a, bytes);
        move_back(aside.data, second ? b : a, bytes);
        moved = second;
    }
    pages_free(&aside);
    return moved;
}

void pages_exchange(uint8_t *a, uint8_t *b, size_t bytes, struct pool *pool)
{
    if (!exchange_by_moving(a, b, bytes))
        pages_exchange_by_copy(a, b, bytes, pool);
}

/* ---- by copying ---------------------------------------------------------------------------------- */

struct copy {
    uint8_t *a, *b;
    size_t bytes;
};

static void copy_piece(void *arg, int item, int worker)
{
    (void)worker;
    const struct copy *c = arg;
    size_t at = (size_t)item * COPY_PIECE, end = c->bytes - at < COPY_PIECE ? c->bytes : at + COPY_PIECE;
    uint8_t block[COPY_BLOCK];
    for (; at < end; at += COPY_BLOCK) {
        size_t n = end - at < COPY_BLOCK ? end - at : COPY_BLOCK;
        memcpy(block, c->a + at, n);
        memcpy(c->a + at, c->b + at, n);
        memcpy(c->b + at, block, n);
    }
}

void pages_exchange_by_copy(uint8_t *a, uint8_t *b, size_t bytes, struct pool *pool)
{
    struct copy c = {a, b, bytes};
    size_t n = (bytes + COPY_PIECE - 1) / COPY_PIECE;
    ASSERT(n <= INT32_MAX);
    pool_run(pool, (int)n, copy_piece, &c);
}
