/* Server-sent events: an answer in pieces. */
#ifndef NYB_SERVER_SSE_H
#define NYB_SERVER_SSE_H

#include "server/gen.h"

/* The role of a chat's choice, once: with its first event. */
void sse_add_begin(struct choice *c);
/* Write what the events since the last chunk brought, if a client can see it, and clear it. token: there were
 * some. */
void sse_add_event(struct choice *c, bool token);
/* The usage chunk if it was asked for, or the error, and [DONE]. */
void sse_add_end(struct gen *g);

#endif
