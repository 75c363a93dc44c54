#include "engine/request.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sampler.h"

_Static_assert((REQUEST_RING & (REQUEST_RING - 1)) == 0, "indices run modulo 2^32");

struct request *request_new(void)
{
    struct request *r = mem_alloc(1, sizeof(*r));
    arena_init(&r->arena, 4096);
    atomic_init(&r->owners, 1);
    return r;
}

void request_prepare(struct request *r, const int32_t *prompt, int n_prompt, int vocab)
{
    ASSERT(n_prompt > 0 && r->p.max_tokens > 0 && n_prompt <= INT32_MAX - r->p.max_tokens);
    struct arena *a = &r->arena;
    r->n_prompt = r->n_tok = n_prompt;
    r->n_max = n_prompt + r->p.max_tokens;
    r->tok = arena_alloc(a, (size_t)r->n_max, sizeof(*r->tok));
    memcpy(r->tok, prompt, (size_t)n_prompt * sizeof(*prompt));
    r->block = arena_alloc(a, ((size_t)r->n_max + KV_BLOCK - 1) / KV_BLOCK, sizeof(*r->block));
    r->n_cached = -1;
    r->row = -1;
    if (sampler_wants_history(&r->p))
        r->history = history_new(a, r->tok, n_prompt, r->p.max_tokens, vocab);
    r->n_scored = r->p.n_prompt_logprob >= 0 ? 1 : n_prompt;
    if (r->p.n_prompt_logprob >= 0)
        r->prompt_logprob = arena_calloc(a, (size_t)n_prompt * (size_t)(1 + r->p.n_prompt_logprob),
                                         sizeof(*r->prompt_logprob));
    r->ring = arena_calloc(a, REQUEST_RING, sizeof(*r->ring));
    if (r->p.n_logprob >= 0)
        r->logprob = arena_calloc(a, REQUEST_RING * (size_t)(1 + r->p.n_logprob), sizeof(*r->logprob));
}

void request_release(struct request *r)
{
    if (!r || atomic_fetch_sub(&r->owners, 1) > 1)
        return;
    unsigned tail = atomic_load(&r->tail);
    for (unsigned i = atomic_load(&r->head); i != tail; i++)
        version_drop(r->ring[i % REQUEST_RING].version);
    version_drop(r->first_version);
    constraint_close(r->constraint);
    arena_free(&r->arena);
    free(r);
}

static unsigned used(struct request *r)
{
    return atomic_load(&r->tail) - atomic_load(&r->head);
}

/* The flag is raised before the second look, and the reader looks at it after each pop: one of the two sees
 * the other. */
bool request_has_room(struct request *r)
{
    if (used(r) <= REQUEST_RING - 2)
        return true;
    atomic_store(&r->stalled, true);
    return used(r) <= REQUEST_RING / 2;
}

void request_emit(struct request *r, const struct reply *reply, const struct nyb_logprob *logprob)
{
    unsigned tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    ASSERT(used(r) < REQUEST_RING);
    r->ring[tail % REQUEST_RING] = *reply;
    version_share(reply->version);
    if (logprob) {
        size_t n = (size_t)(1 + r->p.n_logprob);
        memcpy(r->logprob + tail % REQUEST_RING * n, logprob, n * sizeof(*logprob));
    }
    /* Raised before the reply can be seen, so that a reader who sees the end and detaches waits for us. */
    atomic_store(&r->waking, true);
    atomic_store(&r->tail, tail + 1);
    bell_ring(&r->bell);
    if (r->wake && !atomic_load(&r->detached))
        r->wake(r->wake_arg);
    atomic_store(&r->waking, false);
}

bool request_peek(struct request *r, struct reply *reply, const struct nyb_logprob **logprob)
{
    unsigned head = atomic_load_explicit(&r->head, memory_order_relaxed);
    if (atomic_load(&r->tail) == head)
        return false;
    *reply = r->ring[head % REQUEST_RING];
    *logprob = r->logprob && reply->token >= 0
                   ? r->logprob + head % REQUEST_RING * (size_t)(1 + r->p.n_logprob)
                   : NULL;
    return true;
}

static void call_engine(struct request *r)
{
    if (!r->engine_bell)
        return;
    atomic_fetch_add(r->attention, 1);
    bell_ring(r->engine_bell);
}

void request_pop(struct request *r)
{
    version_drop(r->ring[atomic_load_explicit(&r->head, memory_order_relaxed) % REQUEST_RING].version);
    atomic_fetch_add(&r->head, 1);
    if (atomic_load(&r->stalled) && used(r) <= REQUEST_RING / 2 && atomic_exchange(&r->stalled, false))
        call_engine(r);
}

void request_cancel(struct request *r)
{
    if (!atomic_exchange(&r->cancelled, true))
        call_engine(r);
}

void request_detach(struct request *r)
{
    atomic_store(&r->detached, true);
    while (atomic_load(&r->waking))
        sched_yield();
}
