/* A layer as a list of stages over a micro-batch.
 *
 * Each layer kind is a static array of stages. A stage belongs to a lane: arithmetic, or communication
 * between ranks; whoever runs the array may start another micro-batch's stage between a start and its done.
 * No model family is known in these files.
 *
 * With several ranks (shard.h) each computes its heads and its features, so a half layer ends with partial
 * sums in `delta`; the next one begins by adding those of all ranks to the residual stream, which is whole
 * and the same, bit for bit, on every rank. */
#ifndef NYB_MODEL_LAYER_H
#define NYB_MODEL_LAYER_H

#include <stdatomic.h>

#include "comm/comm.h"
#include "comm/dispatch.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/weights.h"

struct stage;
struct ep;
struct ep_part;

/* What a forward pass needs of its model, fixed for the pass. */
struct pass {
    const struct model_config *config;
    const struct stage *(*stages)(const struct model_config *c,
                                  int layer); /* layer_stages; tests have others */
    const struct weights *weights;
    const struct kernels *kernels;
    struct pool *pool;
    enum compute compute;
    const struct rope *rope;
    struct kv_layer *kv; /* (n_layer)   */
    const struct batch *batch;
    const struct model_probe *probe; /* may be NULL */
    struct comm *comm;
    struct comm *sums;          /* whose partial sums are added: comm, or this rank alone            */
    const struct ep *ep;        /* experts are shared out whole (ep.h), or NULL                      */
    const struct ep_part *part; /* this rank's, or NULL */
    int most_rows, sum_rows;    /* of any rank, and of all ranks, in this micro-batch; where ep is */
    bool watched;               /* some rank's probe wants hidden states: all take part in making them */
    atomic_ullong *expert_load; /* (n_layer, n_expert) counts up what the routers chose; NULL: nobody asks */
};

struct micro_batch {
    const struct pass *pass;
    int layer, stage; /* program counter                                             */
    int n_tok;
    float *residual; /* (n_tok, hidden) fp32 stream                                  */
    float *delta;    /* (n_tok, hidden) what the last half layer adds, not yet added: this rank's part */
    bool has_delta;
    uint64_t started_ns;
    bool started;                  /* the stage at the program counter: what it began is not done yet */
    int channel;                   /* of comm; one for each micro-batch in flight */
    bool lost;                     /* a rank is: what follows is not computed     */
    struct comm_add_norm add_norm; /* in flight between start and done */
    struct arena room;             /* of one layer: everything below                 */
    struct arena scratch;          /* of one stage                                   */
    float *norm;                   /* (n_tok, hidden)                                */
    struct operand input;          /* norm, as the matrices of this half layer take it */
    float *q, *k, *v;              /* (n_tok, heads * head_dim)                      */
    struct qkv_args qkv;           /* what is to be done with them                    */
    bool rotate_later;             /* by attention itself */
    float *attended;               /* (n_tok, n_head * head_dim)                     */
    int32_t *expert;               /* (n_tok, top_k) best first                      */
    float *weight;                 /* (n_tok, top_k)                                 */
    /* of experts on several ranks (ep_layer.c) */
    struct dispatch_place *place; /* (n_tok, top_k) who computes each choice           */
    struct dispatch_flight flight;
    struct arena flight_room; /* of one chunk of rows: what has come, and its products */
    float *shared;            /* (n_tok, hidden) of the shared experts, or NULL        */
    float *part;              /* products of the rows that came                        */
    int32_t *part_row;        /* (pairs) which is whose                                */
};

enum stage_lane { LANE_COMPUTE, LANE_COMM };
struct stage {
    const char *name;
    enum stage_lane lane;                /* LANE_COMM: done waits for other ranks */
    void (*start)(struct micro_batch *); /* NULL ends an array                     */
    void (*done)(struct micro_batch *);  /* waits for what start began; NULL: nothing to wait for */
    bool rowless; /* also where this rank has no rows in the micro-batch; so is all that exchanges something
                   * where ranks may differ in that (ep.h) */
};
const struct stage *layer_stages(const struct model_config *c, int layer);
/* Without rows there is nothing to do but exchanges. */
static inline bool layer_takes_part(const struct micro_batch *mb, const struct stage *s)
{
    return mb->n_tok > 0 || s->rowless;
}

/* residual += the sum of all ranks' deltas (if there are any), norm of it into y. Every half layer begins so.
 */
void layer_add_norm_start(struct micro_batch *mb, const float *weight, float *y);
void layer_add_norm_middle(struct micro_batch *mb); /* optional: comm_add_norm_middle */
void layer_add_norm_done(struct micro_batch *mb);

/* (n_tok, cols) floats that live as long as the layer. */
float *layer_rows(struct micro_batch *mb, int cols);

/* ---- mlp.c --------------------------------------------------------------------------------------- */

/* One MLP over some rows. */
struct mlp_call {
    const struct mlp *mlp;
    const int32_t *row; /* (m) rows of the group's input; NULL: 0..m-1 */
    int first, m;       /* its rows in the group                        */
    float *y;           /* (m, hidden)                                  */
};
/* Calls whose MLPs have one intermediate size. */
#define MLP_GROUPS_MAX 4
struct mlp_group {
    const struct operand *x;
    const struct mlp_call *call;
    int n_call, intermediate;
    int m; /* rows of all calls together */
};
/* All groups' gate and up products in one run, then all down products: no worker waits between experts.
 * Memory comes from mb->scratch, which the caller resets. */
void mlp_run(struct micro_batch *mb, const struct mlp_group *group, int n_group);

void mlp_dense(struct micro_batch *mb); /* stage */

/* ---- head.c -------------------------------------------------------------------------------------- */

/* logits (mb->n_tok, vocab) on rank 0 from the last norm's rows; the other ranks send their columns. */
void head_logits(struct micro_batch *mb, const float *norm, float *logits);

/* ---- moe.c --------------------------------------------------------------------------------------- */

/* (row, expert) pairs sorted by expert; those of one expert keep their order. */
struct moe_sorted {
    int32_t *first;  /* (n_expert + 1) prefix sums          */
    int32_t *token;  /* (n) row of the input                */
    int32_t *row_of; /* (n) place of the pair               */
};
struct moe_sorted moe_sort(struct arena *scratch, int n_expert, size_t n, const int32_t *expert,
                           const int32_t *token);
/* One call for each expert that somebody chose; its output goes to its rows of `part`. */
int moe_calls(const struct micro_batch *mb, const struct moe_sorted *s, float *part, struct mlp_call *call);

/* ---- moe.c: stages ------------------------------------------------------------------------------- */

void moe_route(struct micro_batch *mb);
void moe_experts(struct micro_batch *mb);

#endif
