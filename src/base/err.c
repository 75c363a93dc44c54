#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name, *text;
    int http;
} table[] = {
#define NYB_ERROR_ROW(name, http, text) {#name, text, http},
    NYB_ERROR_TABLE(NYB_ERROR_ROW)
#undef NYB_ERROR_ROW
};
#define N_CODE ((int)(sizeof(table) / sizeof(table[0])))

/* Names in files are not ours: none may move the cursor of a terminal or begin a second line. Control
 * characters are below 0x20, 0x7f, and U+0080 to U+009F, which is 0xc2 and one byte in UTF-8. */
static void blank_controls(char *s)
{
    for (unsigned char *c = (unsigned char *)s; *c; c++) {
        bool pair = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        if (*c < 0x20 || *c == 0x7f || pair)
            *c = '?';
        if (pair)
            *++c = '?';
    }
}

static void fill(struct nyb_err *err, enum nyb_code code, const char *where, int64_t offset, const char *fmt,
                 va_list args)
{
    if (!err)
        return;
    err->code = code;
    err->offset = offset;
    snprintf(err->where, sizeof(err->where), "%s", where ? where : "");
    vsnprintf(err->message, sizeof(err->message), fmt, args);
    blank_controls(err->where);
    blank_controls(err->message);
}

enum nyb_code err_set(struct nyb_err *err, enum nyb_code code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fill(err, code, NULL, -1, fmt, args);
    va_end(args);
    return code;
}

enum nyb_code err_at(struct nyb_err *err, enum nyb_code code, const char *where, int64_t offset,
                     const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fill(err, code, where, offset, fmt, args);
    va_end(args);
    return code;
}

static int row_of(enum nyb_code code)
{
    return (int)code >= 0 && (int)code < N_CODE ? (int)code : NYB_E_INTERNAL;
}

const char *err_name(enum nyb_code code)
{
    return table[row_of(code)].name;
}

const char *err_text(enum nyb_code code)
{
    return table[row_of(code)].text;
}

int err_http_status(enum nyb_code code)
{
    return table[row_of(code)].http;
}

char *err_format(const struct nyb_err *err, char *dst, size_t cap)
{
    const char *colon = err->where[0] ? ": " : "";
    const char *message = err->message[0] ? err->message : err_text(err->code);
    if (err->offset >= 0)
        snprintf(dst, cap, "%s%s%s (at byte %lld)", err->where, colon, message, (long long)err->offset);
    else
        snprintf(dst, cap, "%s%s%s", err->where, colon, message);
    return dst;
}

_Noreturn void assert_fail(const char *cond, const char *file, int line)
{
    fprintf(stderr, "nybble: bug: %s does not hold (%s:%d)\n", cond, file, line);
    abort();
}
