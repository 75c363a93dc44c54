#include "model/slots.h"

#include <stdlib.h>

#include "base/mem.h"
#include "model/origin.h"

#define SLOT_ALIGN 64u

void slots_init(struct slots *s)
{
    *s = (struct slots){0};
    arena_init(&s->names, 64 << 10);
}

void slots_free(struct slots *s)
{
    pages_free(&s->slab);
    for (int i = 0; i < s->n; i++)
        origin_drop(s->slot[i].origin);
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
    *slot = (struct slot){.name = arena_strdup(&s->names, name), .n = n, .k = k, .n_whole = n, .k_whole = k};
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

void slots_cut(struct slots *s, int row, int n, int column, int k)
{
    ASSERT(s->n > 0);
    struct slot *slot = &s->slot[s->n - 1];
    ASSERT(row >= 0 && n >= 0 && row + n <= slot->n_whole && column >= 0 && column + k <= slot->k_whole);
    slot->row = row;
    slot->n = n;
    slot->column = column;
    slot->k = k;
}

size_t slot_bytes(const struct slot *s)
{
    size_t bytes = s->kind == SLOT_MATRIX ? weight_data_bytes(s->weight->type, s->n, s->k)
                                          : (size_t)s->n * sizeof(float);
    return (bytes + SLOT_ALIGN - 1) & ~(size_t)(SLOT_ALIGN - 1);
}

uint8_t *slot_address(const struct slot *s)
{
    return s->kind == SLOT_MATRIX ? s->weight->data : (uint8_t *)*s->vector;
}

void slot_set_address(struct slot *s, uint8_t *at)
{
    if (s->kind == SLOT_MATRIX)
        s->weight->data = at;
    else
        *s->vector = (float *)(void *)at;
}

size_t slots_bytes(const struct slots *s)
{
    size_t total = 0;
    for (int i = 0; i < s->n; i++)
        if (!size_add(total, slot_bytes(&s->slot[i]), &total))
            return SIZE_MAX;
    return total;
}

enum nyb_code slots_reserve(struct slots *s, struct nyb_err *err)
{
    TRY(pages_reserve(&s->slab, slots_bytes(s), err));
    uint8_t *at = s->slab.data;
    for (int i = 0; i < s->n; i++) {
        slot_set_address(&s->slot[i], at);
        at += slot_bytes(&s->slot[i]);
    }
    return NYB_OK;
}

/* A quarter of the cache is left to activations, the KV cache and other programs. */
void slots_mark_near(struct slots *s, size_t last_cache)
{
    bool near = slots_bytes(s) <= last_cache / 4 * 3;
    for (int i = 0; i < s->n; i++)
        if (s->slot[i].kind == SLOT_MATRIX)
            s->slot[i].weight->near = near;
}
