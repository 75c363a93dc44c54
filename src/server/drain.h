/* Signals and the way out: SIGTERM, SIGINT or SIGHUP start a drain, a second SIGTERM or SIGINT ends the
 * process at once. */
#ifndef NYB_SERVER_DRAIN_H
#define NYB_SERVER_DRAIN_H

#include "server/loop.h"

/* Until then, while the model is loaded, signals end the process, also where it is the first one of a
 * container: the kernel withholds from that one what it has no handler for. */
void drain_prepare(void);
enum nyb_code drain_open(struct server *s, struct nyb_err *err) NYB_MUST_CHECK;
void drain_close(struct server *s);
/* Marks its event in the loop's epoll. */
const void *drain_token(void);
/* Was a drain asked for, and is nothing left to wait for? */
bool drain_is_over(struct server *s);
/* End what still runs. */
void drain_cut(struct server *s);

#endif
