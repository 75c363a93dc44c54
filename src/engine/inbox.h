/* Requests on their way to the engine's thread: a bounded queue, many threads in, one out, no locks.
 * Dmitry Vyukov's bounded queue: each cell carries the number of the turn it is ready for. */
#ifndef NYB_ENGINE_INBOX_H
#define NYB_ENGINE_INBOX_H

#include <stdatomic.h>
#include <stddef.h>

#include "base/err.h"

struct inbox_cell {
    atomic_size_t turn;
    void *item;
};

struct inbox {
    size_t mask;
    struct inbox_cell *cell;         /* (mask + 1) */
    _Alignas(64) atomic_size_t tail; /* next to write */
    _Alignas(64) size_t head;        /* next to read; the reader's own */
};

/* Holds at least n. */
enum nyb_code inbox_open(struct inbox *q, size_t n, struct nyb_err *err) NYB_MUST_CHECK;
void inbox_close(struct inbox *q);
/* False when it is full. */
bool inbox_push(struct inbox *q, void *item);
/* NULL when it is empty. One thread only. */
void *inbox_pop(struct inbox *q);

#endif
