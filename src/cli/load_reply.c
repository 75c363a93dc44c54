#include "cli/load_reply.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

void load_list_add(struct load_list *l, double v)
{
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 16;
        l->v = mem_grow(l->v, l->cap, sizeof(*l->v));
    }
    l->v[l->n++] = v;
}

void load_list_free(struct load_list *l)
{
    free(l->v);
    *l = (struct load_list){0};
}

void load_reply_init(struct load_reply *r)
{
    *r = (struct load_reply){.sent = -1,
                             .first = -1,
                             .first_answer = -1,
                             .last = -1,
                             .ended = -1,
                             .arrival_last = -1,
                             .prompt_tokens = -1,
                             .cached_tokens = -1,
                             .output_tokens = -1,
                             .reasoning_tokens = -1};
}

void load_reply_free(struct load_reply *r)
{
    free(r->error);
    load_list_free(&r->chunk);
    load_list_free(&r->arrival);
    buf_free(&r->text);
    buf_free(&r->reasoning);
    buf_free(&r->line);
    buf_free(&r->data);
    json_decref(r->metrics_first);
    json_decref(r->metrics_last);
    load_reply_init(r);
}

void load_reply_fail(struct load_reply *r, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (!r->error)
        r->error = mem_strdup(text);
}

/* ---- one event ----------------------------------------------------------------------------------- */

static void take_int(const json_t *object, const char *key, int64_t *out)
{
    const json_t *v = json_object_get(object, key);
    if (json_is_integer(v) && json_integer_value(v) >= 0)
        *out = json_integer_value(v);
}

static void take_usage(struct load_reply *r, const json_t *usage)
{
    if (!json_is_object(usage))
        return;
    take_int(usage, "prompt_tokens", &r->prompt_tokens);
    take_int(usage, "completion_tokens", &r->output_tokens);
    take_int(json_object_get(usage, "prompt_tokens_details"), "cached_tokens", &r->cached_tokens);
    take_int(json_object_get(usage, "completion_tokens_details"), "reasoning_tokens", &r->reasoning_tokens);
}

/* Append a string member; true if it had any bytes. */
static bool take_text(struct load_reply *r, const json_t *object, const char *key, struct buf *out)
{
    const json_t *v = json_object_get(object, key);
    size_t n = json_is_string(v) ? json_string_length(v) : 0;
    if (n == 0)
        return false;
    if (out->len + n > LOAD_TEXT_MAX) {
        load_reply_fail(r, "an answer of more than %zu bytes", LOAD_TEXT_MAX);
        return false;
    }
    buf_add(out, json_string_value(v), n);
    return true;
}

static void take_choice(struct load_reply *r, const json_t *choice, double now)
{
    const json_t *delta = json_object_get(choice, "delta");
    bool answer = take_text(r, delta ? delta : choice, delta ? "content" : "text", &r->text);
    /* vLLM writes `reasoning`, others `reasoning_content`; a server that sends both means one text */
    bool thought = take_text(r, delta, "reasoning_content", &r->reasoning) ||
                   take_text(r, delta, "reasoning", &r->reasoning);
    bool tool = json_array_size(json_object_get(delta, "tool_calls")) > 0;
    const json_t *arrival = json_object_get(choice, "arrival_time");
    r->last = now;
    if (json_is_string(json_object_get(choice, "finish_reason")))
        r->finished = true;
    if (json_is_number(arrival))
        r->arrival_last = json_number_value(arrival);
    if (answer && r->first_answer < 0)
        r->first_answer = now;
    if (!answer && !thought && !tool)
        return;
    if (r->first < 0)
        r->first = now;
    load_list_add(&r->chunk, now);
    if (json_is_number(arrival))
        load_list_add(&r->arrival, json_number_value(arrival));
}

static void take_error(struct load_reply *r, const json_t *error)
{
    const json_t *message = json_is_object(error) ? json_object_get(error, "message") : error;
    load_reply_fail(r, "the server says: %s",
                    json_is_string(message) ? json_string_value(message) : "an error without a message");
}

/* The server's account of the request so far. */
static void take_metrics(struct load_reply *r, json_t *metrics)
{
    if (!json_is_object(metrics))
        return;
    if (!r->metrics_first)
        r->metrics_first = json_incref(metrics);
    json_decref(r->metrics_last);
    r->metrics_last = json_incref(metrics);
}

static void take_event(struct load_reply *r, double now)
{
    struct nyb_err err;
    char text[300];
    json_t *root;
    if (r->data.len == 6 && !memcmp(r->data.data, "[DONE]", 6)) {
        r->finished = true;
        return;
    }
    if (json_parse(&root, r->data.data, r->data.len, "an event of the stream", &err) != NYB_OK) {
        load_reply_fail(r, "%s", err_format(&err, text, sizeof(text)));
        return;
    }
    const json_t *error = json_object_get(root, "error"), *choices = json_object_get(root, "choices");
    if (!json_is_object(root))
        load_reply_fail(r, "an event of the stream is not a JSON object");
    else if (error && !json_is_null(error))
        take_error(r, error);
    if (json_array_size(choices) > 0)
        take_choice(r, json_array_get(choices, 0), now);
    take_usage(r, json_object_get(root, "usage"));
    take_metrics(r, json_object_get(root, "metrics"));
    json_decref(root);
}

/* ---- lines: https://html.spec.whatwg.org/multipage/server-sent-events.html ----------------------- */

static void end_line(struct load_reply *r, double now)
{
    struct buf *line = &r->line, *data = &r->data;
    if (line->len == 0) { /* an empty line ends the event */
        if (data->len > 0)
            take_event(r, now);
        buf_clear(data);
        return;
    }
    if (line->len >= 5 && !memcmp(line->data, "data:", 5)) {
        size_t at = line->len > 5 && line->data[5] == ' ' ? 6 : 5;
        if (data->len > 0)
            buf_add_byte(data, '\n');
        if (data->len + line->len > LOAD_EVENT_MAX)
            load_reply_fail(r, "an event of more than %zu bytes", LOAD_EVENT_MAX);
        else
            buf_add(data, line->data + at, line->len - at);
    }
    buf_clear(line); /* other fields and comments mean nothing here */
}

bool load_reply_feed(struct load_reply *r, const char *bytes, size_t n, double now)
{
    for (size_t i = 0; i < n && !r->error;) {
        if (r->after_cr && bytes[i] == '\n') {
            r->after_cr = false;
            i++;
            continue;
        }
        r->after_cr = false;
        size_t end = i;
        while (end < n && bytes[end] != '\n' && bytes[end] != '\r')
            end++;
        if (r->line.len + (end - i) > LOAD_EVENT_MAX) {
            load_reply_fail(r, "a line of more than %zu bytes", LOAD_EVENT_MAX);
            break;
        }
        if (end > i)
            buf_add(&r->line, bytes + i, end - i);
        if (end < n) {
            r->after_cr = bytes[end] == '\r';
            end_line(r, now);
            end++;
        }
        i = end;
    }
    return !r->error;
}

int64_t load_reply_tokens(const struct load_reply *r)
{
    return r->output_tokens >= 0 ? r->output_tokens : (int64_t)r->chunk.n;
}
