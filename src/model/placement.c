#include "model/placement.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

/* From `expert` to the lists of copies. */
static void list_copies(struct placement *p)
{
    int16_t *next = mem_alloc((size_t)p->n_expert + 1, sizeof(*next));
    for (int s = 0; s < p->n_slot; s++)
        next[p->expert[s] + 1]++;
    p->first[0] = 0;
    for (int e = 0; e < p->n_expert; e++) {
        ASSERT(next[e + 1] > 0); /* every expert is somewhere */
        p->first[e + 1] = (int16_t)(p->first[e] + next[e + 1]);
        next[e] = p->first[e];
    }
    for (int s = 0; s < p->n_slot; s++)
        p->copy[next[p->expert[s]]++] = (int16_t)s;
    free(next);
}

void placement_init(struct placement *p, int n_expert, int n_slot, int n_rank)
{
    ASSERT(n_expert >= 1 && n_slot >= n_expert && n_slot <= INT16_MAX && n_rank >= 1 &&
           n_slot <= n_expert * n_rank);
    *p = (struct placement){.n_expert = n_expert, .n_slot = n_slot, .n_rank = n_rank};
    p->expert = mem_alloc((size_t)n_slot, sizeof(*p->expert));
    p->first = mem_alloc((size_t)n_expert + 1, sizeof(*p->first));
    p->copy = mem_alloc((size_t)n_slot, sizeof(*p->copy));
    for (int s = 0; s < n_slot; s++)
        p->expert[s] = (int16_t)(s % n_expert);
    list_copies(p);
}

void placement_copy(struct placement *to, const struct placement *from)
{
    ASSERT(to->n_expert == from->n_expert && to->n_slot == from->n_slot && to->n_rank == from->n_rank);
    memcpy(to->expert, from->expert, (size_t)from->n_slot * sizeof(*to->expert));
    list_copies(to);
}

void placement_free(struct placement *p)
{
    free(p->expert);
    free(p->first);
    free(p->copy);
    *p = (struct placement){0};
}

static int first_slot(int rank, int n_rank, int n_slot)
{
    return (int)((int64_t)n_slot * rank / n_rank);
}

struct shard_range placement_slots(int rank, int n_rank, int n_slot)
{
    int begin = first_slot(rank, n_rank, n_slot);
    return (struct shard_range){begin, first_slot(rank + 1, n_rank, n_slot) - begin};
}

int placement_rank(const struct placement *p, int slot)
{
    int rank = (int)((int64_t)slot * p->n_rank / p->n_slot); /* or one beside it */
    while (slot < first_slot(rank, p->n_rank, p->n_slot))
        rank--;
    while (slot >= first_slot(rank + 1, p->n_rank, p->n_slot))
        rank++;
    return rank;
}

int placement_copies(const struct placement *p, int expert)
{
    return p->first[expert + 1] - p->first[expert];
}

void placement_apply(struct placement *p, const struct placement_move *m)
{
    int16_t there = p->expert[m->to];
    p->expert[m->to] = p->expert[m->from];
    if (m->exchange)
        p->expert[m->from] = there;
    list_copies(p);
}
