/* Requests of OpenAI's Responses API as chats. Nothing is stored here, so that each request must bring its
 * whole conversation, and there are no tools but functions; what else the API has is refused by its name. */
#ifndef NYB_SERVER_RESPONSES_INPUT_H
#define NYB_SERVER_RESPONSES_INPUT_H

#include "base/json.h"

/* *chat: the body of a chat that asks for the same; the caller's. */
enum nyb_code responses_input(const json_t *asked, json_t **chat, struct nyb_err *err) NYB_MUST_CHECK;
/* An error about the chat, in the names of what was asked. */
void responses_rename_fault(struct nyb_err *err);

#endif
