#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static enum nyb_code parse(json_t **out, const char *text, size_t len, size_t flags, const char *where,
                           struct nyb_err *err)
{
    json_error_t e;
    *out = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    /* Tokenizer configs say "unlimited" as 10^30; there, and only then, whole numbers become reals. */
    if (!*out && json_error_code(&e) == json_error_numeric_overflow && flags)
        *out = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | flags, &e);
    if (*out)
        return NYB_OK;
    if (json_error_code(&e) == json_error_out_of_memory ||
        !*e.text) /* jansson has no words where memory ends */
        return err_at(err, NYB_E_MEMORY, where, -1, "there is no memory to read it");
    return err_at(err, NYB_E_FORMAT, where, e.position, "not valid JSON: %s (line %d, column %d)", e.text,
                  e.line, e.column);
}

enum nyb_code json_parse(json_t **out, const char *text, size_t len, const char *where, struct nyb_err *err)
{
    return parse(out, text, len, 0, where, err);
}

enum nyb_code json_read_file(json_t **out, const char *path, struct nyb_err *err)
{
    char *text;
    size_t len;
    TRY(file_read_all(path, JSON_FILE_MAX, &text, &len, err));
    enum nyb_code code = parse(out, text, len, JSON_DECODE_INT_AS_REAL, path, err);
    free(text);
    return code;
}

/* Bytes of the UTF-8 sequence at s, 0 if it is not a valid one. */
static size_t utf8_len(const unsigned char *s, size_t left)
{
    if (s[0] < 0x80)
        return 1;
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

void json_add_string(struct buf *b, const char *s, size_t len)
{
    const unsigned char *u = (const unsigned char *)s;
    buf_reserve(b, len + 2);
    buf_add_byte(b, '"');
    for (size_t i = 0; i < len;) {
        size_t n = utf8_len(u + i, len - i);
        unsigned char c = u[i];
        if (n == 0) {
            buf_add_utf8(b, 0xfffd);
            n = 1;
        } else if (c == '"' || c == '\\') {
            buf_add_byte(b, '\\');
            buf_add_byte(b, (char)c);
        } else if (c == '\n') {
            buf_add_str(b, "\\n");
        } else if (c == '\r') {
            buf_add_str(b, "\\r");
        } else if (c == '\t') {
            buf_add_str(b, "\\t");
        } else if (c < 0x20 || c == 0x7f) {
            buf_printf(b, "\\u%04x", c);
        } else {
            buf_add(b, u + i, n);
        }
        i += n;
    }
    buf_add_byte(b, '"');
}

/* Python's repr: shortest digits that read back; exponent form outside 1e-4 <= |x| < 1e16. */
void json_add_double(struct buf *b, double x)
{
    char digits[40];
    if (!isfinite(x)) {
        buf_add_str(b, isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
        return;
    }
    int precision = 1;
    do
        snprintf(digits, sizeof(digits), "%.*e", precision - 1, x);
    while (strtod(digits, NULL) != x && ++precision <= 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        char *e = strchr(digits, 'e');
        buf_add(b, digits, (size_t)(e - digits));
        buf_printf(b, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - 1 - exponent;
    buf_printf(b, "%.*f", decimals > 1 ? decimals : 1, x);
}
