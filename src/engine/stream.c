/* The reader's end of a request: submit, next event, cancel, free. Detokenizing and the search for stop
 * strings happen here, on the reader's thread. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clocale.h"
#include "base/clock.h"
#include "base/mem.h"
#include "engine/instance.h"
#include "text/stop.h"

#define PRIORITY_MAX 1000

struct nyb_stream {
    struct request *r;
    struct detok *detok; /* NULL: no tokenizer */
    struct stop *stop;   /* NULL: no stop strings */
    struct buf piece, text;
    int n_out;
    bool holds_place; /* the last event still points into the ring */
    bool started, ended;
};

const char *nyb_finish_name(enum nyb_finish f)
{
    static const char *const name[] = {NULL, "stop", "length", "abort", "error"};
    return (unsigned)f < COUNT_OF(name) ? name[f] : NULL;
}

/* ---- submit ---------------------------------------------------------------------------------------- */

static enum nyb_code check_prompt(const struct nyb_engine *e, const int32_t *id, size_t n,
                                  struct nyb_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= e->info.vocab_size)
            return err_at(err, NYB_E_RANGE, "prompt", -1,
                          "token id %d at position %zu is not in the vocabulary, whose ids are in [0, %d)",
                          id[i], i, e->info.vocab_size);
    return NYB_OK;
}

static void keep_run(struct request *r, const struct tok_ids *ids)
{
    int32_t *copy = arena_alloc(&r->arena, ids->n, sizeof(*copy));
    memcpy(copy, ids->id, ids->n * sizeof(*copy));
    r->p.bad[r->p.n_bad++] = (struct params_run){copy, (int)ids->n};
}

/* A word is banned as it begins a text and as it follows a space, which are other tokens. (vLLM skips the
 * second where the two differ in number, and so lets " time" through when "time" alone is two tokens.) */
static enum nyb_code take_bad_word(const struct nyb_engine *e, struct request *r, const char *word,
                                   struct nyb_err *err)
{
    word += strspn(word, " ");
    struct tok_ids plain = {0}, spaced = {0};
    char *with_space = mem_printf(" %s", word);
    enum nyb_code code = tok_encode(e->tokenizer, word, strlen(word), false, &plain, err);
    if (code == NYB_OK)
        code = tok_encode(e->tokenizer, with_space, strlen(with_space), false, &spaced, err);
    if (code == NYB_OK && plain.n > 0)
        keep_run(r, &plain);
    if (code == NYB_OK && spaced.n > 0)
        keep_run(r, &spaced);
    free(with_space);
    tok_ids_free(&plain);
    tok_ids_free(&spaced);
    return code;
}

static enum nyb_code take_bad_words(const struct nyb_engine *e, struct request *r,
                                    const struct nyb_sampling *in, struct nyb_err *err)
{
    if (!in || in->n_bad_words == 0)
        return NYB_OK;
    TRY(text_need_tokenizer(e, err));
    for (int i = 0; i < in->n_bad_words; i++)
        TRY(take_bad_word(e, r, in->bad_words[i], err));
    return NYB_OK;
}

static enum nyb_code open_stop(struct nyb_stream *s, const struct nyb_engine *e, struct nyb_err *err)
{
    const struct params *p = &s->r->p;
    if (e->tokenizer)
        s->detok = detok_open(e->tokenizer, !p->keep_special);
    if (p->n_stop == 0)
        return NYB_OK;
    TRY(text_need_tokenizer(e, err));
    _Static_assert(PARAMS_STOP_MAX <= STOP_COUNT_MAX, "what is accepted can be looked for");
    struct stop_string string[PARAMS_STOP_MAX];
    for (int i = 0; i < p->n_stop; i++)
        string[i] = (struct stop_string){p->stop[i], strlen(p->stop[i])};
    return stop_open(&s->stop, string, (size_t)p->n_stop, p->include_stop, err);
}

/* Of a request that has none. */
static uint64_t own_seed(struct nyb_engine *e)
{
    static const uint64_t odd = 0x9e3779b97f4a7c15ull;
    uint64_t seed;
    if (e->seed >= 0)
        return (uint64_t)e->seed * odd + atomic_fetch_add(&e->n_seeds, 1);
    return getrandom(&seed, sizeof(seed), 0) == (ssize_t)sizeof(seed) ? seed : clock_ns() * odd;
}

static enum nyb_code submit_ids(struct nyb_engine *e, struct nyb_stream *s, const struct nyb_request *in,
                                const int32_t *id, size_t n, struct nyb_err *err)
{
    struct request *r = s->r;
    TRY(check_prompt(e, id, n, err));
    TRY(params_resolve(&r->p, &r->arena, in->sampling, &e->defaults, n, err));
    TRY(take_bad_words(e, r, in->sampling, err));
    TRY(constraint_open(&r->constraint, e->constraints, in->sampling, &r->p, err));
    if (r->constraint)
        r->p.ignore_eos = false; /* the end is part of the constraint */
    TRY(open_stop(s, e, err));
    if (!r->p.has_seed)
        r->p.seed = own_seed(e);
    request_prepare(r, id, (int)n, e->info.vocab_size);
    r->id = in->id ? arena_strdup(&r->arena, in->id) : NULL;
    r->wake = in->wake;
    r->wake_arg = in->wake_arg;
    return engine_submit(e->engine, r, in->priority, err);
}

enum nyb_code nyb_submit(struct nyb_engine *e, const struct nyb_request *in, struct nyb_stream **out,
                         struct nyb_err *err)
{
    *out = NULL;
    if (!in->prompt && !in->text)
        return err_at(err, NYB_E_ARG, "prompt", -1, "there is no prompt");
    if (in->priority < -PRIORITY_MAX || in->priority > PRIORITY_MAX)
        return err_at(err, NYB_E_RANGE, "priority", -1,
                      "priority must be in [-1000, 1000], got %d. (parameter=priority, value=%d)",
                      in->priority, in->priority);
    int32_t *own = NULL;
    size_t n = in->n_prompt;
    if (!in->prompt)
        TRY(nyb_tokenize(e, in->text, strlen(in->text), true, &own, &n, err));
    struct nyb_stream *s = mem_alloc(1, sizeof(*s));
    s->r = request_new();
    locale_t before = clocale_enter();
    enum nyb_code code = submit_ids(e, s, in, in->prompt ? in->prompt : own, n, err);
    clocale_leave(before);
    free(own);
    if (code != NYB_OK) {
        s->ended = true;
        nyb_stream_free(s);
        return code;
    }
    *out = s;
    return NYB_OK;
}

/* ---- events ---------------------------------------------------------------------------------------- */

/* True: a stop string is complete. */
static bool add_piece(struct nyb_stream *s)
{
    bool matched = false;
    if (s->stop && s->n_out > s->r->p.min_tokens)
        matched = stop_push(s->stop, s->piece.data ? s->piece.data : "", s->piece.len, &s->text);
    else
        buf_add(&s->text, s->piece.data ? s->piece.data : "", s->piece.len);
    buf_clear(&s->piece);
    return matched;
}

/* What this reply adds to the text. A stop string may make it the last. */
static void add_text(struct nyb_stream *s, const struct reply *reply, struct nyb_event *ev)
{
    bool hidden = reply->token < 0 || (reply->finish == NYB_FINISH_STOP && !s->r->p.include_stop);
    bool matched = false;
    if (!hidden) {
        detok_push(s->detok, reply->token, &s->piece);
        matched = add_piece(s);
    }
    if (!matched && reply->finish != NYB_FINISH_NONE) {
        detok_finish(s->detok, &s->piece);
        matched = add_piece(s);
        if (!matched && s->stop)
            stop_finish(s->stop, &s->text);
    }
    if (!matched)
        return;
    ev->finish = NYB_FINISH_STOP;
    ev->stop_token = -1;
    ev->stop_string = s->r->p.stop[stop_matched(s->stop)];
    request_cancel(s->r);
}

static bool wait_for_reply(struct nyb_stream *s, struct reply *reply, const struct nyb_logprob **logprob,
                           int timeout_ms)
{
    uint64_t deadline = timeout_ms > 0 ? clock_ns() + (uint64_t)timeout_ms * 1000000u : 0;
    for (;;) {
        unsigned seen = bell_look(&s->r->bell);
        if (request_peek(s->r, reply, logprob))
            return true;
        if (timeout_ms == 0)
            return false;
        int left_ms = -1;
        if (timeout_ms > 0) {
            uint64_t now = clock_ns();
            if (now >= deadline)
                return false;
            left_ms = (int)((deadline - now) / 1000000u) + 1;
        }
        bell_wait(&s->r->bell, seen, left_ms);
    }
}

bool nyb_next(struct nyb_stream *s, struct nyb_event *ev, int timeout_ms)
{
    struct reply reply;
    const struct nyb_logprob *logprob;
    if (s->holds_place)
        request_pop(s->r);
    s->holds_place = false;
    if (s->ended || !wait_for_reply(s, &reply, &logprob, timeout_ms))
        return false;
    s->holds_place = s->started = true;
    s->n_out += reply.token >= 0;
    *ev = (struct nyb_event){.token = reply.token,
                             .logprob = logprob,
                             .n_logprob = logprob ? 1 + s->r->p.n_logprob : 0,
                             .finish = reply.finish,
                             .stop_token = reply.stop_token,
                             .usage = {.prompt_tokens = s->r->n_prompt,
                                       .completion_tokens = s->n_out,
                                       .cached_tokens = reply.cached_tokens},
                             .time_ns = reply.time_ns,
                             .weight_version = reply.version ? reply.version->name : NULL,
                             .first_weight_version = s->r->first_version ? s->r->first_version->name : NULL,
                             .error = reply.finish == NYB_FINISH_ERROR ? &s->r->error : NULL};
    buf_clear(&s->text);
    if (s->detok)
        add_text(s, &reply, ev);
    ev->text = s->text.data ? s->text.data : "";
    ev->text_bytes = s->text.len;
    s->ended = ev->finish != NYB_FINISH_NONE;
    return true;
}

void nyb_cancel(struct nyb_stream *s)
{
    request_cancel(s->r);
}

void nyb_stream_free(struct nyb_stream *s)
{
    if (!s)
        return;
    if (!s->ended)
        request_cancel(s->r);
    request_detach(s->r);
    request_release(s->r);
    if (s->detok)
        detok_close(s->detok);
    if (s->stop)
        stop_close(s->stop);
    buf_free(&s->piece);
    buf_free(&s->text);
    free(s);
}

const int32_t *nyb_stream_prompt(const struct nyb_stream *s, size_t *n)
{
    *n = (size_t)s->r->n_prompt;
    return s->r->tok;
}

const struct nyb_logprob *nyb_stream_prompt_logprobs(const struct nyb_stream *s, size_t i, int *n)
{
    *n = 0;
    if (!s->r->prompt_logprob || !s->started || s->n_out == 0 || i == 0 || i >= (size_t)s->r->n_prompt)
        return NULL;
    *n = 1 + s->r->p.n_prompt_logprob;
    return s->r->prompt_logprob + i * (size_t)*n;
}

void nyb_stream_times(const struct nyb_stream *s, struct nyb_times *t)
{
    *t = (struct nyb_times){.submitted_ns = s->r->submitted_ns,
                            .scheduled_ns = atomic_load_explicit(&s->r->scheduled_ns, memory_order_relaxed)};
}
