/* Stacks that take turns on one system thread. */
#pragma once

#include <cstddef>
#include <cstdint>

struct fiber {
    void *stack;     /* saved stack pointer while it does not run */
    uint8_t *memory; /* its stack, FIBER_BYTES behind a page that faults */
    void *fake;      /* the address sanitizer's */
    bool alive;
};

#define FIBER_BYTES (128u << 10)

/* `body` is called on the new stack at the first switch and must never return. False: no memory. */
bool fiber_make(fiber *f, void (*body)());
void fiber_free(fiber *f);
/* From the system thread's own stack to a fiber, until that calls fiber_leave. A fiber stays with one
 * system thread. */
void fiber_enter(fiber *f);
void fiber_leave(fiber *f);
/* From one fiber straight to another of the same system thread. */
void fiber_pass(fiber *from, fiber *to);
/* First thing in `body`. */
void fiber_begin();
