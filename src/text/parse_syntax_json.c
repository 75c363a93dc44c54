/* {"name": "f", "arguments": {...}} between the markers: Hermes, Qwen2.5, Qwen3, ERNIE-4.5. */
#include "text/parse_syntax.h"

enum { START, OBJECT, CLOSE };

static enum parse_step step(struct parse_scan *s, const struct parse_format *f, char c)
{
    switch (s->phase) {
    case START:
        if (parse_is_space(c))
            return PARSE_MORE;
        if (c != '{')
            return PARSE_BAD;
        s->phase = OBJECT;
        return parse_json_step(&s->json, c);
    case OBJECT: {
        enum parse_step step = parse_json_step(&s->json, c);
        if (step == PARSE_DONE)
            s->phase = CLOSE;
        return step == PARSE_BAD ? PARSE_BAD : PARSE_MORE;
    }
    default: /* CLOSE */
        return parse_step_close(s, f->call_close, c);
    }
}

static bool build(const char *body, size_t len, const json_t *tools, struct parse_found *out)
{
    (void)tools;
    size_t at = parse_json_skip_space(body, len, 0);
    return parse_found_add_object(out, body + at, len - at);
}

const struct parse_syntax parse_syntax_json = {step, build};
