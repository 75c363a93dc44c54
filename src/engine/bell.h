/* A bell: one thread sleeps until another rings. Never loses a ring that comes between looking and sleeping:
 *
 *     unsigned seen = bell_look(b);
 *     if (nothing to do)
 *         bell_wait(b, seen, timeout_ms);
 *
 * Ringing costs an atomic add, and a system call only while somebody sleeps. */
#ifndef NYB_ENGINE_BELL_H
#define NYB_ENGINE_BELL_H

#include <stdatomic.h>
#include <stdbool.h>

struct bell {
    atomic_uint count; /* the futex word */
    atomic_uint sleepers;
};

void bell_ring(struct bell *b);
unsigned bell_look(struct bell *b);
/* Until the bell has rung since `seen` was looked up, or timeout_ms have passed (< 0: no limit). May also
 * return early: look again. */
void bell_wait(struct bell *b, unsigned seen, int timeout_ms);

#endif
