/* libmicrohttpd: the daemon and its callbacks. */
#ifndef NYB_SERVER_HTTP_H
#define NYB_SERVER_HTTP_H

#include "server/loop.h"

/* Binds the ports, which refuse connections until http_open. Another process could still listen there until
 * then. */
enum nyb_code http_bind(struct server *s, struct nyb_err *err) NYB_MUST_CHECK;
/* Listens; logs the address. */
enum nyb_code http_open(struct server *s, struct nyb_err *err) NYB_MUST_CHECK;
/* Close every connection, whatever it waits for, and the ports. The workers must be gone. */
void http_stop(struct server *s);

#endif
