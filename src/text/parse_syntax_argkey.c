/* f <arg_key>k</arg_key> <arg_value>v</arg_value> ... between the markers: GLM-4.5 (a newline after each tag)
 * to GLM-4.7 (none). A value that is no string by its schema is JSON. */
#include "text/parse_syntax.h"

#include "text/parse_value.h"

enum { START, NAME, NEXT, KEY, VALUE_OPEN, VALUE };

static const char key_open[] = "<arg_key>", key_close[] = "</arg_key>";
static const char value_open[] = "<arg_value>", value_close[] = "</arg_value>";

static enum parse_step step_next(struct parse_scan *s, const struct parse_format *f, char c)
{
    const char *const tags[] = {key_open, f->call_close};
    if (s->matched == 0 && parse_is_space(c))
        return PARSE_MORE;
    switch (parse_literal(s, tags, 2, c)) {
    case 0:
        s->phase = KEY;
        return PARSE_MORE;
    case 1:
        return PARSE_DONE;
    case PARSE_LITERAL_BAD:
        return PARSE_BAD;
    default:
        return PARSE_MORE;
    }
}

static enum parse_step step_value_open(struct parse_scan *s, char c)
{
    static const char *const tags[] = {value_open};
    if (s->matched == 0 && parse_is_space(c))
        return PARSE_MORE;
    int found = parse_literal(s, tags, 1, c);
    if (found == 0)
        s->phase = VALUE;
    return found == PARSE_LITERAL_BAD ? PARSE_BAD : PARSE_MORE;
}

static enum parse_step step(struct parse_scan *s, const struct parse_format *f, char c)
{
    switch (s->phase) {
    case START:
        if (parse_is_space(c))
            return PARSE_MORE;
        s->phase = NAME;
        s->n_name = 1;
        return parse_is_name(c) ? PARSE_MORE : PARSE_BAD;
    case NAME:
        if (parse_is_name(c))
            return ++s->n_name <= PARSE_NAME_MAX ? PARSE_MORE : PARSE_BAD;
        s->phase = NEXT;
        return step_next(s, f, c);
    case NEXT:
        return step_next(s, f, c);
    case KEY:
        if (parse_search(s, key_close, c))
            s->phase = VALUE_OPEN;
        return PARSE_MORE;
    case VALUE_OPEN:
        return step_value_open(s, c);
    default: /* VALUE */
        if (parse_search(s, value_close, c))
            s->phase = NEXT;
        return PARSE_MORE;
    }
}

static void trim(const char **text, size_t *len)
{
    while (*len > 0 && parse_is_space(**text))
        (*text)++, (*len)--;
    while (*len > 0 && parse_is_space((*text)[*len - 1]))
        (*len)--;
}

static bool build(const char *body, size_t len, const json_t *tools, struct parse_found *out)
{
    const char *at = body + parse_json_skip_space(body, len, 0), *end = body + len;
    size_t n_name = 0;
    while (at + n_name < end && parse_is_name(at[n_name]))
        n_name++;
    struct buf *arguments = parse_found_add(out, at, n_name);
    if (!arguments)
        return false;
    const json_t *properties = parse_value_properties(tools, at, n_name);
    buf_add_byte(arguments, '{');
    for (at += n_name;; at += sizeof(value_close) - 1) {
        at += parse_json_skip_space(at, (size_t)(end - at), 0);
        if (at == end)
            break;
        const char *key = at += sizeof(key_open) - 1;
        size_t n_key = parse_until(at, (size_t)(end - at), key_close);
        at += n_key + sizeof(key_close) - 1;
        const char *value = at += parse_until(at, (size_t)(end - at), value_open) + sizeof(value_open) - 1;
        size_t n_value = parse_until(at, (size_t)(end - at), value_close);
        at += n_value;
        trim(&key, &n_key);
        if (n_key == 0)
            return false;
        parse_add_key(arguments, key, n_key);
        parse_value_add(arguments, value, n_value, parse_value_schema(properties, key, n_key), true);
    }
    buf_add_byte(arguments, '}');
    return true;
}

const struct parse_syntax parse_syntax_argkey = {step, build};
