/* What a parse or a render takes: memory that is freed at once, steps, and one way out.
 *
 * Failing is a longjmp to the function that owns the heap. Nothing between them owns anything but heap
 * memory. */
#ifndef NYB_TEXT_JINJA_HEAP_H
#define NYB_TEXT_JINJA_HEAP_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JHEAP_MESSAGE_MAX 1024

struct jheap_chunk;

/* Objects and text grow apart, so that the last string can be extended where it lies. */
struct jheap_region {
    char *top, *end;
};

struct jheap {
    struct jheap_chunk *chunk;
    struct jheap_region object, text;
    size_t used, max; /* bytes taken from the system, and their limit */
    uint64_t steps;   /* that are left */
    int depth;        /* of the evaluation, of the source while parsing */
    int line;         /* being executed or parsed */
    jmp_buf on_fail;
    bool is_message; /* the template's own words, from raise_exception */
    char message[JHEAP_MESSAGE_MAX];
};

void jheap_init(struct jheap *h, size_t max_bytes, uint64_t steps);
void jheap_free(struct jheap *h);

void *jheap_alloc(struct jheap *h, size_t n, size_t size); /* (n, size), zeroed, aligned to 16 */
char *jheap_text(struct jheap *h, size_t n);               /* not aligned, not cleared */
/* Add `more` bytes to the text that ends at `end`, where nothing follows it and there is room. */
bool jheap_text_extend(struct jheap *h, const char *end, size_t more);
/* Give back what follows `end` of the text allocated last. */
void jheap_text_shrink(struct jheap *h, char *end, const char *allocated_end);

void jheap_spend(struct jheap *h, size_t steps);
/* Steps for work on n bytes. */
void jheap_spend_bytes(struct jheap *h, size_t n);

_Noreturn void jheap_fail(struct jheap *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
