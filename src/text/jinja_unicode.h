/* Characters as Python's str methods see them. */
#ifndef NYB_TEXT_JINJA_UNICODE_H
#define NYB_TEXT_JINJA_UNICODE_H

#include "text/jinja_str.h"

bool junicode_is_space(uint32_t code);     /* str.isspace, what strip() and split() cut */
bool junicode_is_line_end(uint32_t code);  /* what splitlines cuts, "\r\n" counting once  */
bool junicode_is_printable(uint32_t code); /* what repr leaves as it is                  */
bool junicode_is_alpha(uint32_t code);
bool junicode_is_decimal(uint32_t code);
bool junicode_is_digit(uint32_t code);
bool junicode_is_numeric(uint32_t code);
bool junicode_is_upper(uint32_t code);
bool junicode_is_lower(uint32_t code);
bool junicode_is_title(uint32_t code);
bool junicode_is_word(uint32_t code); /* \w */

/* Append the full case mapping of a character. */
void junicode_add_upper(struct jtext *t, uint32_t code, bool input);
void junicode_add_lower(struct jtext *t, uint32_t code, bool input);
/* The lower case of the character that c stands on and that starts at byte `from`, where its neighbours
 * matter. */
void junicode_add_lower_at(struct jtext *t, const struct jchars *c, size_t from);
void junicode_add_title(struct jtext *t, uint32_t code, bool input);

const struct jstr *junicode_upper(struct jheap *h, const struct jstr *s);
const struct jstr *junicode_lower(struct jheap *h, const struct jstr *s);
const struct jstr *junicode_fold(struct jheap *h, const struct jstr *s);
const struct jstr *junicode_capitalize(struct jheap *h, const struct jstr *s);

#endif
