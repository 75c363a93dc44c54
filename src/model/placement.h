/* Which rank has which expert of a layer, under expert parallelism.
 *
 * A layer has as many slots as experts, and some more for copies of the busiest (redundant experts). Slots
 * are shared out over the ranks, neighbours to one rank; each holds one expert, and each expert is in one
 * slot at least. A copy is as good as any other: it holds the same bits, and a row's product depends on
 * nothing but the row and the expert (docs/DESIGN.md), so that where it is computed changes no number. */
#ifndef NYB_MODEL_PLACEMENT_H
#define NYB_MODEL_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "model/shard.h"

struct placement {
    int n_expert, n_slot, n_rank;
    int16_t *expert; /* (n_slot) what each slot holds                                          */
    int16_t *first;  /* (n_expert + 1) where an expert's copies begin in `copy`                */
    int16_t *copy;   /* (n_slot) slots, those of one expert together, in ascending order       */
};

/* The first n_expert slots hold the experts in order, the others again those from 0 on.
 * n_expert <= n_slot <= n_expert * n_rank. */
void placement_init(struct placement *p, int n_expert, int n_slot, int n_rank);
void placement_copy(struct placement *to, const struct placement *from); /* of one size */
void placement_free(struct placement *p);                                /* all zero is fine */

/* A rank's slots. At most n_expert. */
struct shard_range placement_slots(int rank, int n_rank, int n_slot);
int placement_rank(const struct placement *p, int slot);
int placement_copies(const struct placement *p, int expert);

/* One step from a placement to another: the expert in slot `from` into slot `to`, whose own is lost, or both
 * exchanged. */
struct placement_move {
    int from, to;
    bool exchange;
};
void placement_apply(struct placement *p, const struct placement_move *m);

/* ---- the balancer -------------------------------------------------------------------------------- */

/* A placement for this load of each expert (n_expert), into expert (n_slot): slots beyond n_expert go to
 * copies of whatever expert has most load for each of its copies; then the copies go, heaviest first, to the
 * rank with least load that has a slot left and no copy of the same expert. What a rank has already stays
 * in its slot. */
void balance_plan(const struct placement *now, const double *load, int16_t *expert);
/* The busiest rank's load over the mean, where every copy gets the same share: 1 is even. 1 without load. */
double balance_of(const struct placement *p, const int16_t *expert, const double *load);
/* The next step towards `target`, which is a placement of the same size; false: it is reached. Each one
 * settles a slot for good, and after each every expert is still somewhere: steps of the model may run in
 * between. */
bool balance_next(const struct placement *now, const int16_t *target, struct placement_move *move);

#endif
