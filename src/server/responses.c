#include "server/responses.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/answer.h"

enum kind { NONE, REASONING, MESSAGE };

struct responses {
    struct buf items; /* that are complete, comma-separated */
    int n_item;       /* the open one is the next            */
    enum kind open;
    struct buf text, logprobs; /* of the open item */
    char id[EXCHANGE_ID_MAX + 32];
    int n_event;
    bool began;
};

static struct responses *state(struct gen *g)
{
    if (!g->responses)
        g->responses = mem_alloc(1, sizeof(*g->responses));
    return g->responses;
}

void responses_close(struct responses *r)
{
    if (!r)
        return;
    buf_free(&r->items);
    buf_free(&r->text);
    buf_free(&r->logprobs);
    free(r);
}

static void add_buf(struct buf *b, const struct buf *text)
{
    json_add_string(b, text->data ? text->data : "", text->len);
}

static void add_list(struct buf *b, const char *name, const struct buf *items)
{
    buf_printf(b, "\"%s\":[", name);
    buf_add(b, items->data ? items->data : "", items->len);
    buf_add_byte(b, ']');
}

/* ---- the response ------------------------------------------------------------------------------------ */

static void add_usage(const struct gen *g, struct buf *b)
{
    const struct gen_usage u = gen_usage(g);
    buf_printf(b,
               ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,"
               "\"cache_write_tokens\":0},\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_"
               "tokens\":%lld},"
               "\"total_tokens\":%lld}",
               (long long)u.prompt, (long long)u.cached, (long long)u.completion, (long long)u.reasoning,
               (long long)(u.prompt + u.completion));
}

/* The status of an answer that is over. */
static const char *status_of(const struct gen *g)
{
    const struct choice *c = &g->choice[0];
    if (g->error_status || c->finish == NYB_FINISH_ABORT)
        return "failed";
    return c->finish == NYB_FINISH_LENGTH ? "incomplete" : "completed";
}

static void add_fault(const struct gen *g, struct buf *b)
{
    const char *message = g->error_status ? g->error_message : "the answer was aborted";
    buf_add_str(b, ",\"error\":{\"code\":\"server_error\",\"message\":");
    json_add_string(b, message, strlen(message));
    buf_add_byte(b, '}');
}

/* status "in_progress": nothing of the answer is there yet. */
static void add_response(struct gen *g, struct buf *b, const char *status)
{
    struct responses *r = state(g);
    bool over = strcmp(status, "in_progress") != 0;
    buf_add_str(b, "{\"id\":");
    json_add_string(b, g->id, strlen(g->id));
    buf_printf(b, ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":",
               (long long)g->created_s, status);
    json_add_string(b, g->x->s->model, strlen(g->x->s->model));
    if (!strcmp(status, "failed"))
        add_fault(g, b);
    else
        buf_add_str(b, ",\"error\":null");
    buf_printf(b, ",\"incomplete_details\":%s,",
               strcmp(status, "incomplete") ? "null" : "{\"reason\":\"max_output_tokens\"}");
    add_list(b, "output", &r->items);
    buf_add(b, g->settings.data ? g->settings.data : "", g->settings.len);
    buf_add_str(
        b, ",\"background\":false,\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\"");
    if (over) {
        add_usage(g, b);
        answer_add_versions(b, g->choice[0].version, g->choice[0].first_version);
    } else {
        buf_add_str(b, ",\"usage\":null");
    }
    buf_add_byte(b, '}');
}

/* ---- events ------------------------------------------------------------------------------------------ */

/* NULL: nobody reads events. */
static struct buf *begin_event(struct gen *g, const char *type)
{
    if (!g->stream)
        return NULL;
    buf_printf(&g->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%d", type, type,
               state(g)->n_event++);
    return &g->out;
}

static void end_event(struct buf *b)
{
    buf_add_str(b, "}\n\n");
}

static void add_response_event(struct gen *g, const char *type, const char *status)
{
    struct buf *b = begin_event(g, type);
    if (!b)
        return;
    buf_add_str(b, ",\"response\":");
    add_response(g, b, status);
    end_event(b);
}

static void begin(struct gen *g)
{
    if (state(g)->began)
        return;
    state(g)->began = true;
    add_response_event(g, "response.created", "in_progress");
    add_response_event(g, "response.in_progress", "in_progress");
}

/* An event of the open item; place: of its only part, too. */
static struct buf *begin_item_event(struct gen *g, const char *type, bool place)
{
    struct buf *b = begin_event(g, type);
    if (b && place)
        buf_printf(b, ",\"item_id\":\"%s\",\"output_index\":%d,\"content_index\":0", state(g)->id,
                   state(g)->n_item);
    else if (b)
        buf_printf(b, ",\"output_index\":%d", state(g)->n_item);
    return b;
}

/* ---- reasoning and messages -------------------------------------------------------------------------- */

static void add_part(const struct responses *r, struct buf *b)
{
    buf_printf(b, "{\"type\":\"%s\",\"text\":", r->open == MESSAGE ? "output_text" : "reasoning_text");
    add_buf(b, &r->text);
    if (r->open == MESSAGE) {
        buf_add_str(b, ",\"annotations\":[],");
        add_list(b, "logprobs", &r->logprobs);
    }
    buf_add_byte(b, '}');
}

/* part: its text is there. */
static void add_item(const struct responses *r, struct buf *b, const char *status, bool part)
{
    buf_printf(b, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"%s\",\"content\":[", r->id,
               r->open == MESSAGE ? "message" : "reasoning", status);
    if (part)
        add_part(r, b);
    buf_add_str(b, r->open == MESSAGE ? "],\"role\":\"assistant\"}" : "],\"summary\":[]}");
}

static void open_item(struct gen *g, enum kind kind)
{
    struct responses *r = state(g);
    struct buf *b;
    r->open = kind;
    snprintf(r->id, sizeof(r->id), "%s_%s_%d", kind == MESSAGE ? "msg" : "rs", gen_request_id(g), r->n_item);
    if ((b = begin_item_event(g, "response.output_item.added", false))) {
        buf_add_str(b, ",\"item\":");
        add_item(r, b, "in_progress", false);
        end_event(b);
    }
    if ((b = begin_item_event(g, "response.content_part.added", true))) {
        buf_add_str(b, ",\"part\":");
        add_part(r, b);
        end_event(b);
    }
}

static void add_to_items(struct responses *r, const struct buf *item)
{
    if (r->items.len)
        buf_add_byte(&r->items, ',');
    buf_add(&r->items, item->data, item->len);
    r->n_item++;
}

static void end_item(struct gen *g, const struct buf *item)
{
    struct buf *b = begin_item_event(g, "response.output_item.done", false);
    if (b) {
        buf_add_str(b, ",\"item\":");
        buf_add(b, item->data, item->len);
        end_event(b);
    }
    add_to_items(state(g), item);
}

static void close_item(struct gen *g, const char *status)
{
    struct responses *r = state(g);
    struct buf item = {0}, *b;
    if (r->open == NONE)
        return;
    if ((b = begin_item_event(
             g, r->open == MESSAGE ? "response.output_text.done" : "response.reasoning_text.done", true))) {
        buf_add_str(b, ",\"text\":");
        add_buf(b, &r->text);
        if (r->open == MESSAGE) {
            buf_add_byte(b, ',');
            add_list(b, "logprobs", &r->logprobs);
        }
        end_event(b);
    }
    if ((b = begin_item_event(g, "response.content_part.done", true))) {
        buf_add_str(b, ",\"part\":");
        add_part(r, b);
        end_event(b);
    }
    add_item(r, &item, status, true);
    end_item(g, &item);
    buf_free(&item);
    buf_clear(&r->text);
    buf_clear(&r->logprobs);
    r->open = NONE;
}

/* More text of an item of this kind, with the log-probabilities of its tokens. */
static void take_text(struct gen *g, enum kind kind, struct buf *text, const struct buf *logprobs)
{
    struct responses *r = state(g);
    struct buf *b;
    if (!text->len)
        return;
    if (r->open != kind) {
        close_item(g, "completed");
        open_item(g, kind);
    }
    if ((b = begin_item_event(
             g, kind == MESSAGE ? "response.output_text.delta" : "response.reasoning_text.delta", true))) {
        buf_add_str(b, ",\"delta\":");
        add_buf(b, text);
        if (kind == MESSAGE) {
            buf_add_byte(b, ',');
            add_list(b, "logprobs", logprobs);
        }
        end_event(b);
    }
    buf_add(&r->text, text->data, text->len);
    if (kind == MESSAGE && logprobs->len) {
        if (r->logprobs.len)
            buf_add_byte(&r->logprobs, ',');
        buf_add(&r->logprobs, logprobs->data, logprobs->len);
    }
    buf_clear(text);
}

/* Moves the text's log-probabilities to the end of `to`; those of tokens that are nobody's so far stay. */
static void move_logprobs(struct choice *c, struct buf *to)
{
    size_t n = c->n_text_logprobs, left = c->logprobs.len - n;
    if (n == 0)
        return;
    buf_add(to, c->logprobs.data, n);
    if (left > 0)
        memmove(c->logprobs.data, c->logprobs.data + n + 1, --left); /* without the comma */
    c->logprobs.len = left;
    c->n_text_logprobs = 0;
}

/* One of the two at most has something: text of the other kind is taken before it. */
void responses_take(struct choice *c)
{
    struct buf logprobs = {0};
    begin(c->g);
    take_text(c->g, REASONING, &c->reasoning, &logprobs);
    if (c->text.len)
        move_logprobs(c, &logprobs);
    take_text(c->g, MESSAGE, &c->text, &logprobs);
    buf_free(&logprobs);
}

/* ---- calls ------------------------------------------------------------------------------------------- */

/* arguments NULL: they are still to come. */
static void add_call(const struct choice *c, struct buf *b, const struct buf *arguments)
{
    buf_printf(b, "{\"id\":\"%s\",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":", state(c->g)->id,
               arguments ? "completed" : "in_progress");
    json_add_string(b, c->call.id, strlen(c->call.id));
    buf_add_str(b, ",\"name\":");
    json_add_string(b, c->call.name, strlen(c->call.name));
    buf_add_str(b, ",\"arguments\":");
    if (arguments)
        add_buf(b, arguments);
    else
        buf_add_str(b, "\"\"");
    buf_add_byte(b, '}');
}

static void add_arguments_event(struct choice *c, const char *type, const char *name)
{
    struct buf *b = begin_event(c->g, type);
    if (!b)
        return;
    buf_printf(b, ",\"item_id\":\"%s\",\"output_index\":%d,\"%s\":", state(c->g)->id, state(c->g)->n_item,
               name);
    add_buf(b, &c->call.arguments);
    end_event(b);
}

void responses_take_call(struct choice *c)
{
    struct gen *g = c->g;
    struct responses *r = state(g);
    struct buf item = {0}, *b;
    responses_take(c);
    close_item(g, "completed");
    snprintf(r->id, sizeof(r->id), "fc_%s_%d", gen_request_id(g), r->n_item);
    if ((b = begin_item_event(g, "response.output_item.added", false))) {
        buf_add_str(b, ",\"item\":");
        add_call(c, b, NULL);
        end_event(b);
    }
    add_arguments_event(c, "response.function_call_arguments.delta", "delta");
    add_arguments_event(c, "response.function_call_arguments.done", "arguments");
    add_call(c, &item, &c->call.arguments);
    end_item(g, &item);
    buf_free(&item);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

/* An answer without anything is a message without text. */
static void finish(struct gen *g)
{
    struct choice *c = &g->choice[0];
    responses_take(c);
    if (state(g)->open == NONE && state(g)->n_item == 0 && !g->error_status)
        open_item(g, MESSAGE);
    close_item(g, strcmp(status_of(g), "completed") ? "incomplete" : "completed");
}

void responses_add_end(struct gen *g)
{
    char type[32];
    finish(g);
    snprintf(type, sizeof(type), "response.%s", status_of(g));
    add_response_event(g, type, status_of(g));
}

void responses_write(struct gen *g, struct buf *b)
{
    finish(g);
    add_response(g, b, status_of(g));
}
