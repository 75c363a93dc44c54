/* Updates of a model that several ranks hold: what rank 0 says, and what the others do about it (ranks.h
 * carries it). They prepare and stage in a thread of their own, between whose beginning and the commit steps
 * go on. */
#ifndef NYB_MODEL_UPDATE_RANKS_H
#define NYB_MODEL_UPDATE_RANKS_H

#include <pthread.h>

#include "model/model_state.h"
#include "model/update.h"

/* Bytes in which rank 0's options travel. */
struct update_message {
    size_t bytes;
    uint8_t *data;
};

/* ---- rank 0: any thread -------------------------------------------------------------------------- */

/* Leave word for the next time that rank 0 speaks to the others: an update has been prepared... */
void update_announce(struct model *m, const struct update_options *o);
/* ... is being staged... */
void update_announce_stage(struct model *m);
/* ... or is closed. */
void update_announce_close(struct model *m);

/* ---- rank 0: the thread that steps --------------------------------------------------------------- */

/* Say what has been left. */
void update_say(struct model *m);

/* How far a rank is. */
struct update_status {
    int32_t phase; /* 0: not there yet, 1: prepared, 2: staged */
    int32_t code;  /* of what it has done so far               */
    uint64_t staged_bytes;
    struct nyb_err err;
};
/* all: (comm_size), rank 0's own is what it was. False: a rank is lost. */
bool update_ask(struct model *m, struct update_status *all) NYB_MUST_CHECK;

/* ---- the others: the thread that follows --------------------------------------------------------- */

void update_follow_prepare(struct model *m, const uint8_t *data, size_t bytes);
void update_follow_piece(struct model *m, const uint8_t *data, size_t bytes);
void update_follow_stage(struct model *m, const uint8_t *data, size_t bytes);
void update_follow_ask(struct model *m, const uint8_t *data, size_t bytes);
void update_follow_commit(struct model *m, const uint8_t *data, size_t bytes);
void update_follow_rollback(struct model *m, const uint8_t *data, size_t bytes);
void update_follow_close(struct model *m, const uint8_t *data, size_t bytes);
/* Whether all that rank 0 has closed is closed here, too: a thread of this rank's does that. */
bool update_follow_is_over(struct model *m);

/* Tests only: `fault` of this rank's part in updates (update.h). */
void update_follow_fault(struct model *m,
                         enum nyb_code (*fault)(void *arg, enum update_point point, int64_t count),
                         void *arg);

/* On any rank, when the model is opened and closed. */
void update_begin(struct model *m);
void update_end(struct model *m);

#endif
