/* The listening socket. */
#ifndef NYB_SERVER_LISTEN_H
#define NYB_SERVER_LISTEN_H

#include "base/err.h"

/* *port: 0 for any; then what it became. */
enum nyb_code listen_open(int *fd, const char *host, int *port, struct nyb_err *err) NYB_MUST_CHECK;
/* Raise the limit of open files towards n; the limit that holds now. */
int listen_raise_limit(int n);

#endif
