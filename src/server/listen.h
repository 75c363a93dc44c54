/* The listening socket. */
#ifndef NYB_SERVER_LISTEN_H
#define NYB_SERVER_LISTEN_H

#include <sys/socket.h>

#include "base/err.h"

#define LISTEN_BACKLOG 1024

/* A socket of that address, which refuses connections until listen_start. *port: 0 for any; then what it
 * became. Another process that listens there is an error now; one that does so in between, in listen_start.
 */
enum nyb_code listen_bind(int *fd, const char *host, int *port, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code listen_start(int fd, const char *host, int port, struct nyb_err *err) NYB_MUST_CHECK;
/* Is this a loopback address? */
bool listen_is_loopback(const struct sockaddr *address);
/* Can only this machine reach the socket? */
bool listen_is_local(int fd);
/* Raise the limit of open files towards n; the limit that holds now. */
int listen_raise_limit(int n);

#endif
