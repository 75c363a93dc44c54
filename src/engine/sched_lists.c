/* Where a request stands: the heap of the waiting, the running in order, the parked. */
#include <string.h>

#include "engine/sched_internal.h"

static void heap_place(struct sched *s, int at, struct request *r)
{
    s->waiting[at] = r;
    r->heap_at = at;
}

static void heap_rise(struct sched *s, int at, struct request *r)
{
    for (int parent; at > 0 && sched_is_before(r, s->waiting[parent = (at - 1) / 2]); at = parent)
        heap_place(s, at, s->waiting[parent]);
    heap_place(s, at, r);
}

static void heap_sink(struct sched *s, int at, struct request *r)
{
    for (int child; (child = 2 * at + 1) < s->n_waiting; at = child) {
        if (child + 1 < s->n_waiting && sched_is_before(s->waiting[child + 1], s->waiting[child]))
            child++;
        if (!sched_is_before(s->waiting[child], r))
            break;
        heap_place(s, at, s->waiting[child]);
    }
    heap_place(s, at, r);
}

void sched_waiting_add(struct sched *s, struct request *r)
{
    ASSERT(s->n_waiting < s->limit.max_live);
    r->state = REQUEST_WAITING;
    s->n_holder += r->n_block > 0;
    heap_rise(s, s->n_waiting++, r);
}

void sched_waiting_remove(struct sched *s, struct request *r)
{
    int at = r->heap_at;
    struct request *last = s->waiting[--s->n_waiting];
    s->n_holder -= r->n_block > 0;
    if (last == r)
        return;
    if (at > 0 && sched_is_before(last, s->waiting[(at - 1) / 2]))
        heap_rise(s, at, last);
    else
        heap_sink(s, at, last);
}

void sched_running_add(struct sched *s, struct request *r)
{
    ASSERT(s->n_running < s->limit.max_num_seqs);
    int at = s->n_running++;
    for (; at > 0 && sched_is_before(r, s->running[at - 1]); at--)
        s->running[at] = s->running[at - 1];
    s->running[at] = r;
    r->state = REQUEST_RUNNING;
}

void sched_running_remove(struct sched *s, struct request *r)
{
    int at = 0;
    while (s->running[at] != r)
        at++;
    s->n_running--;
    memmove(s->running + at, s->running + at + 1, (size_t)(s->n_running - at) * sizeof(*s->running));
}

void sched_parked_add(struct sched *s, struct request *r)
{
    ASSERT(s->n_parked < s->limit.max_live);
    r->state = REQUEST_PARKED;
    r->heap_at = s->n_parked;
    s->parked[s->n_parked++] = r;
}

void sched_parked_remove(struct sched *s, struct request *r)
{
    struct request *last = s->parked[--s->n_parked];
    s->parked[r->heap_at] = last;
    last->heap_at = r->heap_at;
}

void sched_check_lists(const struct sched *s)
{
    int n_holder = 0;
    for (int i = 0; i < s->n_waiting; i++) {
        const struct request *r = s->waiting[i];
        ASSERT(r->state == REQUEST_WAITING && r->heap_at == i);
        ASSERT(i == 0 || !sched_is_before(r, s->waiting[(i - 1) / 2]));
        n_holder += r->n_block > 0;
    }
    ASSERT(n_holder == s->n_holder);
    for (int i = 0; i < s->n_running; i++) {
        const struct request *r = s->running[i];
        ASSERT(r->state == REQUEST_RUNNING && (i == 0 || sched_is_before(s->running[i - 1], r)));
        ASSERT(r->n_computed <= r->n_tok && r->n_tok <= r->n_max && r->n_computed <= r->n_block * KV_BLOCK);
    }
    for (int i = 0; i < s->n_parked; i++)
        ASSERT(s->parked[i]->state == REQUEST_PARKED && s->parked[i]->heap_at == i);
}
