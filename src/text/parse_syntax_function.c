/* <function=f> <parameter=k>\nv\n</parameter> ... </function> between the markers: Qwen3-Coder and Qwen3.5.
 * One newline on either side of a value is the format's. White space between the tags is free. */
#include "text/parse_syntax.h"

#include "text/parse_value.h"

enum { OPEN, NAME, NEXT, KEY, VALUE, CLOSE };

static const char function_open[] = "<function=";
static const char value_close[] = "</parameter>";
static const char *const next_tags[] = {"<parameter=", "</function>"};

/* One of the literals, white space before it allowed; then phase[its index]. */
static enum parse_step expect(struct parse_scan *s, const char *const *literal, int n, const int *phase,
                              char c)
{
    if (s->matched == 0 && parse_is_space(c))
        return PARSE_MORE;
    int found = parse_literal(s, literal, n, c);
    if (found == PARSE_LITERAL_BAD)
        return PARSE_BAD;
    if (found >= 0) {
        s->phase = phase[found];
        s->n_name = 0;
    }
    return PARSE_MORE;
}

/* A name up to > ; keys may hold more than function names. */
static enum parse_step step_name(struct parse_scan *s, int next, char c)
{
    if (c == '>') {
        s->phase = next;
        return s->n_name > 0 ? PARSE_MORE : PARSE_BAD;
    }
    bool fine = parse_is_name(c) || (s->phase == KEY && c >= ' ' && c != '<');
    return fine && ++s->n_name <= PARSE_NAME_MAX ? PARSE_MORE : PARSE_BAD;
}

static enum parse_step step(struct parse_scan *s, const struct parse_format *f, char c)
{
    static const char *const open[] = {function_open};
    static const int after_open[] = {NAME}, after_next[] = {KEY, CLOSE};
    switch (s->phase) {
    case OPEN:
        return expect(s, open, 1, after_open, c);
    case NAME:
        return step_name(s, NEXT, c);
    case NEXT:
        return expect(s, next_tags, 2, after_next, c);
    case KEY:
        return step_name(s, VALUE, c);
    case VALUE:
        if (parse_search(s, value_close, c))
            s->phase = NEXT;
        return PARSE_MORE;
    default: /* CLOSE */
        return parse_step_close(s, f->call_close, c);
    }
}

static bool build(const char *body, size_t len, const json_t *tools, struct parse_found *out)
{
    const char *at = body + parse_until(body, len, function_open) + sizeof(function_open) - 1,
               *end = body + len;
    size_t n_name = parse_until(at, (size_t)(end - at), ">");
    struct buf *arguments = parse_found_add(out, at, n_name);
    if (!arguments)
        return false;
    const json_t *properties = parse_value_properties(tools, at, n_name);
    buf_add_byte(arguments, '{');
    for (at += n_name + 1;; at += sizeof(value_close) - 1) {
        at += parse_json_skip_space(at, (size_t)(end - at), 0);
        if (at[1] == '/') /* </function> */
            break;
        const char *key = at += sizeof("<parameter=") - 1;
        size_t n_key = parse_until(at, (size_t)(end - at), ">");
        const char *value = at += n_key + 1;
        size_t n_value = parse_until(at, (size_t)(end - at), value_close);
        at += n_value;
        if (n_value > 0 && value[0] == '\n')
            value++, n_value--;
        if (n_value > 0 && value[n_value - 1] == '\n')
            n_value--;
        parse_add_key(arguments, key, n_key);
        parse_value_add(arguments, value, n_value, parse_value_schema(properties, key, n_key), false);
    }
    buf_add_byte(arguments, '}');
    return true;
}

const struct parse_syntax parse_syntax_function = {step, build};
