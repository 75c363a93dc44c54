#include "engine/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The counts are sequentially consistent: a ringer that sees no sleeper has added to `count` before the
 * sleeper compares it, and the kernel then refuses to let it sleep. */

void bell_ring(struct bell *b)
{
    atomic_fetch_add(&b->count, 1);
    if (atomic_load(&b->sleepers))
        syscall(SYS_futex, &b->count, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

unsigned bell_look(struct bell *b)
{
    return atomic_load(&b->count);
}

void bell_wait(struct bell *b, unsigned seen, int timeout_ms)
{
    struct timespec limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    atomic_fetch_add(&b->sleepers, 1);
    if (atomic_load(&b->count) == seen)
        syscall(SYS_futex, &b->count, FUTEX_WAIT_PRIVATE, seen, timeout_ms < 0 ? NULL : &limit, NULL, 0);
    atomic_fetch_sub(&b->sleepers, 1);
}
