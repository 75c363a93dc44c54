/* Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}; under /v1/messages
 * as Anthropic's do: {"type": "error", "error": {"type", "message"}}. */
#ifndef NYB_SERVER_ERROR_H
#define NYB_SERVER_ERROR_H

#include "server/exchange.h"

/* param may be NULL. */
void error_reply(struct exchange *x, int status, const char *param, const char *fmt, ...) NYB_PRINTF(4, 5);
/* From the engine or from params_json: the code's table carries the status. */
void error_reply_err(struct exchange *x, const struct nyb_err *err);
/* The object alone, for a stream that has begun. */
void error_add_object(struct buf *b, int status, const char *param, const char *message);
void error_add_anthropic(struct buf *b, int status, const char *message);

#endif
