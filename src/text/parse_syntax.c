#include "text/parse_syntax.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/utf8.h"

bool parse_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool parse_is_name(char c)
{
    return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (unsigned char)c >= 0x80 ||
           (c && strchr("_-.:/", c));
}

int parse_literal(struct parse_scan *s, const char *const *literal, int n, char c)
{
    bool alive = false;
    for (int i = 0; i < n; i++) {
        if (s->ruled_out >> i & 1)
            continue;
        if (!literal[i] || literal[i][s->matched] != c) {
            s->ruled_out |= 1u << i;
            continue;
        }
        alive = true;
        if (!literal[i][s->matched + 1]) {
            s->matched = 0;
            s->ruled_out = 0;
            return i;
        }
    }
    s->matched++;
    return alive ? PARSE_LITERAL_MORE : PARSE_LITERAL_BAD;
}

enum parse_step parse_step_close(struct parse_scan *s, const char *close, char c)
{
    if (s->matched == 0 && parse_is_space(c))
        return PARSE_MORE;
    int found = parse_literal(s, &close, 1, c);
    return found == 0 ? PARSE_DONE : found == PARSE_LITERAL_BAD ? PARSE_BAD : PARSE_MORE;
}

bool parse_search(struct parse_scan *s, const char *literal, char c)
{
    if (literal[s->matched] != c)
        s->matched = literal[0] == c;
    else if (!literal[++s->matched]) {
        s->matched = 0;
        return true;
    }
    return false;
}

struct buf *parse_found_add(struct parse_found *out, const char *name, size_t len)
{
    if (len == 0 || len > PARSE_NAME_MAX || memchr(name, 0, len))
        return NULL;
    if (out->n == out->cap) {
        out->cap = out->cap ? 2 * out->cap : 4;
        out->call = mem_grow(out->call, out->cap, sizeof(*out->call));
    }
    struct parse_found_call *call = &out->call[out->n++];
    *call = (struct parse_found_call){.name = mem_strndup(name, len)};
    return &call->arguments;
}

void parse_found_free(struct parse_found *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->call[i].name);
        buf_free(&f->call[i].arguments);
    }
    free(f->call);
    *f = (struct parse_found){0};
}

/* One member of an object: text[key..key_end) with its quotes, text[value..value_end). */
struct member {
    size_t key, key_end, value, value_end;
};

/* The next member at or after *at, which starts at the object's brace; false at its end. */
static bool next_member(const char *text, size_t len, size_t *at, struct member *m)
{
    size_t i = parse_json_skip_space(text, len, *at + 1); /* past { or , */
    if (i >= len || text[i] != '"')
        return false;
    m->key = i;
    m->key_end = parse_json_skip_value(text, len, i);
    i = parse_json_skip_space(text, len, m->key_end); /* the colon */
    m->value = parse_json_skip_space(text, len, i + 1);
    m->value_end = parse_json_skip_value(text, len, m->value);
    *at = parse_json_skip_space(text, len, m->value_end); /* , or } */
    return true;
}

/* A JSON string decoded; NULL when it is something else or holds what no text can (a lone surrogate). */
static json_t *decode_string(const char *text, size_t len)
{
    if (len == 0 || text[0] != '"')
        return NULL;
    return json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

/* Arguments as models write them: an object, null for none, or an object written into a string. */
static bool add_arguments(struct buf *out, const char *text, size_t len)
{
    if (len == 0 || (len == 4 && !memcmp(text, "null", 4))) {
        buf_add_str(out, "{}");
        return true;
    }
    if (text[0] == '{') {
        buf_add(out, text, len);
        return true;
    }
    json_t *string = decode_string(text, len);
    if (!string)
        return false;
    const char *inner = json_string_value(string);
    size_t n = json_string_length(string), at = parse_json_skip_space(inner, n, 0);
    bool fine = at < n && inner[at] == '{' && parse_json_valid(inner + at, n - at);
    if (fine)
        buf_add(out, inner + at, parse_json_skip_value(inner, n, at) - at);
    json_decref(string);
    return fine;
}

static bool is_key(const char *text, const struct member *m, const char *key)
{
    size_t n = m->key_end - m->key - 2;
    return n == strlen(key) && !memcmp(text + m->key + 1, key, n);
}

bool parse_found_add_object(struct parse_found *out, const char *object, size_t len)
{
    struct member m, name = {0}, arguments = {0};
    for (size_t at = 0; next_member(object, len, &at, &m);) {
        if (is_key(object, &m, "name"))
            name = m;
        else if (is_key(object, &m, "arguments") || is_key(object, &m, "parameters"))
            arguments = m;
    }
    json_t *decoded = decode_string(object + name.value, name.value_end - name.value);
    if (!decoded)
        return false;
    struct buf *to = parse_found_add(out, json_string_value(decoded), json_string_length(decoded));
    json_decref(decoded);
    return to && add_arguments(to, object + arguments.value, arguments.value_end - arguments.value);
}

size_t parse_until(const char *text, size_t len, const char *literal)
{
    const char *found = memmem(text, len, literal, strlen(literal));
    ASSERT(found);
    return (size_t)(found - text);
}

void parse_add_key(struct buf *out, const char *key, size_t len)
{
    if (out->len > 1)
        buf_add_str(out, ", ");
    json_add_string(out, key, len);
    buf_add_str(out, ": ");
}
