/* Calls whose instructions are counted: the same number on every run of one build, however busy the machine
 * is. */
#ifndef NYB_GUARD_H
#define NYB_GUARD_H

#include <stddef.h>

#include "base/arena.h"
#include "base/pool.h"

#define GUARD_STATE_MAX 64 /* pointers that a case may keep */

/* One thread, one arena for each case; whatever is made there is freed with it. */
struct guard_env {
    struct pool *pool;
    struct arena *arena;
};

struct guard_case {
    const char *name;
    void *(*open)(const struct guard_env *env, const struct guard_case *c); /* untimed: what the call needs */
    void (*call)(void *state);  /* what is counted; may be called again */
    void (*close)(void *state); /* NULL: nothing but the arena's */
    int a, b, c, d;             /* what open makes of them */
};

struct guard_list {
    const struct guard_case *v;
    size_t n;
};

/* Kernels of the CPU level in force (NYBBLE_CPU), and what is the same code at every level. */
struct guard_list guard_kernels(void);
struct guard_list guard_text(void);
struct guard_list guard_engine(void);
struct guard_list guard_server(void); /* empty without the server */

/* For calls that cannot fail. */
void guard_must(bool fine, const char *what);

#endif
