/* The engine's thread: requests in through the inbox, replies out through their rings. */
#ifndef NYB_ENGINE_ENGINE_H
#define NYB_ENGINE_ENGINE_H

#include "engine/control.h"
#include "engine/step.h"

struct engine;

/* max_live of the options bounds what is submitted and has not ended. stuck_ms: see nyb_options. */
enum nyb_code engine_open(struct engine **out, const struct runner *runner, const struct step_options *o,
                          int stuck_ms, struct nyb_err *err) NYB_MUST_CHECK;
/* Refuse what comes, abort what runs, end the thread. May be called more than once. */
void engine_stop(struct engine *e);
void engine_close(struct engine *e);

/* Any thread. A prepared request; the caller stays an owner. priority: nyb_request's. */
enum nyb_code engine_submit(struct engine *e, struct request *r, int priority,
                            struct nyb_err *err) NYB_MUST_CHECK;
void engine_stats(const struct engine *e, struct nyb_stats *out);
void engine_health(struct engine *e, struct nyb_health *out);
/* Any thread but the engine's: do this between two steps. Returns when it has been done. */
enum nyb_code engine_call(struct engine *e, struct control_op *op, struct nyb_err *err) NYB_MUST_CHECK;
bool engine_is_paused(const struct engine *e);
bool engine_is_stopping(const struct engine *e);

#endif
