/* Large memory that is made of huge pages where the kernel has them, and trading its pages for others'. */
#ifndef NYB_MODEL_PAGES_H
#define NYB_MODEL_PAGES_H

#include "base/pool.h"

#define PAGES_HUGE ((size_t)2 << 20)

struct pages {
    uint8_t *data; /* aligned to PAGES_HUGE, zero; NULL: none */
    uint8_t *map_base;
    size_t bytes, mapped;
};

/* Memory comes with first use. Up to the end of its last 4 KB page it may be exchanged. */
enum nyb_code pages_reserve(struct pages *p, size_t bytes, struct nyb_err *err) NYB_MUST_CHECK;
void pages_free(struct pages *p);

/* The contents of a and of b, which do not overlap, change places; the addresses stay. Whole pages, each
 * within memory of pages_reserve. Moving page tables takes a few microseconds for each 2 MB; where the kernel
 * cannot (Linux before 5.7, too many mappings) the bytes are copied. Nobody may use either meanwhile. */
void pages_exchange(uint8_t *a, uint8_t *b, size_t bytes, struct pool *pool);
/* The second way alone: any addresses. */
void pages_exchange_by_copy(uint8_t *a, uint8_t *b, size_t bytes, struct pool *pool);

#endif
