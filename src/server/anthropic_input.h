/* Requests of Anthropic's Messages API as chats. Text, thinking, calls of functions and their results; what
 * would need more is refused by its name. Fields that change nothing here are accepted, and every other one
 * counts as in chats. */
#ifndef NYB_SERVER_ANTHROPIC_INPUT_H
#define NYB_SERVER_ANTHROPIC_INPUT_H

#include "base/json.h"

/* *chat: the body of a chat that asks for the same; the caller's. */
enum nyb_code anthropic_input(const json_t *asked, json_t **chat, struct nyb_err *err) NYB_MUST_CHECK;
/* An error about the chat, in the names of what was asked. */
void anthropic_rename_fault(struct nyb_err *err);

#endif
