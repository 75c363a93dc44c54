/* What comes in of a request and goes out of its response, for the callbacks of http.c. */
#ifndef NYB_SERVER_HTTP_EXCHANGE_H
#define NYB_SERVER_HTTP_EXCHANGE_H

#include "server/exchange.h"

/* Bytes of target and headers that are accepted. Beyond HTTP_MEMORY, what a connection has for the headers of
 * a request and then for a chunk of a response, the library refuses by itself; in between we do. */
#define HTTP_HEADERS 32768
#define HTTP_MEMORY  49152

/* ---- http_accept.c ------------------------------------------------------------------------------- */

/* Of the request; NULL: it has none of that name. */
const char *http_header(const struct exchange *x, const char *name);

/* Everything that can be refused before the body is there. False: the reply is. */
bool http_accept(struct exchange *x, const char *version);

/* The next n bytes of the body: kept, or dropped where the reply is already there. */
void http_take_body(struct exchange *x, const char *data, size_t n);

/* Bytes of a body that are read though nobody wants them, so that the client sees the reply. */
uint64_t http_discard_limit(const struct exchange *x);

/* ---- http_reply.c -------------------------------------------------------------------------------- */

/* No value, no header. */
void http_add_header(struct MHD_Response *r, const char *name, const char *value);

/* The reply, or the beginning of a stream. */
enum MHD_Result http_send(struct exchange *x);

#endif
