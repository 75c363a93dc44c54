#include "engine/history.h"

#include <string.h>

#include "base/err.h"

static struct history_entry *find_or_add(struct history *h, int32_t token)
{
    uint32_t at = (uint32_t)token * 2654435761u; /* 2^32 / golden ratio */
    for (at &= h->mask; h->index[at] >= 0; at = (at + 1) & h->mask)
        if (h->entry[h->index[at]].token == token)
            return &h->entry[h->index[at]];
    ASSERT(h->n < h->cap);
    h->index[at] = h->n;
    h->entry[h->n] = (struct history_entry){.token = token};
    return &h->entry[h->n++];
}

struct history *history_new(struct arena *a, const int32_t *prompt, int n_prompt, int max_tokens, int vocab)
{
    struct history *h = arena_calloc(a, 1, sizeof(*h));
    int64_t longest = (int64_t)n_prompt + max_tokens;
    h->cap = longest < vocab ? (int)longest : vocab;
    uint32_t size = 16;
    while (size < 2 * (uint32_t)h->cap)
        size *= 2;
    h->mask = size - 1;
    h->entry = arena_alloc(a, (size_t)h->cap, sizeof(*h->entry));
    h->index = arena_alloc(a, size, sizeof(*h->index));
    memset(h->index, 0xff, size * sizeof(*h->index));
    for (int i = 0; i < n_prompt; i++)
        find_or_add(h, prompt[i])->in_prompt = 1;
    return h;
}

void history_add_output(struct history *h, int32_t token)
{
    find_or_add(h, token)->n_out++;
}
