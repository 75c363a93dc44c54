/* What the scheduler's files share. */
#ifndef NYB_ENGINE_SCHED_INTERNAL_H
#define NYB_ENGINE_SCHED_INTERNAL_H

#include "engine/sched.h"

static inline int sched_blocks_for(int n_tok)
{
    return (n_tok + KV_BLOCK - 1) / KV_BLOCK;
}

/* The order of the waiting and of the running: by key, then as they came. */
static inline bool sched_is_before(const struct request *a, const struct request *b)
{
    return a->key < b->key || (a->key == b->key && a->number < b->number);
}

/* Prompt tokens still to be scored make a row of logits each. */
static inline bool sched_is_scoring(const struct request *r)
{
    return r->n_scored < r->n_prompt;
}

/* ---- sched_lists.c: a request is in one list at a time, and its state says in which ---- */

void sched_waiting_add(struct sched *s, struct request *r);
void sched_waiting_remove(struct sched *s, struct request *r);
void sched_running_add(struct sched *s, struct request *r);
void sched_running_remove(struct sched *s, struct request *r);
void sched_parked_add(struct sched *s, struct request *r);
void sched_parked_remove(struct sched *s, struct request *r);
/* Asserts what these promise. */
void sched_check_lists(const struct sched *s);

/* ---- sched_batch.c ---- */

/* The rows of the plan; *b is good until the next plan. */
void sched_write_batch(struct sched *s, struct batch *b);

#endif
