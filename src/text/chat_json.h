/* JSON whose integers may have any number of digits, as Python's has. */
#ifndef NYB_TEXT_CHAT_JSON_H
#define NYB_TEXT_CHAT_JSON_H

#include "base/json.h"

/* json_parse, but an integer that 64 bits cannot hold becomes the string JINJA_BIG_INT (jinja.h) and its
 * digits, which chat templates see as the integer again. For whatever is passed to chat_render. */
enum nyb_code chat_json_parse(json_t **out, const char *text, size_t len, const char *where,
                              struct nyb_err *err) NYB_MUST_CHECK;
/* The other direction: append v as it was written, without white space and with the shortest reals. */
void chat_json_add(struct buf *b, const json_t *v);

#endif
