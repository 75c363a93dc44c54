#include "text/chat_json.h"

#include <string.h>

#include "text/jinja.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Does the integer s (its sign apart: n digits) exceed 64 bits? */
static bool is_big(const char *digits, size_t n, bool negative)
{
    static const char limit[2][20] = {"9223372036854775807", "9223372036854775808"};
    return n > 19 || (n == 19 && memcmp(digits, limit[negative], 19) > 0);
}

/* Past the string that starts at text[at]. */
static size_t skip_string(const char *text, size_t len, size_t at)
{
    for (at++; at < len && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at < len ? at + 1 : len;
}

/* The text with big integers as strings; false: it has none. */
static bool quote_big(const char *text, size_t len, struct buf *out)
{
    size_t copied = 0;
    for (size_t at = 0; at < len;) {
        if (text[at] == '"') {
            at = skip_string(text, len, at);
            continue;
        }
        if (!is_digit(text[at])) {
            at++;
            continue;
        }
        size_t from = at;
        bool negative = from > 0 && text[from - 1] == '-', real = false;
        for (; at < len && (is_digit(text[at]) || (text[at] && strchr(".eE+-", text[at]))); at++)
            real |= !is_digit(text[at]);
        if (real || text[from] == '0' || !is_big(text + from, at - from, negative))
            continue;
        from -= negative;
        buf_add(out, text + copied, from - copied);
        buf_add_str(out, "\"" JINJA_BIG_INT);
        buf_add(out, text + from, at - from);
        buf_add_byte(out, '"');
        copied = at;
    }
    if (!copied)
        return false;
    buf_add(out, text + copied, len - copied);
    return true;
}

enum nyb_code chat_json_parse(json_t **out, const char *text, size_t len, const char *where,
                              struct nyb_err *err)
{
    struct buf quoted = {0};
    enum nyb_code code = quote_big(text, len, &quoted) ? json_parse(out, quoted.data, quoted.len, where, err)
                                                       : json_parse(out, text, len, where, err);
    buf_free(&quoted);
    return code;
}

static void add_chat_string(struct buf *b, const json_t *v)
{
    const char *p = json_string_value(v);
    size_t len = json_string_length(v), prefix = strlen(JINJA_BIG_INT);
    if (len > prefix && !memcmp(p, JINJA_BIG_INT, prefix)) {
        size_t digits = prefix + (p[prefix] == '-');
        if (digits < len && strspn(p + digits, "0123456789") == len - digits) {
            buf_add(b, p + prefix, len - prefix);
            return;
        }
    }
    json_add_string(b, p, len);
}

static void add_chat_array(struct buf *b, const json_t *v)
{
    const json_t *item;
    size_t i;
    buf_add_byte(b, '[');
    json_array_foreach(v, i, item)
    {
        if (i)
            buf_add_byte(b, ',');
        chat_json_add(b, item);
    }
    buf_add_byte(b, ']');
}

static void add_chat_object(struct buf *b, const json_t *v)
{
    const char *key;
    json_t *value;
    bool first = true;
    buf_add_byte(b, '{');
    json_object_foreach((json_t *)(uintptr_t)v, key, value)
    {
        if (!first)
            buf_add_byte(b, ',');
        first = false;
        json_add_string(b, key, strlen(key));
        buf_add_byte(b, ':');
        chat_json_add(b, value);
    }
    buf_add_byte(b, '}');
}

void chat_json_add(struct buf *b, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        add_chat_object(b, v);
        break;
    case JSON_ARRAY:
        add_chat_array(b, v);
        break;
    case JSON_STRING:
        add_chat_string(b, v);
        break;
    case JSON_INTEGER:
        buf_printf(b, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        break;
    case JSON_REAL:
        json_add_double(b, json_real_value(v));
        break;
    default:
        buf_add_str(b, json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
    }
}
