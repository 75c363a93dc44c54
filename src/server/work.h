/* A few threads for what takes milliseconds: parsing a body, rendering, tokenizing, submitting. */
#ifndef NYB_SERVER_WORK_H
#define NYB_SERVER_WORK_H

#include "server/loop.h"

enum nyb_code work_open(struct work **out, struct server *s, int n_thread,
                        struct nyb_err *err) NYB_MUST_CHECK;
/* Have x->route->run(x) run. Those with long bodies never have all workers, where there are several. x
 * belongs to the workers until work_take_done has returned it. The queue is at most as long as there are
 * connections. */
void work_add(struct work *w, struct exchange *x);
/* All that are done, linked by next_work; the loop is woken when there are some. */
struct exchange *work_take_done(struct work *w);
/* Finishes what is queued. NULL is fine. */
void work_close(struct work *w);

#endif
