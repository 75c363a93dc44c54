/* The open checkpoint that slots were filled from, kept so that they can be filled from it again: when an
 * update that reads in place fails halfway, this is where the old weights are. The files stay open, so a
 * folder that is moved, replaced or deleted meanwhile does no harm; files that are rewritten in place are
 * noticed.
 *
 * Each rank opens its own. Whether two of them have the same one, its path cannot tell: another checkpoint
 * may lie there by the time that the second rank opens it. struct origin_id can. */
#ifndef NYB_MODEL_ORIGIN_H
#define NYB_MODEL_ORIGIN_H

#include "checkpoint/checkpoint.h"

struct origin;

/* The same for whoever has opened the same files for the same weights. */
struct origin_id {
    uint64_t generation; /* of the weights that they were opened for, which all ranks count alike         */
    uint64_t files;      /* hash of names and sizes                                                       */
    uint64_t machine;    /* whose inodes and times `state` is about: other machines may have copies        */
    uint64_t state;      /* hash of devices, inodes and times of change                                   */
};
bool origin_id_equal(const struct origin_id *a, const struct origin_id *b);

/* Takes the checkpoint over; one reference is the caller's. generation: of the weights once they are filled
 * from it (model_weights_generation). */
struct origin *origin_new(struct ckpt *c, uint64_t generation);
struct origin *origin_share(struct origin *o); /* one more reference; NULL is fine     */
void origin_drop(struct origin *o);            /* the last one closes it; NULL is fine */
const struct ckpt *origin_ckpt(const struct origin *o);
const struct origin_id *origin_id(const struct origin *o);
/* NYB_E_IO when a file has another size or time of change than when origin_new saw it. */
enum nyb_code origin_check(const struct origin *o, struct nyb_err *err) NYB_MUST_CHECK;

#endif
