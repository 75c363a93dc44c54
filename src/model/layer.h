/* A layer as a list of stages over a micro-batch.
 *
 * Each layer kind is a static array of stages. A stage belongs to a lane: arithmetic, or communication
 * between ranks; whoever runs the array may start another micro-batch's stage between a start and its done.
 * One rank communicates with nobody, so here every stage computes and is done when start returns. No model
 * family is known in these files. */
#ifndef NYB_MODEL_LAYER_H
#define NYB_MODEL_LAYER_H

#include "model/model.h"
#include "model/rope.h"
#include "model/weights.h"

/* What a forward pass needs of its model, fixed for the pass. */
struct pass {
    const struct model_config *config;
    const struct weights *weights;
    const struct kernels *kernels;
    struct pool *pool;
    enum compute compute;
    const struct rope *rope;
    struct kv_layer *kv; /* (n_layer)   */
    const struct batch *batch;
    const struct model_probe *probe; /* may be NULL */
};

struct micro_batch {
    const struct pass *pass;
    int layer, stage; /* program counter                                             */
    int n_tok;
    float *residual; /* (n_tok, hidden) fp32 stream                                  */
    float *delta;    /* (n_tok, hidden) what the last half layer adds, not yet added */
    bool has_delta;
    struct arena room;    /* of one layer: everything below                 */
    struct arena scratch; /* of one stage                                   */
    float *norm;          /* (n_tok, hidden)                                */
    struct operand input; /* norm, as the matrices of this half layer take it */
    float *q, *k, *v;     /* (n_tok, heads * head_dim)                      */
    float *attended;      /* (n_tok, n_head * head_dim)                     */
    int32_t *expert;      /* (n_tok, top_k) best first                      */
    float *weight;        /* (n_tok, top_k)                                 */
};

enum stage_lane { LANE_COMPUTE, LANE_COMM };
struct stage {
    const char *name;
    enum stage_lane lane;
    void (*start)(struct micro_batch *); /* NULL ends an array                     */
    void (*done)(struct micro_batch *);  /* waits for what start began; NULL: nothing to wait for */
};
const struct stage *layer_stages(const struct model_config *c, int layer);

/* residual += delta (if any), norm of it into y. Every half layer begins so; with ranks this is where the
 * all-reduce goes. */
void layer_add_norm(struct micro_batch *mb, const float *weight, float *y);

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

/* ---- moe.c: stages ------------------------------------------------------------------------------- */

void moe_route(struct micro_batch *mb);
void moe_experts(struct micro_batch *mb);

#endif
