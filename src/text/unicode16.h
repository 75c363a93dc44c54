/* Unicode 16 character classes on top of a PCRE2 that knows Unicode 14. */
#ifndef NYB_TEXT_UNICODE16_H
#define NYB_TEXT_UNICODE16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Is `name` (of \p{name}) a class whose exact members we know? */
bool unicode16_knows(const char *name, size_t len);

/* Append the ranges that PCRE2 lacks for the class, spelled for the inside of a bracket: \x{..}-\x{..}... */
void unicode16_add_ranges(struct buf *out, const char *name, size_t len);

/* Append the 25 code points of White_Space, or all others, spelled for the inside of a bracket. */
void unicode16_add_space(struct buf *out, bool negated);

/* Does the text (well-formed UTF-8) hold a character that PCRE2's own classes put elsewhere than Unicode 16:
 * one of the added ones, or U+180E, which PCRE2 counts as \s and Unicode does not? */
bool unicode16_differs(const char *text, size_t len);
/* Is it one of these characters? */
bool unicode16_is_added(uint32_t code);

/* White_Space of Unicode: 25 code points. */
bool unicode16_is_space(uint32_t code);

#endif
