/* The byte-level alphabet of GPT-2: every byte has a printable character. Bytes that are printable in Latin-1
 * (33..126, 161..172, 174..255) stand for themselves, the other 68 take U+0100, U+0101, ... in ascending
 * order. */
#ifndef NYB_TEXT_BYTELEVEL_H
#define NYB_TEXT_BYTELEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

uint32_t bytelevel_char(uint8_t byte); /* its character               */
bool bytelevel_bytes(const char *text, size_t len,
                     struct buf *out); /* append the bytes that a spelling stands
       for; false (out unchanged) when a character is outside the alphabet */

#endif
