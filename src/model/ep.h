/* Expert parallelism: experts are shared out whole over the ranks, and sequences live on one rank each.
 *
 * A sequence's home rank has its KV blocks and does everything for its rows but the experts: every rank has
 * the whole attention, router, norms, shared experts and head. In each sparse layer rows go to the ranks of
 * the experts that they chose and the products come back (comm/dispatch.h). A product is computed whole by
 * one rank, and the home rank adds a row's products in the order of choice: every number has the bits that
 * one rank would give it, whichever copy of an expert (placement.h) has computed it.
 *
 * All ranks see the whole batch and take their part; ranks without rows take part in the exchanges. */
#ifndef NYB_MODEL_EP_H
#define NYB_MODEL_EP_H

#include "comm/dispatch.h"
#include "model/layer.h"
#include "model/name_set.h"
#include "model/placement.h"

/* What the routers have chosen and who has computed it, as rank 0 knows it after each step. */
struct ep_load {
    uint32_t *computed;    /* (n_layer) pairs that this rank has computed and not told yet          */
    uint64_t *told;        /* other ranks: (n_layer, n_expert) choices that rank 0 knows of         */
    atomic_ullong *pairs;  /* rank 0: (n_layer, n_rank) computed by each; any thread may read       */
    atomic_ullong *before; /* rank 0: the same when the last rebalancing ended                      */
};

/* Of a model; in use where shard.ep_size > 1. */
struct ep {
    struct dispatch dispatch;
    struct comm *self; /* partial sums stay on the rank */
    int n_layer, n_sparse, n_expert, n_slot;
    int chunk_rows;               /* rows of one rank that go through a layer's experts at once           */
    struct dispatch_place *place; /* (n_slot) where each slot is; the same in all layers                  */
    struct placement *placement;  /* (n_layer) all zero where a layer has no experts                      */
    atomic_short *holds;          /* (n_layer, n_slot) placement[].expert, for other threads              */
    struct ep_load load;
};

const struct dispatch_codec *ep_codec(enum dispatch_type type);

/* Slots of a layer over all ranks, and those that this rank has. */
int ep_slots(const struct shard *s, int n_expert);
struct shard_range ep_own_slots(const struct shard *s, int n_expert);

/* chunk_rows <= 0: what keeps a rank's products within 64 MB. */
enum nyb_code ep_open(struct ep *ep, const struct model_config *c, struct comm *comm, enum dispatch_type type,
                      int chunk_rows, struct nyb_err *err) NYB_MUST_CHECK;
void ep_close(struct ep *ep);
/* A line for people: what messages and buffers there are. Where CPUs compute. */
void ep_say(const struct ep *ep, const struct model_config *c);

/* Every expert is used, if not by this rank: marks their tensors so, and adds them to what may come and go.
 */
void ep_claim_experts(struct name_set *unused, const struct weights *w, int n_expert, struct ckpt *c);

/* A rank's part of a step. */
struct ep_part {
    struct batch batch;          /* its sequences; n_out: its rows whose logits are wanted */
    int n_row[COMM_RANK_MAX];    /* of each rank                                           */
    int n_out[COMM_RANK_MAX];    /* rows of logits from each                               */
    int32_t *out[COMM_RANK_MAX]; /* (n_out[r]) which of the whole batch's they are        */
};
int ep_home(const struct batch *b, int seq, int n_rank);
void ep_take_part(const struct batch *whole, int rank, int n_rank, struct arena *step, struct ep_part *part);
/* Whether all ranks would rather have this step cut in two (overlap.h): whoever has rows has some for both
 * halves. Each rank's vote follows from the batch, which rank 0 knows. */
bool ep_vote_to_cut(const struct batch *whole, int n_rank);

/* ---- the end of a step (ep_gather.c) --------------------------------------------------------------- */

/* Logits of some rows of each rank to rank 0, which puts them in their places; before the first of them each
 * rank tells what its routers have chosen and what it has computed. */
struct ep_gather {
    const struct ep *ep;
    const struct ep_part *part;
    struct comm *comm;
    int vocab;
    float *logits;              /* rank 0: (whole batch's n_out, vocab)                          */
    atomic_ullong *expert_load; /* (n_layer, n_expert) this rank's choices; rank 0: becomes all ranks' */
};
/* Bytes before a rank's first row. All ranks know it. A multiple of 4. */
size_t ep_report_bytes(const struct ep *ep, int n_row);
/* Rows of one round: 64 MB of logits, or one row. */
int ep_gather_rows(int vocab);
/* own: where first is 0 room for the report, then rows [first, first + ep_gather_rows) of this rank, as many
 * as there are. All ranks call it with the same `first`. False: a rank is lost. */
bool ep_gather(const struct ep_gather *g, int first, void *own, struct arena *step) NYB_MUST_CHECK;

/* ---- stages (ep_layer.c) ------------------------------------------------------------------------- */

void ep_send(struct micro_batch *mb);
void ep_shared(struct micro_batch *mb);
void ep_receive(struct micro_batch *mb);
void ep_experts_run(struct micro_batch *mb);
void ep_reply(struct micro_batch *mb);
void ep_combine(struct micro_batch *mb);

#endif
