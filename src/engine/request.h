/* One request: what was asked, where it stands, and the ring that carries its replies to the reader.
 *
 * Made by the reader's thread; from engine_submit on, the engine's thread owns all but what is marked as
 * shared. Both ends hold it (owners); the last one to let go frees it. Its arena holds everything it will
 * ever need, so that the engine's thread never allocates for it. */
#ifndef NYB_ENGINE_REQUEST_H
#define NYB_ENGINE_REQUEST_H

#include <stdatomic.h>

#include "engine/bell.h"
#include "engine/history.h"
#include "engine/kv.h"
#include "engine/params.h"
#include "engine/version.h"

/* Replies a reader may be behind. A request is scheduled only while two places are free: one for its next
 * token, one for an abort after it. */
#define REQUEST_RING 64

struct reply {
    int32_t token; /* -1: none */
    enum nyb_finish finish;
    int32_t stop_token;
    int cached_tokens;
    uint64_t time_ns;
    struct version *version; /* of the weights that made the token, or NULL; the ring shares it */
};

enum request_state { REQUEST_NEW, REQUEST_WAITING, REQUEST_RUNNING, REQUEST_PARKED, REQUEST_DONE };

struct request {
    struct arena arena;
    struct params p;
    const char *id;      /* the caller's name for it, or NULL */
    int64_t key;         /* smaller goes first: time of arrival in us, moved by the priority */
    int n_prompt, n_max; /* n_max: prompt + max_tokens */
    int32_t *tok;        /* (n_max) prompt, then the answer; the prompt is read-only and shared */

    /* ---- the scheduler's */
    enum request_state state;
    uint64_t number; /* of arrival: decides between equal keys                             */
    int heap_at;     /* place in the waiting heap, or in the parked list                   */
    int n_tok;       /* known tokens                                                       */
    int n_computed;  /* of them, whose K and V are in `block`                              */
    int n_block, n_sealed;
    int32_t *block; /* (n_max / KV_BLOCK, rounded up) */
    int home;       /* rank that has the blocks */
    struct kv_chain chain;
    int n_cached; /* prompt tokens that the prefix cache gave at the first admission; -1 before */
    int row;      /* in this step's plan, or -1 */

    struct version *first_version; /* that computed its first token; shared once a reply came */

    /* ---- the sampler's */
    struct history *history;       /* or NULL */
    struct constraint *constraint; /* or NULL; the request's own */
    struct nyb_logprob
        *prompt_logprob; /* (n_prompt, 1 + n_prompt_logprob), or NULL; shared once a reply came */
    int n_scored;        /* prompt tokens whose logprob is known; the first has none */

    int live_at; /* the engine's list */

    /* ---- shared */
    atomic_int owners;
    atomic_bool cancelled;
    atomic_uint_fast64_t scheduled_ns; /* 0: not yet */
    uint64_t submitted_ns;
    struct nyb_err error; /* filled before a reply that says NYB_FINISH_ERROR */

    struct reply *ring;          /* (REQUEST_RING)                                         */
    struct nyb_logprob *logprob; /* (REQUEST_RING, 1 + n_logprob), or NULL                  */
    atomic_uint head, tail;      /* next to read, next to write; they run on, modulo 2^32   */
    atomic_bool stalled;         /* the engine waits for room                              */
    struct bell bell;            /* rings for the reader                                   */
    void (*wake)(void *arg);
    void *wake_arg;
    atomic_bool waking;   /* the engine is about to call wake, or in it */
    atomic_bool detached; /* the reader is gone                          */

    /* How the reader calls the engine: a count of things to look at, and its bell. */
    atomic_uint *attention;
    struct bell *engine_bell;
};

/* Empty, with one owner: fill p, then request_prepare. */
struct request *request_new(void);
/* Copy the prompt and make room for all that p asks for. */
void request_prepare(struct request *r, const int32_t *prompt, int n_prompt, int vocab);
/* Let go of it. */
void request_release(struct request *r);

/* ---- the engine's end */

/* Whether a step may make a token for it. If not, the reader will call for attention when it has read half.
 */
bool request_has_room(struct request *r);
/* Hand over one reply; logprob (1 + n_logprob) is copied, NULL where there is none. */
void request_emit(struct request *r, const struct reply *reply, const struct nyb_logprob *logprob);

/* ---- the reader's end */

/* False when there is none. *logprob points into the ring's place, valid until request_pop. */
bool request_peek(struct request *r, struct reply *reply, const struct nyb_logprob **logprob);
void request_pop(struct request *r);
void request_cancel(struct request *r);
/* No wake after this. */
void request_detach(struct request *r);

#endif
