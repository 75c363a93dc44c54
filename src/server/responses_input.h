/* Requests of OpenAI's Responses API as chats. Nothing is stored here, so that each request must bring its
 * whole conversation, and there are no tools but functions. What would need more is refused by its name;
 * fields that change nothing here are accepted, and every other one counts as in chats. */
#ifndef NYB_SERVER_RESPONSES_INPUT_H
#define NYB_SERVER_RESPONSES_INPUT_H

#include "base/json.h"

/* *chat: the body of a chat that asks for the same; the caller's. */
enum nyb_code responses_input(const json_t *asked, json_t **chat, struct nyb_err *err) NYB_MUST_CHECK;
/* An error about the chat, in the names of what was asked. */
void responses_rename_fault(struct nyb_err *err);

#endif
