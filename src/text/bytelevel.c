#include "text/bytelevel.h"

#include "text/utf8.h"

static bool stands_for_itself(uint32_t code)
{
    return (code >= 33 && code <= 126) || (code >= 161 && code <= 172) || (code >= 174 && code <= 255);
}

uint32_t bytelevel_char(uint8_t byte)
{
    uint32_t code = 0x100;
    if (stands_for_itself(byte))
        return byte;
    for (uint32_t b = 0; b < byte; b++)
        code += !stands_for_itself(b);
    return code;
}

/* The byte of a character, or -1. The 68 are 0..32, 127..160 and 173. */
static int byte_of(uint32_t code)
{
    if (code < 0x100)
        return stands_for_itself(code) ? (int)code : -1;
    uint32_t k = code - 0x100;
    if (k < 33)
        return (int)k;
    if (k < 67)
        return (int)(127 + k - 33);
    return k == 67 ? 173 : -1;
}

bool bytelevel_bytes(const char *text, size_t len, struct buf *out)
{
    size_t before = out->len;
    buf_reserve(out, len + 1);
    for (size_t i = 0; i < len; i += utf8_size(text[i])) {
        int byte = byte_of(utf8_code(text + i));
        if (byte < 0) {
            out->len = before;
            if (out->data)
                out->data[before] = '\0';
            return false;
        }
        buf_add_byte(out, (char)byte);
    }
    return true;
}
