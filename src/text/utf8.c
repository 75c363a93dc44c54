#include "text/utf8.h"

#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

enum utf8_kind utf8_look(const char *s, size_t len, size_t *n)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned char c = u[0];
    unsigned char lo = 0x80, hi = 0xBF; /* allowed range of the second byte (Unicode table 3-7) */
    size_t size;
    *n = 1;
    if (c < 0x80)
        return UTF8_CHAR;
    if (c < 0xC2 || c > 0xF4)
        return UTF8_BAD;
    size = utf8_size(s[0]);
    if (c == 0xE0)
        lo = 0xA0;
    else if (c == 0xED)
        hi = 0x9F;
    else if (c == 0xF0)
        lo = 0x90;
    else if (c == 0xF4)
        hi = 0x8F;
    for (size_t i = 1; i < size; i++) {
        if (i == len) {
            *n = len;
            return UTF8_INCOMPLETE;
        }
        if (u[i] < lo || u[i] > hi) {
            *n = i;
            return UTF8_BAD;
        }
        lo = 0x80;
        hi = 0xBF;
    }
    *n = size;
    return UTF8_CHAR;
}

size_t utf8_valid_prefix(const char *s, size_t len)
{
    size_t i = 0;
    while (i < len) {
        uint64_t word;
        if (len - i >= 8) {
            memcpy(&word, s + i, 8);
            if ((word & 0x8080808080808080ull) == 0) {
                i += 8;
                continue;
            }
        }
        size_t n;
        if (utf8_look(s + i, len - i, &n) != UTF8_CHAR)
            return i;
        i += n;
    }
    return len;
}

void utf8_add_lossy(struct buf *out, const char *s, size_t len)
{
    while (len > 0) {
        size_t good = utf8_valid_prefix(s, len);
        buf_add(out, s, good);
        s += good;
        len -= good;
        if (len == 0)
            break;
        size_t bad;
        utf8_look(s, len, &bad);
        buf_add(out, REPLACEMENT, 3);
        s += bad;
        len -= bad;
    }
}
