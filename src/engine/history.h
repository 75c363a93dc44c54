/* How often each token occurred in one request: what the three penalties need. Grows by one token a step;
 * memory comes from the request's arena once, for the longest it can become. */
#ifndef NYB_ENGINE_HISTORY_H
#define NYB_ENGINE_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

struct history_entry {
    int32_t token;
    uint32_t in_prompt : 1, n_out : 31; /* occurrences in the answer */
};

struct history {
    struct history_entry *entry; /* (n) distinct tokens, in the order they came */
    int n, cap;
    int32_t *index; /* (mask + 1) open addressing into entry, -1: free */
    uint32_t mask;
};

struct history *history_new(struct arena *a, const int32_t *prompt, int n_prompt, int max_tokens, int vocab);
void history_add_output(struct history *h, int32_t token);

#endif
