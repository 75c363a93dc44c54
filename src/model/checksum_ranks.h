/* Checksums of a model that several ranks hold: each adds up its own parts in a thread of its own, and rank 0
 * collects them. */
#ifndef NYB_MODEL_CHECKSUM_RANKS_H
#define NYB_MODEL_CHECKSUM_RANKS_H

#include "model/model_state.h"

/* The others, the thread that follows (ranks.h). */
void checksum_follow_start(struct model *m, const uint8_t *data, size_t bytes);
void checksum_follow_ask(struct model *m, const uint8_t *data, size_t bytes);
void checksum_follow_give(struct model *m, const uint8_t *data, size_t bytes);

/* On any rank, when the model is closed. */
void checksum_end(struct model *m);

#endif
