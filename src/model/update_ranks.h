/* Updates of a model that several ranks hold: what rank 0 says, and what the others do about it (ranks.h
 * carries it). They prepare and stage in a thread of their own, between whose beginning and the commit steps
 * go on. */
#ifndef NYB_MODEL_UPDATE_RANKS_H
#define NYB_MODEL_UPDATE_RANKS_H

#include "model/model_state.h"
#include "model/update.h"

/* Bytes in which rank 0's options travel. */
struct update_message {
    size_t bytes;
    uint8_t *data;
};

/* ---- rank 0: any thread -------------------------------------------------------------------------- */

/* Leave a message for the next time that rank 0 speaks to the others: an update has been prepared... */
void update_announce(struct model *m, const struct update_options *o);
/* ... or is closed. */
void update_announce_close(struct model *m);

/* ---- the others: the thread that follows --------------------------------------------------------- */

void update_follow_prepare(struct model *m, const uint8_t *data, size_t bytes);
void update_follow_commit(struct model *m);
void update_follow_rollback(struct model *m);
void update_follow_close(struct model *m);

/* On any rank, when the model is closed. */
void update_end(struct model *m);

#endif
