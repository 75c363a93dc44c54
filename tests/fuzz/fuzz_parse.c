/* The first bytes choose format, options and cuts. Cut and whole must agree, every call must be usable, and
 * nothing but markers, calls and the newlines around them may be missing. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "text/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen {
    struct buf text, calls;
};

static void on_event(void *arg, const struct parse_event *e)
{
    struct seen *s = arg;
    if (e->kind == PARSE_CONTENT || e->kind == PARSE_REASONING) {
        buf_add(&s->text, e->text, e->len);
        return;
    }
    if (e->kind == PARSE_CALL_BEGIN)
        buf_add_str(&s->calls, e->name);
    if (e->kind != PARSE_CALL_ARGUMENTS)
        return;
    buf_add(&s->calls, e->text, e->len);
    json_t *arguments = json_loadb(e->text, e->len, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    /* A number beyond double or a lone surrogate is JSON that jansson does not load. */
    ASSERT(e->len >= 2 && e->text[0] == '{' && e->text[e->len - 1] == '}');
    ASSERT(!arguments || json_is_object(arguments));
    json_decref(arguments);
}

static void run(struct seen *s, const struct parse_options *o, const char *text, size_t len, size_t step)
{
    *s = (struct seen){0};
    struct parser *p = parse_open(o, on_event, s);
    for (size_t i = 0; i < len; i += step)
        parse_push(p, text + i, len - i < step ? len - i : step);
    parse_finish(p);
    parse_close(p);
}

static bool same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (a->len == 0 || !memcmp(a->data, b->data, a->len));
}

/* Is s a subsequence of text? */
static bool occurs_in_order(const struct buf *s, const char *text, size_t len)
{
    size_t at = 0;
    for (size_t i = 0; i < len && at < s->len; i++)
        at += s->data[at] == text[i];
    return at == s->len;
}

static void free_seen(struct seen *s)
{
    buf_free(&s->text);
    buf_free(&s->calls);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *tools;
    if (!tools)
        tools = json_loads(
            "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"i\": {\"type\":"
            " \"integer\"}, \"n\": {\"type\": [\"number\", \"null\"]}, \"o\": {\"type\": \"object\"},"
            " \"s\": {\"type\": \"string\"}, \"b\": {\"type\": \"boolean\"}}}}}]",
            0, NULL);
    if (size < 2)
        return 0;
    const struct parse_options options = {
        .format = parse_format_at(data[0] % 8),
        .starts_in_reasoning = data[0] & 8,
        .ignore_calls = (data[0] & 0x30) == 0x30,
        .tools = data[0] & 0x40 ? tools : NULL,
    };
    const char *text = (const char *)data + 2;
    size_t len = size - 2;
    struct seen whole, cut, bytes;
    run(&whole, &options, text, len, len ? len : 1);
    run(&cut, &options, text, len, 1 + data[1] % 32u);
    run(&bytes, &options, text, len, 1);
    ASSERT(same(&whole.text, &cut.text) && same(&whole.calls, &cut.calls));
    ASSERT(same(&whole.text, &bytes.text) && same(&whole.calls, &bytes.calls));
    ASSERT(occurs_in_order(&whole.text, text, len));
    free_seen(&whole);
    free_seen(&cut);
    free_seen(&bytes);
    return 0;
}
