#include "model/name_set.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Bytes of the name that are its owner's. */
static size_t owner_length(const char *tensor)
{
    static const char *const suffix[] = {
        ".weight",      ".weight_packed",       ".weight_scale",       ".weight_scale_2",
        ".input_scale", ".weight_global_scale", ".input_global_scale",
    };
    size_t n = strlen(tensor);
    for (size_t i = 0; i < COUNT_OF(suffix); i++) {
        size_t m = strlen(suffix[i]);
        if (n > m && !strcmp(tensor + n - m, suffix[i]))
            return n - m;
    }
    return n;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void name_set_collect_unused(struct name_set *s, const struct ckpt *c)
{
    *s = (struct name_set){0};
    arena_init(&s->names, 4 << 10);
    s->name = mem_alloc((size_t)c->n_tensor + 1, sizeof(*s->name));
    for (int i = 0; i < c->n_tensor; i++) {
        const struct ckpt_tensor *t = &c->tensor[i];
        if (!atomic_load_explicit(&t->used, memory_order_relaxed))
            s->name[s->n++] = arena_strndup(&s->names, t->name, owner_length(t->name));
    }
    s->name = mem_grow(s->name, (size_t)s->n + 1, sizeof(*s->name));
    qsort(s->name, (size_t)s->n, sizeof(*s->name), by_text);
}

void name_set_add(struct name_set *s, const char *const *tensor, size_t n)
{
    if (!s->name)
        arena_init(&s->names, 4 << 10);
    s->name = mem_grow(s->name, (size_t)s->n + n + 1, sizeof(*s->name));
    for (size_t i = 0; i < n; i++)
        s->name[s->n++] = arena_strndup(&s->names, tensor[i], owner_length(tensor[i]));
    qsort(s->name, (size_t)s->n, sizeof(*s->name), by_text);
}

bool name_set_has_owner(const struct name_set *s, const char *tensor)
{
    char *owner = mem_strndup(tensor, owner_length(tensor));
    bool found = s->n && bsearch(&owner, s->name, (size_t)s->n, sizeof(*s->name), by_text);
    free(owner);
    return found;
}

void name_set_free(struct name_set *s)
{
    free(s->name);
    arena_free(&s->names);
    *s = (struct name_set){0};
}
