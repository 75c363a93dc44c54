/* Character classes, escapes and counts: what regular expressions and grammars write alike. */
#include <string.h>

#include "base/mem.h"
#include "text/grammar_build.h"
#include "text/utf8.h"

#define COUNT_MAX 100000 /* of a repetition */
#define SHOWN     100u   /* bytes of a text that an error repeats: those around its place */

enum nyb_code grammar_fail_at(struct nyb_err *err, const char *source, const char *text, size_t len,
                              size_t at, const char *what)
{
    size_t from = len <= SHOWN || at <= SHOWN / 2 ? 0 : at - SHOWN / 2;
    size_t end = len - from <= SHOWN ? len : from + SHOWN;
    while (from > 0 && utf8_is_tail(text[from]) && from < at)
        from++;
    while (end < len && utf8_is_tail(text[end]) && end > at)
        end--;
    return err_at(err, NYB_E_ARG, "", (int64_t)at, "%s at byte %zu of %s\"%s%.*s%s\"", what, at, source,
                  from > 0 ? "..." : "", (int)(end - from), text + from, end < len ? "..." : "");
}

static enum nyb_code fail_at(struct nyb_err *err, const char *text, size_t len, size_t at, const char *what)
{
    return grammar_fail_at(err, "", text, len, at, what);
}

/* What expressions can have and these do not. */
static enum nyb_code refuse_at(struct nyb_err *err, const char *text, size_t len, size_t at, const char *what)
{
    (void)fail_at(err, text, len, at, what);
    if (err)
        err->code = NYB_E_UNSUPPORTED;
    return NYB_E_UNSUPPORTED;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* n digits, or digits within braces where n is 0. */
static enum nyb_code hex_code(const char *text, size_t len, size_t *at, size_t n, uint32_t *code,
                              struct nyb_err *err)
{
    size_t begin = *at, digits = 0;
    bool braced = n == 0 || (*at < len && text[*at] == '{');
    *code = 0;
    *at += braced;
    for (; *at < len && hex_digit(text[*at]) >= 0 && digits < (braced ? 6 : n); ++*at, digits++)
        *code = *code << 4 | (uint32_t)hex_digit(text[*at]);
    if (braced ? digits == 0 || *at >= len || text[*at] != '}' : digits != n)
        return fail_at(err, text, len, begin, "an escape without its hexadecimal digits");
    *at += braced;
    if (*code > 0x10FFFF || (*code >= 0xD800 && *code <= 0xDFFF))
        return fail_at(err, text, len, begin, "an escape that is no character");
    return NYB_OK;
}

/* Classes are ASCII's, as ECMA-262 has them; negated ones hold all else. */
static bool add_class(char c, struct grammar_chars *out)
{
    struct grammar_chars set = {0};
    switch (c | 32) {
    case 'w':
        grammar_chars_add(&set, 'a', 'z');
        grammar_chars_add(&set, 'A', 'Z');
        grammar_chars_add(&set, '_', '_');
        grammar_chars_add(&set, '0', '9');
        break;
    case 'd':
        grammar_chars_add(&set, '0', '9');
        break;
    case 's':
        grammar_chars_add(&set, '\t', '\r');
        grammar_chars_add(&set, ' ', ' ');
        break;
    default:
        return false;
    }
    grammar_chars_finish(&set);
    if (!(c & 32))
        grammar_chars_negate(&set);
    for (size_t i = 0; i < set.n; i++)
        grammar_chars_add(out, set.span[i].lo, set.span[i].hi);
    grammar_chars_free(&set);
    return true;
}

enum nyb_code grammar_escape(const char *text, size_t len, size_t *at, struct grammar_chars *out,
                             struct nyb_err *err)
{
    static const char from[] = "nrtfv0ae", to[] = "\n\r\t\f\v\0\a\x1b";
    if (*at >= len)
        return fail_at(err, text, len, *at, "a backslash at the end");
    char c = text[*at];
    const char *control = c ? strchr(from, c) : NULL;
    uint32_t code = 0;
    size_t begin = (*at)++;
    if (add_class(c, out))
        return NYB_OK;
    if (c == 'x')
        TRY(hex_code(text, len, at, 2, &code, err));
    else if (c == 'u')
        TRY(hex_code(text, len, at, 4, &code, err));
    else if (c == 'U')
        TRY(hex_code(text, len, at, 8, &code, err));
    else if (control)
        code = (unsigned char)to[control - from];
    else if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'))
        return refuse_at(err, text, len, begin,
                         "an escape that is not supported (a backreference, \\b, \\p or another)");
    else if ((c & 0x80) != 0)
        return fail_at(err, text, len, begin, "a backslash before a character that needs none");
    else
        code = (uint8_t)c;
    grammar_chars_add(out, code, code);
    return NYB_OK;
}

/* One member of a bracket: a character (*single), or a class. */
static enum nyb_code take_member(const char *text, size_t len, size_t *at, struct grammar_chars *out,
                                 uint32_t *single, struct nyb_err *err)
{
    struct grammar_chars one = {0};
    *single = UINT32_MAX;
    if (text[*at] != '\\') {
        *single = utf8_code(text + *at);
        *at += utf8_size(text[*at]);
        return NYB_OK;
    }
    ++*at;
    if (*at < len && text[*at] == 'b') {
        ++*at;
        *single = '\b';
        return NYB_OK;
    }
    enum nyb_code code = grammar_escape(text, len, at, &one, err);
    if (code == NYB_OK && one.n == 1 && one.span[0].lo == one.span[0].hi)
        *single = one.span[0].lo;
    for (size_t i = 0; code == NYB_OK && *single == UINT32_MAX && i < one.n; i++)
        grammar_chars_add(out, one.span[i].lo, one.span[i].hi);
    grammar_chars_free(&one);
    return code;
}

enum nyb_code grammar_bracket(const char *text, size_t len, size_t *at, struct grammar_chars *out,
                              struct nyb_err *err)
{
    size_t begin = *at;
    bool negated = *at < len && text[*at] == '^';
    *at += negated;
    for (size_t first = *at; *at < len && (text[*at] != ']' || *at == first);) {
        uint32_t lo, hi;
        TRY(take_member(text, len, at, out, &lo, err));
        hi = lo;
        if (*at + 1 < len && text[*at] == '-' && text[*at + 1] != ']') {
            size_t dash = (*at)++;
            TRY(take_member(text, len, at, out, &hi, err));
            if (lo == UINT32_MAX || hi == UINT32_MAX || lo > hi)
                return fail_at(err, text, len, dash, "a range whose ends are not two characters in order");
        }
        if (lo != UINT32_MAX)
            grammar_chars_add(out, lo, hi);
    }
    if (*at >= len)
        return fail_at(err, text, len, begin, "a bracket that is not closed");
    ++*at;
    grammar_chars_finish(out);
    if (negated)
        grammar_chars_negate(out);
    return out->n > 0 ? NYB_OK : fail_at(err, text, len, begin, "a bracket without characters");
}

static bool take_number(const char *text, size_t len, size_t *at, uint32_t *out)
{
    size_t begin = *at;
    for (*out = 0; *at < len && text[*at] >= '0' && text[*at] <= '9' && *out <= COUNT_MAX; ++*at)
        *out = *out * 10 + (uint32_t)(text[*at] - '0');
    return *at > begin && *out <= COUNT_MAX;
}

enum nyb_code grammar_count(const char *text, size_t len, size_t *at, uint32_t *min, uint32_t *max,
                            struct nyb_err *err)
{
    size_t begin = (*at)++;
    bool fine = true, from = take_number(text, len, at, min);
    *max = *min;
    if (!from && *at < len && text[*at] == ',')
        *min = 0;
    else
        fine = from;
    if (fine && *at < len && text[*at] == ',') {
        ++*at;
        if (*at < len && text[*at] == '}')
            *max = GRAMMAR_REPEAT;
        else
            fine = take_number(text, len, at, max);
    }
    if (!fine || *at >= len || text[*at] != '}' || *min > *max || (!from && *max == GRAMMAR_REPEAT))
        return fail_at(err, text, len, begin, "a brace that is no count of at most 100000");
    ++*at;
    return NYB_OK;
}
