/* The first bytes choose the stop strings and the cuts; whatever comes out must follow the rule and hide
 * nothing. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "text/stop.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool ends_with(const char *text, size_t len, const struct stop_string *s)
{
    return len >= s->len && !memcmp(text + len - s->len, s->text, s->len);
}

/* First to be complete, then first in the list; where it ends, 0: nowhere. */
static size_t oracle(const char *text, size_t len, const struct stop_string *s, size_t n, int *which)
{
    for (size_t end = 1; end <= len; end++)
        for (size_t i = 0; i < n; i++)
            if (ends_with(text, end, &s[i])) {
                *which = (int)i;
                return end;
            }
    *which = -1;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4 || size > 4096)
        return 0;
    bool include = data[0] & 1;
    size_t n = 1 + data[0] / 2 % 4, step = 1 + data[1] % 16, at = 2;
    struct stop_string s[4];
    for (size_t i = 0; i < n; i++) {
        size_t len = at < size ? data[at++] % 8u : 0;
        len = len < size - at ? len : size - at;
        s[i] = (struct stop_string){(const char *)data + at, len};
        at += len;
    }
    struct stop *stop;
    struct nyb_err err;
    if (stop_open(&stop, s, n, include, &err) != NYB_OK)
        return 0;
    const char *text = (const char *)data + at;
    size_t len = size - at;
    struct buf out = {0};
    for (size_t i = 0; i < len; i += step)
        stop_push(stop, text + i, len - i < step ? len - i : step, &out);
    stop_finish(stop, &out);
    int which;
    size_t end = oracle(text, len, s, n, &which);
    size_t want = which < 0 ? len : include ? end : end - s[which].len;
    ASSERT(stop_matched(stop) == which && out.len == want);
    ASSERT(want == 0 || !memcmp(out.data, text, want));
    buf_free(&out);
    stop_close(stop);
    return 0;
}
