/* Server-sent events: an answer in pieces. */
#ifndef NYB_SERVER_SSE_H
#define NYB_SERVER_SSE_H

#include "server/gen.h"

/* Write what the last event brought, if a client can see it, and clear it. token: the event had one. */
void sse_add_event(struct choice *c, bool token);
/* The usage chunk if it was asked for, or the error, and [DONE]. */
void sse_add_end(struct gen *g);

#endif
