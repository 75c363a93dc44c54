/* Experts that change ranks while the model is served (ep.h, placement.h).
 *
 *     rank 0, between two steps:   model_rebalance_begin   plans every layer from the load so far
 *                                  model_rebalance_step    moves one expert after the other, until its time
 * is up; again after the next step
 *
 * A move is a copy over the communicator: logical rows are read out of one rank's slot (weight_read) and
 * written into another's (weight_write), a message at a time, so that nothing needs room for a second expert.
 * After each move the placement is whole, and steps may run. Tokens do not change: a copy has the same bits.
 *
 * What a slot says about itself moves with its rows: name, scales, and where they come from. Where the new
 * rank does not have that checkpoint open (the same files, whatever lies under their names now), the origin
 * is lost, and an update that reads in place (update.h) needs staging.
 *
 * Threads: model_rebalance_* of rank 0's is the thread that steps. Nobody else may look at slots meanwhile:
 * no update, checksum or readback. While an update is open on whatever rank, model_rebalance_step moves
 * nothing and says that there is more: other ranks close one in a thread of their own, which may take longer
 * than a rank may be silent, so nobody waits for that. */
#ifndef NYB_MODEL_REBALANCE_H
#define NYB_MODEL_REBALANCE_H

#include "model/expert_facts.h"
#include "model/model_state.h"

/* All ranks, once the slots are filled: which layers have experts that fit one another's slots. */
void rebalance_open(struct model *m);
void rebalance_close(struct model *m);

/* Other ranks: their part in a move. A task of ranks.h. */
void rebalance_follow(struct model *m, const uint8_t *data, size_t bytes);

/* ---- expert_move.c ------------------------------------------------------------------------------- */

#define EXPERT_PARTS_MAX 8

struct part_shape {
    int32_t kind, type, n, k; /* of a slot */
};

/* What the experts of a layer look like. */
struct expert_shape {
    int32_t n_part;
    bool known;   /* by a rank that has one                             */
    bool movable; /* all look so, and messages have room for their rows */
    struct part_shape part[EXPERT_PARTS_MAX];
};
/* All ranks call it together and get the same. */
struct expert_shape expert_shape_agree(const struct model *m, int layer);

/* All ranks together: the rows and facts of one slot to another; then the placement is what `move` makes of
 * it. Bytes that cross ranks are added to *bytes, origins that the slots here had to *left. False: a rank is
 * lost. */
bool expert_move(struct model *m, int layer, const struct expert_shape *shape,
                 const struct placement_move *move, struct origins_left *left,
                 uint64_t *bytes) NYB_MUST_CHECK;

#endif
