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
/* The same batch for model_device_profile. */
void ranks_profile(struct model *m, const struct batch *b);
void ranks_end(struct model *m);

/* What rank 0 has the others do besides steps: a row of the table in ranks.c each. They do it between two
 * steps and are expected to be quick about it; what takes long goes on in a thread of theirs. */
enum ranks_task {
    TASK_UPDATE_PREPARE, /* update_ranks.h   */
    TASK_UPDATE_PIECE,
    TASK_UPDATE_STAGE,
    TASK_UPDATE_ASK,
    TASK_UPDATE_COMMIT,
    TASK_UPDATE_ROLLBACK,
    TASK_UPDATE_CLOSE,
    TASK_CHECKSUM_START, /* checksum_ranks.h */
    TASK_CHECKSUM_ASK,
    TASK_CHECKSUM_GIVE,
    TASK_READBACK,    /* readback.h       */
    TASK_EXPERT_MOVE, /* rebalance.h      */
    TASK_COUNT
};
/* Rank 0, the thread that steps: the others begin, with a copy of these bytes. Where there is an answer, this
 * rank takes part in it next. Does nothing on other ranks. */
void ranks_do(struct model *m, enum ranks_task task, const void *data, size_t bytes);
/* comm_gather; of one rank a copy, which any thread may make. */
bool ranks_gather(const struct model *m, const void *own, size_t bytes, void *all) NYB_MUST_CHECK;
/* As many bytes from `rank` as both know: `own` there, into `to` on rank 0. All ranks call it; `to` and `own`
 * of the others are not looked at. False: a rank is lost. */
bool ranks_collect(struct comm *comm, int rank, const void *own, void *to, size_t bytes) NYB_MUST_CHECK;

/* Whether hidden states of this step are looked at, on whatever rank. */
bool ranks_watched(const struct model *m, const struct model_probe *probe);

#endif
