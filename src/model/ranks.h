/* What rank 0 tells the others: a command is a fixed head and, for a step, the arrays of its batch. */
#ifndef NYB_MODEL_RANKS_H
#define NYB_MODEL_RANKS_H

#include "model/model_state.h"

/* All ranks opened, or none: the code and the error of the first that could not. comm NULL: code. */
enum nyb_code ranks_agree(struct comm *comm, enum nyb_code code, struct nyb_err *err) NYB_MUST_CHECK;
/* The same, however long it takes the slowest rank to get there. */
enum nyb_code ranks_agree_slowly(struct comm *comm, enum nyb_code code, struct nyb_err *err) NYB_MUST_CHECK;

/* Rank 0 to the others, before it does the same itself. They do nothing on other ranks. */
void ranks_reserve(struct model *m, int n_block);
void ranks_forward(struct model *m, const struct batch *b, bool watched, int cut);
void ranks_end(struct model *m);
/* Updates: what has been left for the others (update_ranks.h), and then that they commit or roll back. */
void ranks_commit(struct model *m);
void ranks_rollback(struct model *m);

/* Whether hidden states of this step are looked at, on whatever rank. */
bool ranks_watched(const struct model *m, const struct model_probe *probe);

#endif
