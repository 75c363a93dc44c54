#include "engine/inbox.h"

#include <stdlib.h>

#include "base/mem.h"

enum nyb_code inbox_open(struct inbox *q, size_t n, struct nyb_err *err)
{
    size_t size = 2;
    while (size < n)
        size *= 2;
    *q = (struct inbox){.mask = size - 1, .cell = mem_try_alloc(size, sizeof(*q->cell))};
    if (!q->cell)
        return err_set(err, NYB_E_MEMORY, "no memory for a queue of %zu requests", n);
    for (size_t i = 0; i < size; i++)
        atomic_init(&q->cell[i].turn, i);
    return NYB_OK;
}

void inbox_close(struct inbox *q)
{
    free(q->cell);
    q->cell = NULL;
}

bool inbox_push(struct inbox *q, void *item)
{
    size_t at = atomic_load_explicit(&q->tail, memory_order_relaxed);
    for (;;) {
        struct inbox_cell *c = &q->cell[at & q->mask];
        size_t turn = atomic_load_explicit(&c->turn, memory_order_acquire);
        if (turn == at) {
            if (atomic_compare_exchange_weak_explicit(&q->tail, &at, at + 1, memory_order_relaxed,
                                                      memory_order_relaxed)) {
                c->item = item;
                atomic_store_explicit(&c->turn, at + 1, memory_order_release);
                return true;
            }
        } else if ((ptrdiff_t)(turn - at) < 0) {
            return false; /* the reader has not emptied it since the last round */
        } else {
            at = atomic_load_explicit(&q->tail, memory_order_relaxed);
        }
    }
}

void *inbox_pop(struct inbox *q)
{
    struct inbox_cell *c = &q->cell[q->head & q->mask];
    if (atomic_load_explicit(&c->turn, memory_order_acquire) != q->head + 1)
        return NULL;
    void *item = c->item;
    atomic_store_explicit(&c->turn, q->head + q->mask + 1, memory_order_release);
    q->head++;
    return item;
}
