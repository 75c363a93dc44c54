/* One step of the engine after another: plan, forward, sample, deliver. The thread around it is engine.c;
 * tests drive it directly.
 *
 * Owned by one thread. Allocates nothing after step_open. */
#ifndef NYB_ENGINE_STEP_H
#define NYB_ENGINE_STEP_H

#include "engine/runner.h"
#include "engine/sampler.h"
#include "engine/sched.h"
#include "engine/tally.h"

struct step_options {
    int max_num_seqs, max_num_batched_tokens;
    int max_len;  /* prompt + answer  */
    int max_live; /* requests at once */
    int max_logprobs;
    int n_block; /* of the KV cache; at least max_len's */
    bool prefix_cache;
    int n_rank;                 /* ranks that sequences are shared out over; <= 1: one */
    const char *weight_version; /* of the weights at the start; NULL: replies carry none */
};

/* What the thread tells others. Written by it alone. */
struct step_stats {
    atomic_int running, waiting, stalled, blocks_used;
    atomic_uint_fast64_t steps, preemptions, prompt_tokens, generation_tokens;
    atomic_uint_fast64_t prefix_queries, prefix_hits, finished[NYB_FINISH_COUNT];
    struct tally tokens, seconds; /* of each step */
};

struct step {
    struct runner runner;
    struct step_options option;
    struct kv_map *kv;
    struct sched sched;
    struct sampler *sampler;
    struct request **live; /* (max_live) all that have not ended */
    int n_live;
    float *logits;           /* (max_num_seqs + score rows, vocab) */
    int32_t *sampled;        /* (max_num_seqs) */
    atomic_bool *unscorable; /* (max_num_seqs) a row of logits of a prompt has no finite one */
    int32_t *out_owner;      /* (max_num_seqs + score rows) the plan's row of each row of logits */
    struct draw *draw;       /* (max_num_seqs + score rows) what the runner draws itself */
    int32_t *drawn;          /* (max_num_seqs + score rows) its tokens */
    int32_t *todo;           /* (n_todo) rows of logits that are this process's to score or to sample */
    struct sampler_drawn *together; /* (max_num_seqs + score rows) those of them that are drawn together */
    int n_todo, n_draw;             /* n_draw: how many the runner draws */
    struct nyb_logprob *logprob;    /* (max_num_seqs, 1 + max_logprobs) */
    atomic_uint attention;          /* readers count up: something was cancelled, or has room again */
    unsigned attention_seen;
    struct step_stats stats;
    struct version *version; /* of the weights now, or NULL */
    uint64_t n_root;         /* of prefix caches: a new one for each flush and each change of the weights */
    atomic_bool paused;      /* no steps: asked for */
    atomic_bool held;        /* the weights are being changed right now */
    uint64_t n_failed;       /* steps whose forward pass failed */
    struct nyb_err error;    /* of the last of them */
};

/* Reserves the KV cache in the runner. */
enum nyb_code step_open(struct step *s, const struct runner *runner, const struct step_options *o,
                        struct nyb_err *err) NYB_MUST_CHECK;
/* Nothing may be live. */
void step_close(struct step *s);

/* A prepared request. The step becomes one of its owners. n_live < max_live. */
void step_add(struct step *s, struct request *r);
/* Run one step. False: there was nothing to run; a new request or the bell may change that. */
bool step_run(struct step *s);
/* End all that is live. */
void step_abort_all(struct step *s);
/* End what has this id. Returns how many. */
int step_abort_id(struct step *s, const char *id);
/* Requests that have taken part in a step. */
int step_started(const struct step *s);

/* Nothing that is cached matches any more. Blocks that requests hold stay theirs. */
void step_flush_cache(struct step *s);
/* The runner computes with other weights from now on. Takes over the version. */
void step_set_version(struct step *s, struct version *v);
/* Drop all KV: what has begun is computed anew. Who has no token yet begins anew altogether. */
void step_retract_all(struct step *s);

#endif
