/* The messages of a chat, as clients send them, in the form that chat templates expect. */
#ifndef NYB_SERVER_MESSAGES_H
#define NYB_SERVER_MESSAGES_H

#include "base/json.h"

/* In place: parts of content are joined to text, arguments of past tool calls become objects, reasoning goes
 * by both its names. The error names the message by its position. */
enum nyb_code messages_normalize(json_t *messages, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code messages_check_tools(const json_t *tools, struct nyb_err *err) NYB_MUST_CHECK;
/* Of a template that failed: templates raise errors of their own, in few words that do not say who speaks.
 * Other codes, and a model without template, stay as they are. */
void messages_say_who_refuses(enum nyb_code code, struct nyb_err *err);

#endif
