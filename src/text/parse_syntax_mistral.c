/* After [TOOL_CALLS]: [{"name": "f", "arguments": {...}, "id": ..}, ...], or one call as f{...}, f[ARGS]{...}
 * or f[CALL_ID]id[ARGS]{...}. There is no closing marker: the JSON ends it. The model's ids are not used: a
 * client may count on ids that differ between answers. */
#include "text/parse_syntax.h"

#include <string.h>

enum { START, ARRAY, NAME, MARKER, ID, ARGS, OBJECT_START, OBJECT };

static const char *const markers[] = {"[ARGS]", "[CALL_ID]"};

/* Move on to `phase` and let it see c. */
static enum parse_step json_from(struct parse_scan *s, int phase, char c)
{
    s->phase = phase;
    return parse_json_step(&s->json, c);
}

static enum parse_step step_name(struct parse_scan *s, char c)
{
    if (parse_is_name(c))
        return ++s->n_name <= PARSE_NAME_MAX ? PARSE_MORE : PARSE_BAD;
    if (c == '{')
        return json_from(s, OBJECT, c);
    s->phase = MARKER;
    return parse_literal(s, markers, 2, c) == PARSE_LITERAL_MORE ? PARSE_MORE : PARSE_BAD;
}

static enum parse_step step(struct parse_scan *s, const struct parse_format *f, char c)
{
    (void)f;
    switch (s->phase) {
    case START:
        if (parse_is_space(c))
            return PARSE_MORE;
        if (c == '[')
            return json_from(s, ARRAY, c);
        s->phase = NAME;
        s->n_name = 1;
        return parse_is_name(c) ? PARSE_MORE : PARSE_BAD;
    case NAME:
        return step_name(s, c);
    case MARKER:
    case ARGS: {
        int found = parse_literal(s, markers, s->phase == ARGS ? 1 : 2, c);
        if (found >= 0)
            s->phase = found == 0 ? OBJECT_START : ID;
        return found == PARSE_LITERAL_BAD ? PARSE_BAD : PARSE_MORE;
    }
    case ID:
        if (c == '[') {
            s->phase = ARGS;
            return parse_literal(s, markers, 1, c) == PARSE_LITERAL_MORE ? PARSE_MORE : PARSE_BAD;
        }
        return parse_is_name(c) ? PARSE_MORE : PARSE_BAD;
    case OBJECT_START:
        if (parse_is_space(c))
            return PARSE_MORE;
        return c == '{' ? json_from(s, OBJECT, c) : PARSE_BAD;
    default: /* ARRAY, OBJECT */
        return parse_json_step(&s->json, c);
    }
}

static bool build_array(const char *text, size_t len, struct parse_found *out)
{
    size_t at = parse_json_skip_space(text, len, 1);
    while (at < len && text[at] == '{') {
        size_t end = parse_json_skip_value(text, len, at);
        if (!parse_found_add_object(out, text + at, end - at))
            return false;
        at = parse_json_skip_space(text, len, end);
        if (at < len && text[at] == ',')
            at = parse_json_skip_space(text, len, at + 1);
    }
    return out->n > 0 && text[at] == ']';
}

static bool build(const char *body, size_t len, const json_t *tools, struct parse_found *out)
{
    (void)tools;
    size_t at = parse_json_skip_space(body, len, 0);
    if (body[at] == '[')
        return build_array(body + at, len - at, out);
    size_t end = at;
    while (parse_is_name(body[end]))
        end++;
    struct buf *arguments = parse_found_add(out, body + at, end - at);
    size_t brace = parse_until(body, len, "{");
    if (arguments)
        buf_add(arguments, body + brace, len - brace);
    return arguments != NULL;
}

const struct parse_syntax parse_syntax_mistral = {step, build};
