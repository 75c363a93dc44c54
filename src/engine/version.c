#include "engine/version.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

struct version *version_new(uint64_t generation, const char *name)
{
    struct version *v = mem_alloc(1, sizeof(*v));
    ASSERT(strlen(name) < sizeof(v->name));
    atomic_init(&v->owners, 1);
    v->generation = generation;
    memcpy(v->name, name, strlen(name) + 1);
    return v;
}

struct version *version_share(struct version *v)
{
    if (v)
        atomic_fetch_add_explicit(&v->owners, 1, memory_order_relaxed);
    return v;
}

void version_drop(struct version *v)
{
    if (v && atomic_fetch_sub(&v->owners, 1) == 1)
        free(v);
}
