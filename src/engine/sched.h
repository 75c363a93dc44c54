/* The scheduler: which tokens of which requests go into the next step.
 *
 * A request is waiting (a heap), running (at most max_num_seqs, sorted) or parked (its reader is behind). The
 * order of all is one number fixed at arrival, request.key: first come, first served, where a level of
 * priority counts as SCHED_PRIORITY_US of waiting. So every request becomes the first some day, and the first
 * one is never preempted: that no request starves follows from these two.
 *
 * A step takes decode rows first, then prefill chunks. When blocks run out, the last in order gives its
 * blocks back and waits to be computed anew; parked requests go before all others.
 *
 * Owned by one thread. Allocates nothing after sched_open. */
#ifndef NYB_ENGINE_SCHED_H
#define NYB_ENGINE_SCHED_H

#include "engine/request.h"

#define SCHED_PRIORITY_US 10000000 /* 10 s a level */

struct sched_limits {
    int max_num_seqs;           /* running at once                                          */
    int max_num_batched_tokens; /* tokens a step; at least max_num_seqs                     */
    int max_len;                /* prompt + answer of one request                           */
    int max_live;               /* requests in all                                          */
    int n_rank;                 /* ranks that sequences are shared out over; <= 1: nobody asks */
    int max_score_rows;         /* prompt tokens a step whose logprobs are wanted; at least 1 */
};

struct sched_row {
    struct request *r;
    int n_tok;     /* tokens [n_computed, n_computed + n_tok) of the request */
    int n_score;   /* out rows that score the prompt, for tokens n_scored .. n_scored + n_score - 1 */
    int out_first; /* index of its first out row: scores, then the row to sample from */
    bool sample;
};

struct sched {
    struct sched_limits limit;
    struct kv_map *kv;
    struct request **waiting; /* (max_live) heap by key */
    struct request **running; /* (max_num_seqs) sorted by key */
    struct request **parked;  /* (max_live) */
    int n_waiting, n_running, n_parked;
    int n_holder;          /* waiting requests that still have blocks */
    struct sched_row *row; /* (max_num_seqs) this step's plan */
    int n_row;
    uint64_t n_preemption, prefix_queries, prefix_hits; /* the last two in tokens */
    bool only_started; /* who has not begun yet waits: the weights are about to change */
    /* private: the plan's budget, and the storage behind struct batch */
    uint64_t next_number;
    int tokens_left, score_left;
    bool preempted;
    int32_t *tok, *pos, *slot, *seq_start, *block_table, *out_row, *home;
};

/* kv must hold max_len tokens; it stays the caller's. */
enum nyb_code sched_open(struct sched *s, const struct sched_limits *limit, struct kv_map *kv,
                         struct nyb_err *err) NYB_MUST_CHECK;
void sched_close(struct sched *s);

/* A new request, or a parked one whose reader has caught up. */
void sched_add(struct sched *s, struct request *r);
/* Take it out, whatever its state, and drop its blocks. */
void sched_remove(struct sched *s, struct request *r);

/* Plan a step into s->row and *b (which points into s). False: there is nothing to run. */
bool sched_plan(struct sched *s, struct batch *b);
/* The step was run: its tokens are computed now, full blocks are sealed. */
void sched_commit(struct sched *s);

/* Whether a request has taken part in a step. */
bool sched_has_started(const struct request *r);
/* Between two steps: drop the blocks of all; who ran waits in its old place and is computed anew. */
void sched_retract_all(struct sched *s);

/* Walk everything and abort where an invariant is broken. For tests. */
void sched_check(const struct sched *s);

#endif
