#include "text/parse_json.h"

#include <string.h>

enum {
    VALUE,          /* a value must start            */
    VALUE_OR_CLOSE, /* right after [                 */
    KEY,            /* right after , in an object    */
    KEY_OR_CLOSE,   /* right after {                 */
    COLON,
    AFTER, /* a value is complete: , or ] } */
    END,
    STRING,
    ESCAPE,
    HEX4, /* four hexadecimal digits to come */
    HEX3,
    HEX2,
    HEX1,
    WORD,
    MINUS, /* numbers, by what was read last */
    ZERO,
    INTEGER,
    POINT,
    FRACTION,
    EXPONENT,
    EXPONENT_SIGN,
    EXPONENT_DIGIT,
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

static enum parse_step go(struct parse_json *j, int state)
{
    j->state = state;
    return PARSE_MORE;
}

static bool top_is_object(const struct parse_json *j)
{
    int i = j->depth - 1;
    return j->is_object[i / 8] >> (i % 8) & 1;
}

static enum parse_step open_container(struct parse_json *j, bool object)
{
    if (j->depth == PARSE_JSON_DEPTH)
        return PARSE_BAD;
    uint8_t bit = (uint8_t)(1u << (j->depth % 8));
    uint8_t *byte = &j->is_object[j->depth / 8];
    *byte = (uint8_t)(object ? *byte | bit : *byte & ~bit);
    j->depth++;
    return go(j, object ? KEY_OR_CLOSE : VALUE_OR_CLOSE);
}

/* A value that its last byte completes. */
static enum parse_step value_done(struct parse_json *j)
{
    j->state = j->depth == 0 ? END : AFTER;
    return j->depth == 0 ? PARSE_DONE : PARSE_MORE;
}

static enum parse_step close_container(struct parse_json *j, char c)
{
    if (c != (top_is_object(j) ? '}' : ']'))
        return PARSE_BAD;
    j->depth--;
    return value_done(j);
}

static enum parse_step start_word(struct parse_json *j, const char *rest)
{
    j->word = rest;
    return go(j, WORD);
}

static enum parse_step start_value(struct parse_json *j, char c)
{
    switch (c) {
    case '{':
        return open_container(j, true);
    case '[':
        return open_container(j, false);
    case '"':
        j->in_key = false;
        return go(j, STRING);
    case 't':
        return start_word(j, "rue");
    case 'f':
        return start_word(j, "alse");
    case 'n':
        return start_word(j, "ull");
    case '-':
        return go(j, MINUS);
    case '0':
        return go(j, ZERO);
    default:
        return is_digit(c) ? go(j, INTEGER) : PARSE_BAD;
    }
}

static enum parse_step step_string(struct parse_json *j, char c)
{
    switch (j->state) {
    case STRING:
        if (c == '\\')
            return go(j, ESCAPE);
        if ((unsigned char)c < 0x20)
            return PARSE_BAD;
        if (c != '"')
            return PARSE_MORE;
        return j->in_key ? go(j, COLON) : value_done(j);
    case ESCAPE:
        if (c == 'u')
            return go(j, HEX4);
        return c && strchr("\"\\/bfnrt", c) ? go(j, STRING) : PARSE_BAD;
    default: /* HEX4 .. HEX1 */
        if (!is_hex(c))
            return PARSE_BAD;
        return go(j, j->state == HEX1 ? STRING : j->state + 1);
    }
}

/* Between values. */
static enum parse_step step_structure(struct parse_json *j, char c)
{
    if (is_space(c))
        return PARSE_MORE;
    switch (j->state) {
    case VALUE_OR_CLOSE:
        if (c == ']')
            return close_container(j, c);
        return start_value(j, c);
    case VALUE:
        return start_value(j, c);
    case KEY_OR_CLOSE:
    case KEY:
        if (c == '}' && j->state == KEY_OR_CLOSE)
            return close_container(j, c);
        j->in_key = true;
        return c == '"' ? go(j, STRING) : PARSE_BAD;
    case COLON:
        return c == ':' ? go(j, VALUE) : PARSE_BAD;
    case AFTER:
        if (c == ',')
            return go(j, top_is_object(j) ? KEY : VALUE);
        return close_container(j, c);
    default: /* END */
        return PARSE_BAD;
    }
}

/* The state after c within a number, -1 when c is not part of it. */
static int number_next(int state, char c)
{
    switch (state) {
    case MINUS:
        return c == '0' ? ZERO : is_digit(c) ? INTEGER : -1;
    case ZERO:
    case INTEGER:
        if (is_digit(c) && state == INTEGER)
            return INTEGER;
        return c == '.' ? POINT : (c | 0x20) == 'e' ? EXPONENT : -1;
    case POINT:
        return is_digit(c) ? FRACTION : -1;
    case FRACTION:
        return is_digit(c) ? FRACTION : (c | 0x20) == 'e' ? EXPONENT : -1;
    case EXPONENT:
        if (c == '+' || c == '-')
            return EXPONENT_SIGN;
        return is_digit(c) ? EXPONENT_DIGIT : -1;
    default: /* EXPONENT_SIGN, EXPONENT_DIGIT */
        return is_digit(c) ? EXPONENT_DIGIT : -1;
    }
}

static bool number_may_end(int state)
{
    return state == ZERO || state == INTEGER || state == FRACTION || state == EXPONENT_DIGIT;
}

static enum parse_step step_number(struct parse_json *j, char c)
{
    int next = number_next(j->state, c);
    if (next >= 0)
        return go(j, next);
    if (!number_may_end(j->state))
        return PARSE_BAD;
    j->state = j->depth == 0 ? END : AFTER;
    return step_structure(j, c);
}

enum parse_step parse_json_step(struct parse_json *j, char c)
{
    if (j->state < STRING)
        return step_structure(j, c);
    if (j->state < WORD)
        return step_string(j, c);
    if (j->state > WORD)
        return step_number(j, c);
    if (c != *j->word)
        return PARSE_BAD;
    return *++j->word ? PARSE_MORE : value_done(j);
}

bool parse_json_complete(const struct parse_json *j)
{
    return j->depth == 0 && (j->state == END || number_may_end(j->state));
}

bool parse_json_valid(const char *text, size_t len)
{
    struct parse_json j = {0};
    for (size_t i = 0; i < len; i++)
        if (parse_json_step(&j, text[i]) == PARSE_BAD)
            return false;
    return parse_json_complete(&j);
}

size_t parse_json_skip_space(const char *text, size_t len, size_t at)
{
    while (at < len && is_space(text[at]))
        at++;
    return at;
}

size_t parse_json_skip_value(const char *text, size_t len, size_t at)
{
    struct parse_json j = {0};
    for (; at < len; at++) {
        enum parse_step step = parse_json_step(&j, text[at]);
        if (step == PARSE_DONE)
            return at + 1;
        /* A number ends where something else begins. */
        if (step == PARSE_BAD || j.state == END)
            return at;
    }
    return at;
}
