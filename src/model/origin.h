/* The open checkpoint that slots were filled from, kept so that they can be filled from it again: when an
 * update that reads in place fails halfway, this is where the old weights are. The files stay open, so a
 * folder that is moved, replaced or deleted meanwhile does no harm; files that are rewritten in place are
 * noticed. */
#ifndef NYB_MODEL_ORIGIN_H
#define NYB_MODEL_ORIGIN_H

#include "checkpoint/checkpoint.h"

struct origin;

/* Takes the checkpoint over; one reference is the caller's. */
struct origin *origin_new(struct ckpt *c);
struct origin *origin_share(struct origin *o); /* one more reference; NULL is fine     */
void origin_drop(struct origin *o);            /* the last one closes it; NULL is fine */
const struct ckpt *origin_ckpt(const struct origin *o);
/* NYB_E_IO when a file has another size or time of change than when origin_new saw it. */
enum nyb_code origin_check(const struct origin *o, struct nyb_err *err) NYB_MUST_CHECK;

#endif
