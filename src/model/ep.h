/* Expert parallelism: experts are shared out whole over the ranks, and sequences live on one rank each.
 *
 * A sequence's home rank has its KV blocks and does everything for its rows but the experts: every rank has
 * the whole attention, router, norms, shared experts and head. In each sparse layer rows go to the ranks of
 * the experts that they chose and the products come back (comm/dispatch.h). A product is computed whole by
 * one rank, and the home rank adds a row's products in the order of choice: every number has the bits that
 * one rank would give it.
 *
 * All ranks see the whole batch and take their part; ranks without rows take part in the exchanges. */
#ifndef NYB_MODEL_EP_H
#define NYB_MODEL_EP_H

#include "comm/dispatch.h"
#include "model/layer.h"

/* Of a model; in use where shard.ep_size > 1. */
struct ep {
    struct dispatch dispatch;
    struct comm *self; /* partial sums stay on the rank */
    int n_expert;
    struct dispatch_place *place; /* (n_expert) where each is; the same in all layers */
};

const struct dispatch_codec *ep_codec(enum dispatch_type type);

/* Experts that a rank has: neighbours. */
struct shard_range ep_experts(const struct shard *s, int n_expert);

enum nyb_code ep_open(struct ep *ep, const struct model_config *c, struct comm *comm, enum dispatch_type type,
                      struct nyb_err *err) NYB_MUST_CHECK;
void ep_close(struct ep *ep);

/* A rank's part of a step. */
struct ep_part {
    struct batch batch;          /* its sequences; n_out: its rows whose logits are wanted */
    int n_row[COMM_RANK_MAX];    /* of each rank                                           */
    int n_out[COMM_RANK_MAX];    /* rows of logits from each                               */
    int32_t *out[COMM_RANK_MAX]; /* (n_out[r]) which of the whole batch's they are        */
};
int ep_home(const struct batch *b, int seq, int n_rank);
void ep_take_part(const struct batch *whole, int rank, int n_rank, struct arena *step, struct ep_part *part);

/* Own logits (own n_out, vocab) to rank 0, which puts all in their places: (whole batch's n_out, vocab).
 * False: a rank is lost. */
bool ep_gather_logits(const struct ep_part *part, struct comm *comm, const float *own, int vocab,
                      float *logits) NYB_MUST_CHECK;

/* ---- stages (ep_layer.c) ------------------------------------------------------------------------- */

void ep_send(struct micro_batch *mb);
void ep_shared(struct micro_batch *mb);
void ep_receive(struct micro_batch *mb);
void ep_experts_run(struct micro_batch *mb);
void ep_reply(struct micro_batch *mb);
void ep_combine(struct micro_batch *mb);

#endif
