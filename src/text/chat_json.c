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
