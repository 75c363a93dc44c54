/* One line a request on standard output, as logfmt or JSON. */
#ifndef NYB_SERVER_ACCESS_LOG_H
#define NYB_SERVER_ACCESS_LOG_H

#include "server/exchange.h"

void access_log_write(const struct exchange *x);

#endif
