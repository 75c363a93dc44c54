#include "model/slots.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"

#define SLOT_ALIGN 64u
#define HUGE_PAGE  ((size_t)2 << 20)

void slots_init(struct slots *s)
{
    *s = (struct slots){0};
    arena_init(&s->names, 64 << 10);
}

void slots_free(struct slots *s)
{
    if (s->map_base)
        munmap(s->map_base, s->mapped);
    free(s->slot);
    arena_free(&s->names);
    *s = (struct slots){0};
}

static struct slot *add(struct slots *s, const char *name, int n, int k)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 256;
        s->slot = mem_grow(s->slot, (size_t)s->cap, sizeof(*s->slot));
    }
    struct slot *slot = &s->slot[s->n++];
    *slot = (struct slot){.name = arena_strdup(&s->names, name), .n = n, .k = k};
    return slot;
}

void slots_add_matrix(struct slots *s, struct weight *to, int n, int k, const char *name)
{
    struct slot *slot = add(s, name, n, k);
    slot->kind = SLOT_MATRIX;
    slot->weight = to;
}

void slots_add_vector(struct slots *s, float **to, int n, float dummy, const char *name)
{
    struct slot *slot = add(s, name, n, 1);
    slot->kind = SLOT_VECTOR;
    slot->vector = to;
    slot->dummy = dummy;
}

static size_t slot_bytes(const struct slot *s)
{
    size_t bytes = s->kind == SLOT_MATRIX ? weight_data_bytes(s->weight->type, s->n, s->k)
                                          : (size_t)s->n * sizeof(float);
    return (bytes + SLOT_ALIGN - 1) & ~(size_t)(SLOT_ALIGN - 1);
}

size_t slots_bytes(const struct slots *s)
{
    size_t total = 0;
    for (int i = 0; i < s->n; i++)
        if (!size_add(total, slot_bytes(&s->slot[i]), &total))
            return SIZE_MAX;
    return total;
}

/* The slab begins on a huge page, so that the kernel can back all of it with them: a decode step reads the
 * weights once through, and with 4 KB pages the TLB would miss on every one. */
enum nyb_code slots_reserve(struct slots *s, struct nyb_err *err)
{
    s->slab_bytes = slots_bytes(s);
    if (!size_add(s->slab_bytes, HUGE_PAGE, &s->mapped))
        return err_set(err, NYB_E_MEMORY, "the weights are more than memory can address");
    void *base =
        mmap(NULL, s->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        s->mapped = 0;
        return err_set(err, NYB_E_MEMORY, "no memory for %.2f GB of weights", (double)s->slab_bytes * 1e-9);
    }
    s->map_base = base;
    s->slab = (uint8_t *)(((uintptr_t)base + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (s->slab_bytes >= HUGE_PAGE) /* whole pages only: a small model must not grow to 2 MB */
        madvise(s->slab, s->slab_bytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
    uint8_t *at = s->slab;
    for (int i = 0; i < s->n; i++) {
        struct slot *slot = &s->slot[i];
        if (slot->kind == SLOT_MATRIX)
            slot->weight->data = at;
        else
            *slot->vector = (float *)(void *)at;
        at += slot_bytes(slot);
    }
    return NYB_OK;
}
