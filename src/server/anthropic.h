/* Answers in the form of Anthropic's Messages API: blocks (thinking, text, tool_use), whole or as events. The
 * blocks are made as the parts of the one choice arrive; without a stream the events are left out. */
#ifndef NYB_SERVER_ANTHROPIC_H
#define NYB_SERVER_ANTHROPIC_H

#include "server/gen.h"

/* NULL is fine. */
void anthropic_close(struct anthropic *a);
/* What has come since the last time. */
void anthropic_take(struct choice *c);
/* The call that choice.call has, complete. */
void anthropic_take_call(struct choice *c);
/* The last events, of an answer or an error. */
void anthropic_add_end(struct gen *g);
/* The whole answer. */
void anthropic_write(struct gen *g, struct buf *b);

#endif
