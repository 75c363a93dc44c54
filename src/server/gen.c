#include "server/gen.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/answer.h"
#include "server/anthropic.h"
#include "server/choice.h"
#include "server/error.h"
#include "server/responses.h"
#include "server/sse.h"

#define OUT_MAX 65536 /* bytes of a stream that wait for its client */
#define PUMP_ENTRIES \
    1024 /* log-probabilities of prompts that are written at a time: one or two milliseconds */

static const char *const id_prefix[] = {[GEN_COMPLETION] = "cmpl-",
                                        [GEN_SGLANG] = "",
                                        [GEN_CHAT] = "chatcmpl-",
                                        [GEN_RESPONSES] = "resp_",
                                        [GEN_ANTHROPIC] = "msg_"};

static const struct gen_form forms[] = {
    [GEN_SGLANG] = {sglang_take, NULL, sglang_add_end, sglang_write, false},
    [GEN_RESPONSES] = {responses_take, responses_take_call, responses_add_end, responses_write, false},
    [GEN_ANTHROPIC] = {anthropic_take, anthropic_take_call, anthropic_add_end, anthropic_write, true},
};

void gen_set_id(struct gen *g, const char *id)
{
    snprintf(g->id, sizeof(g->id), "%s%s", id_prefix[g->api], id);
}

bool gen_is_chat(const struct gen *g)
{
    return g->api >= GEN_CHAT;
}

const struct gen_form *gen_form(const struct gen *g)
{
    return forms[g->api].take ? &forms[g->api] : NULL;
}

struct gen *gen_open(struct exchange *x, enum gen_api api, json_t *request)
{
    struct gen *g = mem_alloc(1, sizeof(*g));
    uint64_t now_us = clock_unix_us();
    g->x = x;
    g->api = api;
    g->request = json_incref(request);
    g->chunk_tokens = 1;
    g->n_logprob = g->n_prompt_logprob = g->max_tokens = NYB_UNSET;
    g->created_s = (int64_t)(now_us / 1000000u);
    g->arrival_us = now_us - (clock_ns() - x->start_ns) / 1000u;
    gen_set_id(g, x->id);
    return g;
}

void gen_close(struct gen *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->n_choice; i++)
        choice_close(&g->choice[i]);
    free(g->choice);
    json_decref(g->request);
    buf_free(&g->settings);
    responses_close(g->responses);
    anthropic_close(g->anthropic);
    nyb_free(g->prompt_text);
    buf_free(&g->out);
    free(g);
}

void gen_set_choices(struct gen *g, int n_prompt, int n)
{
    g->n_prompt = n_prompt;
    g->n = n;
    g->n_choice = n_prompt * n;
    g->choice = mem_alloc((size_t)g->n_choice, sizeof(*g->choice));
    for (int i = 0; i < g->n_choice; i++) {
        g->choice[i].g = g;
        g->choice[i].index = i;
        g->choice[i].prompt = i / n;
        g->choice[i].stop_token = -1;
    }
}

static void ring(void *exchange)
{
    loop_ring(exchange);
}

enum nyb_code gen_submit(struct gen *g, int i, const struct nyb_request *r, struct nyb_err *err)
{
    struct nyb_request request = *r;
    request.wake = ring;
    request.wake_arg = g->x;
    TRY(nyb_submit(g->x->s->engine, &request, &g->choice[i].stream, err));
    if (gen_is_chat(g))
        choice_open_parser(&g->choice[i]);
    return NYB_OK;
}

const char *gen_request_id(const struct gen *g)
{
    return g->id + strlen(id_prefix[g->api]);
}

const char *gen_bare_id(const char *id)
{
    for (size_t i = 0; i < COUNT_OF(id_prefix); i++) {
        size_t n = strlen(id_prefix[i]);
        if (n > 0 && !strncmp(id, id_prefix[i], n))
            return id + n;
    }
    return id;
}

bool gen_is_stream(const struct gen *g)
{
    return g->stream;
}

void gen_cancel(struct gen *g)
{
    for (int i = 0; g && i < g->n_choice; i++)
        if (g->choice[i].stream)
            nyb_cancel(g->choice[i].stream);
}

/* The engine failed under this request: that ends the answer. */
static void take_error(struct gen *g, const struct nyb_err *e)
{
    struct nyb_err unknown;
    if (!e) {
        (void)err_set(&unknown, NYB_E_INTERNAL, "the engine failed");
        e = &unknown;
    }
    g->error_status = err_http_status(e->code);
    snprintf(g->error_param, sizeof(g->error_param), "%.63s", e->where);
    snprintf(g->error_message, sizeof(g->error_message), "%s", e->message);
    g->n_done = g->n_choice;
    gen_cancel(g);
}

/* An answer that is not streamed is kept here until it is complete. */
static void check_size(struct gen *g)
{
    struct nyb_err err;
    if (g->stream || g->n_entry <= GEN_LOGPROBS_MAX)
        return;
    (void)err_at(
        &err, NYB_E_RANGE, "logprobs", -1,
        "the answer has more than %d log-probabilities, which is as many as one without stream may have: "
        "stream it, or ask for fewer. (parameter=logprobs)",
        GEN_LOGPROBS_MAX);
    take_error(g, &err);
}

static void finish_choice(struct gen *g, struct choice *c)
{
    struct exchange *x = g->x;
    g->n_done++;
    if (c->index % g->n == 0)
        x->prompt_tokens += c->usage.prompt_tokens;
    x->completion_tokens += c->usage.completion_tokens;
    metrics_count_choice(&x->s->metrics, c);
    if (c->finish == NYB_FINISH_ABORT && gen_form(g) && gen_form(g)->knows_no_abort) {
        struct nyb_err err;
        (void)err_set(&err, x->s->draining ? NYB_E_CLOSED : NYB_E_CANCELLED, "The answer was aborted.");
        take_error(g, &err);
    }
}

static bool has_room(const struct gen *g)
{
    return !g->stream || g->out.len - g->out_from < OUT_MAX;
}

/* The role at once, then chunks of chunk_tokens. */
static void stream_choice(struct choice *c, bool token)
{
    const struct gen_form *form = gen_form(c->g);
    if (!form)
        sse_add_begin(c);
    c->n_held += token;
    if (!c->done && c->n_held < c->g->chunk_tokens)
        return;
    if (form)
        form->take(c);
    else
        sse_add_event(c, c->n_held > 0);
    c->n_held = 0;
}

static bool next_event(struct choice *c)
{
    c->held = c->held || nyb_next(c->stream, &c->event, 0);
    return c->held;
}

/* entries: of prompts that may still be written. */
static void pump_choice(struct gen *g, struct choice *c, int *entries)
{
    const struct nyb_event *ev = &c->event;
    while (!c->done && !g->error_status && has_room(g) && next_event(c)) {
        if (ev->finish == NYB_FINISH_ERROR) {
            take_error(g, ev->error);
            return;
        }
        if (!choice_take_prompt(c, entries))
            return;
        c->held = false;
        choice_take(c, ev);
        if (c->done)
            finish_choice(g, c);
        if (g->stream)
            stream_choice(c, ev->token >= 0);
        check_size(g);
    }
}

bool gen_pump(struct gen *g)
{
    int entries = PUMP_ENTRIES;
    for (int i = 0; i < g->n_choice; i++)
        pump_choice(g, &g->choice[i], &entries);
    bool over = g->n_done == g->n_choice;
    if (entries <= 0 && !over)
        loop_ring(g->x); /* there is more to write, after the others' turn */
    if (over && g->stream && !g->closed) {
        if (gen_form(g))
            gen_form(g)->add_end(g);
        else
            sse_add_end(g);
        g->closed = true;
    }
    return over;
}

void gen_reply(struct gen *g)
{
    if (g->error_status)
        error_reply(g->x, g->error_status, g->error_param, "%s", g->error_message);
    else if (gen_form(g))
        gen_form(g)->write(g, &g->x->reply);
    else
        answer_write(g, &g->x->reply);
    if (!g->error_status)
        g->x->status = 200;
}

size_t gen_read(struct gen *g, char *to, size_t max, bool *over)
{
    if (g->out.len == g->out_from && !g->closed)
        gen_pump(g);
    size_t n = g->out.len - g->out_from;
    n = n < max ? n : max;
    if (n)
        memcpy(to, g->out.data + g->out_from, n);
    g->out_from += n;
    if (g->out_from == g->out.len) {
        buf_clear(&g->out);
        g->out_from = 0;
    }
    *over = n == 0 && g->closed;
    return n;
}

void gen_keep_alive(struct gen *g)
{
    buf_add_str(&g->out, ": keep-alive\n\n");
}

const char *gen_finish_reason(const struct choice *c)
{
    if (c->finish == NYB_FINISH_STOP && c->n_call > 0)
        return "tool_calls";
    return nyb_finish_name(c->finish);
}

struct gen_usage gen_usage(const struct gen *g)
{
    struct gen_usage u = {0};
    for (int i = 0; i < g->n_choice; i++) {
        const struct choice *c = &g->choice[i];
        u.completion += c->usage.completion_tokens;
        u.reasoning += c->reasoning_tokens;
        if (i % g->n == 0) {
            u.prompt += c->usage.prompt_tokens;
            u.cached += c->usage.cached_tokens;
        }
    }
    return u;
}
