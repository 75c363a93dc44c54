/* libmicrohttpd: the daemon and its callbacks. */
#ifndef NYB_SERVER_HTTP_H
#define NYB_SERVER_HTTP_H

#include "server/loop.h"

/* Listens; logs the address. */
enum nyb_code http_open(struct server *s, struct nyb_err *err) NYB_MUST_CHECK;
/* Close every connection, whatever it waits for. The workers must be gone. */
void http_stop(struct server *s);

#endif
