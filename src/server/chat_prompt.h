/* The prompt that the chat template makes of a request: its messages, tools, variables, and how it ends. */
#ifndef NYB_SERVER_CHAT_PROMPT_H
#define NYB_SERVER_CHAT_PROMPT_H

#include "base/json.h"
#include "server/loop.h"

/* Of a body whose messages are normalized (messages.h). The ids, and the text where it is asked for, are the
 * caller's: nyb_free. */
enum nyb_code chat_prompt_render(const struct server *s, const json_t *body, int32_t **ids, size_t *n,
                                 char **text, struct nyb_err *err) NYB_MUST_CHECK;

#endif
