/* The name of one state of the weights. Replies carry it, so it lives until the last of them has been read.
 */
#ifndef NYB_ENGINE_VERSION_H
#define NYB_ENGINE_VERSION_H

#include <stdatomic.h>

#include "nybble.h"

struct version {
    atomic_int owners;
    uint64_t generation;
    char name[NYB_VERSION_MAX];
};

/* With one owner. The name must fit. */
struct version *version_new(uint64_t generation, const char *name);
/* Any thread. NULL is fine. */
struct version *version_share(struct version *v);
void version_drop(struct version *v);

#endif
