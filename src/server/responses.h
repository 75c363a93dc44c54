/* Answers in the form of OpenAI's Responses API: a list of items (reasoning, messages, calls), whole or as
 * events, each of which has a number and a name. The items are made as the parts of the one choice arrive;
 * without a stream the events are left out. */
#ifndef NYB_SERVER_RESPONSES_H
#define NYB_SERVER_RESPONSES_H

#include "server/gen.h"

/* NULL is fine. */
void responses_close(struct responses *r);
/* What has come since the last time. */
void responses_take(struct choice *c);
/* The call that choice.call has, complete. */
void responses_take_call(struct choice *c);
/* The last event, of an answer or an error. */
void responses_add_end(struct gen *g);
/* The whole answer. */
void responses_write(struct gen *g, struct buf *b);

#endif
