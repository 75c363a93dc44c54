#include "text/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/parse_syntax.h"
#include "text/utf8.h"

#define MARKER_MAX 32 /* bytes of a marker, with its NUL */

/* What a completed marker does. */
enum marker { THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE, CALL_OPEN, MARKER_COUNT };

struct parser {
    struct parse_options options;
    const struct parse_format *format;
    parse_event_fn *emit;
    void *arg;
    const char *marker[MARKER_COUNT]; /* NULL: not in this format */

    bool thinking;         /* text goes to the reasoning, else to the content          */
    bool may_think;        /* no marker and no text so far, white space aside          */
    bool may_wrap;         /* no wrapped answer so far, and no content but white space */
    bool in_wrap;          /* between answer_open and answer_close                     */
    bool after_marker;     /* nothing but newlines since the last one: drop newlines   */
    size_t newlines;       /* seen and held back: they go when a marker follows        */
    char held[MARKER_MAX]; /* first bytes of what may be a marker                      */
    size_t n_held;

    bool in_call;
    struct parse_scan scan;
    struct buf body; /* of the call, as it came; at most PARSE_CALL_MAX */
    int n_call;

    struct buf out; /* text of the current part, reported at the end of a push or the part */
};

static void text_byte(struct parser *p, char c);

struct parser *parse_open(const struct parse_options *options, parse_event_fn *emit, void *arg)
{
    struct parser *p = mem_alloc(1, sizeof(*p));
    const struct parse_format *f = options->format ? options->format : parse_format_plain();
    p->options = *options;
    p->format = f;
    p->emit = emit;
    p->arg = arg;
    p->marker[THINK_OPEN] = f->think_open;
    p->marker[THINK_CLOSE] = f->think_close;
    p->marker[ANSWER_OPEN] = f->answer_open;
    p->marker[ANSWER_CLOSE] = f->answer_close;
    p->marker[CALL_OPEN] = options->ignore_calls ? NULL : f->call_open;
    for (int i = 0; i < MARKER_COUNT; i++)
        ASSERT(!p->marker[i] || strlen(p->marker[i]) < MARKER_MAX);
    p->thinking = p->after_marker = options->starts_in_reasoning && f->think_open;
    p->may_think = p->may_wrap = true;
    return p;
}

void parse_close(struct parser *p)
{
    if (!p)
        return;
    buf_free(&p->body);
    buf_free(&p->out);
    free(p);
}

int parse_call_count(const struct parser *p)
{
    return p->n_call;
}

bool parse_is_after_marker(const struct parser *p)
{
    return p->after_marker && p->n_held == 0 && !p->in_call;
}

/* Bytes at the end of s that begin a character and do not finish it. */
static size_t open_character(const char *s, size_t len)
{
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        size_t n;
        if (!utf8_is_tail(s[len - back]))
            return utf8_look(s + len - back, back, &n) == UTF8_INCOMPLETE ? back : 0;
    }
    return 0;
}

/* Report the text of the current part; keep `keep` bytes of it for later. */
static void report_text(struct parser *p, size_t keep)
{
    size_t n = p->out.len - keep;
    if (n == 0)
        return;
    const struct parse_event event = {
        .kind = p->thinking ? PARSE_REASONING : PARSE_CONTENT, .text = p->out.data, .len = n};
    p->emit(p->arg, &event);
    memmove(p->out.data, p->out.data + n, keep);
    p->out.len = keep;
}

/* Can the marker stand here? */
static bool allowed(const struct parser *p, int marker)
{
    if (!p->marker[marker])
        return false;
    switch (marker) {
    case THINK_OPEN: /* also at the start of reasoning: some models repeat what the prompt already holds */
        return p->may_think;
    case THINK_CLOSE:
        return p->thinking;
    case ANSWER_OPEN:
        return !p->thinking && p->may_wrap;
    case ANSWER_CLOSE:
        return p->in_wrap && !p->thinking;
    default: /* CALL_OPEN */
        return !p->thinking || p->format->call_ends_thinking;
    }
}

static bool any_allowed(const struct parser *p)
{
    for (int i = 0; i < MARKER_COUNT; i++)
        if (allowed(p, i))
            return true;
    return false;
}

/* One byte that belongs to no marker. */
static void plain_byte(struct parser *p, char c)
{
    if (c == '\n' && p->after_marker)
        return;
    if (c == '\n' && any_allowed(p)) {
        p->newlines++;
        return;
    }
    for (; p->newlines > 0; p->newlines--)
        buf_add_byte(&p->out, '\n');
    p->after_marker = false;
    if (!parse_is_space(c)) {
        p->may_think = false;
        p->may_wrap = p->may_wrap && p->thinking;
    }
    buf_add_byte(&p->out, c);
}

static void plain_text(struct parser *p, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        plain_byte(p, text[i]);
}

/* The newlines around an accepted marker go with it. */
static void marker_accepted(struct parser *p)
{
    p->newlines = 0;
    p->after_marker = true;
}

static void switch_part(struct parser *p, bool thinking)
{
    report_text(p, 0);
    p->thinking = thinking;
    p->may_think = false;
}

static void take_marker(struct parser *p, int marker)
{
    switch (marker) {
    case THINK_OPEN:
    case THINK_CLOSE:
        marker_accepted(p);
        switch_part(p, marker == THINK_OPEN);
        break;
    case ANSWER_OPEN:
        marker_accepted(p);
        p->may_wrap = p->may_think = false;
        p->in_wrap = true;
        break;
    case ANSWER_CLOSE:
        marker_accepted(p);
        p->in_wrap = false;
        break;
    default: /* CALL_OPEN: accepted when the call is complete */
        p->in_call = true;
        p->scan = (struct parse_scan){0};
        buf_clear(&p->body);
    }
}

static void make_id(const struct parser *p, char *id)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t word[2];
    for (uint64_t i = 0; i < 2; i++) { /* splitmix64 */
        uint64_t z = p->options.id_seed + (2 * (uint64_t)p->n_call + i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        word[i] = z ^ z >> 31;
    }
    if (!p->format->short_ids) {
        snprintf(id, PARSE_ID_MAX, "call_%016llx%08llx", (unsigned long long)word[0],
                 (unsigned long long)word[1] & 0xffffffffu);
        return;
    }
    for (int i = 0; i < 9; i++, word[0] /= 62)
        id[i] = letters[word[0] % 62];
    id[9] = 0;
}

static void report_call(struct parser *p, const struct parse_found_call *call)
{
    char id[PARSE_ID_MAX];
    make_id(p, id);
    struct parse_event event = {.kind = PARSE_CALL_BEGIN, .call = p->n_call, .id = id, .name = call->name};
    p->emit(p->arg, &event);
    event = (struct parse_event){.kind = PARSE_CALL_ARGUMENTS,
                                 .call = p->n_call,
                                 .text = call->arguments.data,
                                 .len = call->arguments.len};
    p->emit(p->arg, &event);
    event = (struct parse_event){.kind = PARSE_CALL_END, .call = p->n_call};
    p->emit(p->arg, &event);
    p->n_call++;
}

/* The block's last byte is in; false when it is no call after all. */
static bool finish_call(struct parser *p)
{
    const char *close = p->format->call_close;
    size_t len = p->body.len - (close ? strlen(close) : 0);
    if (utf8_valid_prefix(p->body.data, p->body.len) != p->body.len)
        return false;
    struct parse_found found = {0};
    bool fine = p->format->syntax->build(p->body.data, len, p->options.tools, &found);
    if (fine) {
        p->in_call = false;
        p->after_marker = true;
        if (p->thinking || p->may_wrap) /* else they come back if content goes on after the calls */
            p->newlines = 0;
        switch_part(p, false);
        p->may_wrap = false;
        for (size_t i = 0; i < found.n; i++)
            report_call(p, &found.call[i]);
    }
    parse_found_free(&found);
    return fine;
}

/* What looked like a call is text, from its opening marker on. */
static void give_up_call(struct parser *p)
{
    p->in_call = false;
    plain_text(p, p->marker[CALL_OPEN], strlen(p->marker[CALL_OPEN]));
    plain_text(p, p->body.data, p->body.len);
    buf_clear(&p->body);
}

static void call_byte(struct parser *p, char c)
{
    enum parse_step step =
        p->body.len < PARSE_CALL_MAX ? p->format->syntax->step(&p->scan, p->format, c) : PARSE_BAD;
    if (step == PARSE_BAD) { /* the byte itself may begin a marker */
        give_up_call(p);
        text_byte(p, c);
        return;
    }
    buf_add_byte(&p->body, c);
    if (step == PARSE_DONE && !finish_call(p))
        give_up_call(p);
}

/* Does held, extended by c, begin a marker that may stand here? The marker when it is complete, MARKER_COUNT
 * when it is not yet, -1: no. */
static int extend_held(const struct parser *p, char c)
{
    int state = -1;
    for (int i = 0; i < MARKER_COUNT; i++) {
        const char *m = p->marker[i];
        if (!allowed(p, i) || strncmp(m, p->held, p->n_held) != 0 || m[p->n_held] != c)
            continue;
        if (!m[p->n_held + 1])
            return i;
        state = MARKER_COUNT;
    }
    return state;
}

static void text_byte(struct parser *p, char c)
{
    int marker = extend_held(p, c);
    if (marker < 0 && p->n_held > 0) {
        size_t n = p->n_held;
        p->n_held = 0;
        plain_text(p, p->held, n);
        marker = extend_held(p, c);
    }
    if (marker < 0) {
        plain_byte(p, c);
    } else if (marker == MARKER_COUNT) {
        p->held[p->n_held++] = c;
    } else {
        p->n_held = 0;
        take_marker(p, marker);
    }
}

/* Bytes from text on that begin no marker and are no newlines: most of any text. */
static size_t plain_run(const struct parser *p, const char *text, size_t len)
{
    if (p->n_held > 0 || p->newlines > 0 || p->after_marker || p->may_think || (p->may_wrap && !p->thinking))
        return 0;
    size_t n = 0;
    while (n < len && text[n] != '\n' && text[n] != '<' && text[n] != '[')
        n++;
    return n;
}

void parse_push(struct parser *p, const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        if (p->in_call) {
            call_byte(p, text[i++]);
            continue;
        }
        size_t run = plain_run(p, text + i, len - i);
        if (run > 0) {
            buf_add(&p->out, text + i, run);
            i += run;
        } else {
            text_byte(p, text[i++]);
        }
    }
    report_text(p, open_character(p->out.data, p->out.len));
}

void parse_finish(struct parser *p)
{
    if (p->in_call)
        give_up_call(p);
    plain_text(p, p->held, p->n_held);
    p->n_held = 0;
    for (; p->newlines > 0 && !p->after_marker; p->newlines--)
        buf_add_byte(&p->out, '\n');
    report_text(p, 0);
}

static void collect(void *arg, const struct parse_event *e)
{
    struct parse_result *r = arg;
    switch (e->kind) {
    case PARSE_CONTENT:
        buf_add(&r->content, e->text, e->len);
        break;
    case PARSE_REASONING:
        buf_add(&r->reasoning, e->text, e->len);
        break;
    case PARSE_CALL_BEGIN:
        if (r->n_call == r->cap) {
            r->cap = r->cap ? 2 * r->cap : 4;
            r->call = mem_grow(r->call, r->cap, sizeof(*r->call));
        }
        r->call[r->n_call++] = (struct parse_call){.id = mem_strdup(e->id), .name = mem_strdup(e->name)};
        break;
    case PARSE_CALL_ARGUMENTS:
        buf_add(&r->call[e->call].arguments, e->text, e->len);
        break;
    case PARSE_CALL_END:
        break;
    }
}

void parse_all(const struct parse_options *options, const char *text, size_t len, struct parse_result *out)
{
    *out = (struct parse_result){0};
    struct parser *p = parse_open(options, collect, out);
    parse_push(p, text, len);
    parse_finish(p);
    parse_close(p);
}

void parse_result_free(struct parse_result *r)
{
    buf_free(&r->content);
    buf_free(&r->reasoning);
    for (size_t i = 0; i < r->n_call; i++) {
        free(r->call[i].id);
        free(r->call[i].name);
        buf_free(&r->call[i].arguments);
    }
    free(r->call);
    *r = (struct parse_result){0};
}
