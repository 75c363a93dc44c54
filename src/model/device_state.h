/* What a struct device holds. For the device_*.c files. */
#ifndef NYB_MODEL_DEVICE_STATE_H
#define NYB_MODEL_DEVICE_STATE_H

#include <pthread.h>

#include "kernels/cuda/cuda_plugin.h"
#include "model/device.h"

#define DEVICE_ROWS_DEFAULT 2048
#define DEVICE_IMAGE_BYTES  ((size_t)128 << 20) /* of scratch for attention's images */
#define DEVICE_ROWS_MAX     65535 /* a row, or a tile of rows, is a place in a grid's second dimension */
#define DEVICE_HEAD_ROWS    256   /* rows whose logits are made at once */
#define DEVICE_GRAPH_ROWS   256   /* of the largest step that is recorded as a graph */
#define DEVICE_GRAPHS_MAX   48

enum place_layout { PLACE_VECTOR, PLACE_PLAIN, PLACE_PACKED, PLACE_GATE, PLACE_UP, PLACE_TILED };

/* Where a slot lies. */
struct device_place {
    struct device *device;
    const void *of; /* the struct weight, or the float *, of the slot */
    enum place_layout layout;
    uint8_t *data, *block;
    int n_part; /* PLACE_PACKED: matrices that its columns are cut into, one after the other */
};

/* An MLP, or the experts of a layer. */
enum mlp_way {
    MLP_PACKED, /* CUDA_OP_MOE */
    MLP_LINEAR, /* three products and swiglu */
    MLP_PLAIN,  /* CUDA_OP_MOE_PLAIN */
    MLP_W4A4,   /* CUDA_OP_MOE_W4A4 */
};
struct device_mlp {
    enum mlp_way way;
    int n_expert, inner;                    /* n_expert 1: dense; inner 0: absent */
    int n_shared;                           /* MLP_PACKED: of them, the last, that every row takes: parts of
                                               the shared experts' MLP */
    uint8_t *gate_up, *packed_down;         /* MLP_PACKED */
    struct cuda_weight gate, up, down;      /* else; scales in any case */
    float *gate_bias, *up_bias, *down_bias; /* or NULL */
    bool adds_bias;                         /* that of down */
};

/* A number of a weight on the GPU: where this process has it, and what it is multiplied with, or NULL. */
struct device_scale {
    const float *of, *times;
};

struct device_layer {
    float *attention_norm, *mlp_norm, *q_norm, *k_norm;
    struct cuda_weight q, k, v, o;
    float *q_bias, *k_bias, *v_bias, *o_bias;
    bool adds_o_bias, is_moe;
    struct cuda_weight router;
    float *correction_bias;
    struct device_mlp experts, mlp; /* mlp: of a dense layer, or the shared experts where they are or may be
                                       apart (device_joins_shared) */
};

/* Memory of a step's rows, the GPU's. */
struct device_room {
    int n_row; /* that there is room for */
    uint8_t *slab;
    size_t bytes;
    float *residual, *delta, *shared;    /* (n_row, hidden)         */
    uint16_t *x;                         /* (n_row, hidden) bf16    */
    float *x_float;                      /* (n_row, hidden)         */
    float *q, *k, *v;                    /* (n_row, heads * dim)    */
    uint16_t *q_out, *attended;          /* (n_row, heads * dim)    */
    float *router_logits;                /* (n_row, n_expert)       */
    int32_t *expert;                     /* (n_row, device_used) at most: a layer's rows have no gaps */
    float *expert_weight;                /* the same                */
    float *gate, *up;                    /* (n_row, inner) of MLP_LINEAR */
    uint16_t *h;                         /* (n_row, inner)          */
    int32_t *only;                       /* (n_row) zeros: the one expert of a dense MLP */
    float *ones;                         /* (n_row)                 */
    uint16_t *x_out;                     /* (DEVICE_HEAD_ROWS, hidden) */
    float *attended_float, *x_out_float; /* the same unrounded, where device_quantizes() */
    /* ---- of all ranks' rows, where experts are shared out (device_ep.h) ---- */
    uint16_t *x_all, *x_out_all; /* (n_row, hidden), (DEVICE_HEAD_ROWS, hidden) bf16 */
    int32_t *local;              /* (n_row, top_k) this rank's experts */
    void *each;                  /* (n_row, top_k, hidden) products, of the type that their kernel leaves */
    /* ---- the head ---- */
    float *columns; /* (DEVICE_HEAD_ROWS, this rank's) of several: its logits */
    float *logits;  /* (DEVICE_HEAD_ROWS, vocab) of rank 0 */
};

/* What a step is made for: rows that its launches cover, not those of one batch. */
struct device_shape {
    int n_row, n_out, n_single, n_tile, n_image, n_split;
    bool best;  /* the likeliest tokens are found, too */
    bool draws; /* tokens are drawn                    */
    int cut;    /* two-batch overlap: rows of the first half; 0: all rows go together */
    bool sends; /* of such a step: copy engines carry the parts of its sums           */
    int single_cut, tile_cut, image_cut; /* of `single`, `tile` and images, those of the first half */
    /* Where sequences are on one rank each (device_ep.h; n_rank 0: not): all above but n_out are this rank's,
     * and these are the same on all: rows of all ranks together, and the most rows, and rows of logits, of
     * any. */
    int n_rank, n_all, most_rows, most_out;
};

/* A step's batch as it is uploaded: counts, then arrays whose places depend on the shape alone. */
enum device_count {
    COUNT_OUT,
    COUNT_STRIDE,
    COUNT_TOK,
    COUNT_SINGLE,
    COUNT_TILE,
    COUNT_HALF,                 /* the last three of the first half, then of the second   */
    COUNT_ALL = COUNT_HALF + 6, /* rows of all ranks together, where they differ          */
    COUNT_OWN_OUT,              /* this rank's of COUNT_OUT, there                        */
    COUNT_N = 16
};
struct device_input {
    int32_t *count; /* (COUNT_N) */
    int32_t *tok, *pos, *slot, *out_row;
    struct cuda_tile *single, *tile;
    int32_t *rank_rows, *place;    /* (n_rank), (n_rank, most_rows): cuda_spread's        */
    int32_t *rank_out, *out_place; /* (n_rank), (n_rank, most_out): of the rows of logits */
    struct cuda_draw *draw;        /* (n_out) of a shape that draws                       */
    int32_t *table;
};

/* Rows of a step that go through the layers together: all, or a half. */
struct device_part {
    int first; /* its rows in the room */
    int n_row, n_single, n_tile, n_image, n_split;
    const int32_t *count, *single_count, *tile_count, *stride;
    const int32_t *tok, *pos, *slot, *table;
    const struct cuda_tile *single, *tile; /* rows in them count from `first` */
    struct cuda_spread rows;               /* of all ranks, where they differ */
    const int32_t *all_count;
};

/* Operators of a step, in order. */
struct device_plan {
    struct cuda_op *op;
    int16_t *layer; /* (n) -1: embedding, n_layer: what follows the layers */
    int8_t *half;   /* (n) 0 or 1 of a step that is cut, -1: all rows      */
    int n, cap;
    int joins; /* 1 + the operator on the side that the next one waits for; 0: none */
};

struct device_graph {
    struct device_shape shape;
    struct cuda_graph *graph;
    uint64_t used; /* step of the last use */
};

/* What a large sum takes alone, on all SMs and on a few: measured when ranks join (device_peers.c). */
#define DEVICE_SIDES 5
struct device_side {
    int n;   /* 0: not measured */
    int now; /* SMs that are kept */
    int32_t n_sm[DEVICE_SIDES];
    double bytes, on_all, on[DEVICE_SIDES]; /* seconds, of so many bytes of one rank */
};

/* Parts of sums that copy engines carry (cuda_send), of steps that are cut. */
struct device_sent {
    size_t bytes; /* that a slot has for one rank's part; 0: nothing is sent so */
    size_t from;  /* bytes of a part from which on that is faster               */
    int turn[2];  /* of a half: which of its two slots is next                  */
};

struct device_peers;

struct device {
    const struct cuda_plugin *plugin;
    struct cuda_gpu *gpu;
    struct cuda_gpu_info info;
    struct device_options option;
    const struct model_config *config;
    struct weights *weights;
    /* ---- weights ---- */
    uint8_t *slab; /* all of them */
    size_t slab_bytes;
    struct device_place *place; /* (n_place), by `of` */
    int n_place, cap_place;
    struct device_scale *scale_of; /* (n_scale) */
    float *scales;                 /* (n_scale) the GPU's */
    int n_scale, cap_scale;
    struct cuda_weight embed, head;
    float *final_norm;
    struct device_layer *layer; /* (n_layer) */
    /* ---- cache ---- */
    struct cuda_kv *kv; /* (n_layer) */
    uint8_t *kv_slab;
    float *kv_scales; /* (n_layer, 2) in scales */
    /* ---- steps ---- */
    struct rope *rope;
    float *cos, *sin; /* (max_pos, half) */
    int64_t rope_filled;
    struct device_room room;
    uint8_t *input, *staging; /* a batch: the GPU's, and what it is uploaded from */
    int32_t *best;            /* (DEVICE_HEAD_ROWS) tokens, the host's: the GPU writes them there itself */
    size_t input_bytes;
    size_t scratch_bytes;
    struct device_plan plan; /* of the step in progress */
    struct device_graph graph[DEVICE_GRAPHS_MAX];
    int n_graph;
    uint64_t n_step, n_replayed;
    uint64_t *load;            /* (n_layer, n_expert) the GPU's, or NULL */
    pthread_mutex_t load_lock; /* of who reads it: no older count is told after a newer one */
    /* ---- ranks ---- */
    struct device_peers *peers; /* device_peers.c; NULL: this is the only one */
    int sum_way;                /* enum cuda_reduce_way */
    bool no_fusion;
    bool library;    /* NCCL adds up     */
    bool no_overlap; /* some rank cannot */
    struct device_side side;
    struct device_sent sent;
    struct device_ep *ep; /* device_ep.h; NULL: all ranks have all rows */
};

/* Leaves the others. Before the GPU is closed; NULL peers are fine. */
void device_leave(struct device *d);
/* Whether steps are run by several GPUs together. */
static inline bool device_has_peers(const struct device *d)
{
    return d->peers;
}

/* Whether what they have of a row are parts of a sum, and not rows of their own. */
static inline bool device_has_parts(const struct device *d)
{
    return d->peers && !d->ep;
}

/* The plug-in's last error as ours. */
enum nyb_code device_failed(const struct device *d, const char *doing, struct nyb_err *err);
/* NYB_E_MEMORY: `what` needs so much. */
enum nyb_code device_alloc(struct device *d, void **out, size_t bytes, const char *what,
                           struct nyb_err *err) NYB_MUST_CHECK;

/* ---- device_room.c ------------------------------------------------------------------------------- */

/* Experts of a row in any layer: those that it chooses, and those that every row takes. */
int device_used(const struct device *d);

/* The same memory from a row on, but for what the head has. */
struct device_room device_room_from(const struct device *d, int row);
enum nyb_code device_room_reserve(struct device *d, int n_row, struct nyb_err *err) NYB_MUST_CHECK;
/* A batch of so many bytes. */
enum nyb_code device_input_reserve(struct device *d, size_t bytes, struct nyb_err *err) NYB_MUST_CHECK;
/* All recorded steps: addresses in them are about to change. */
void device_forget_graphs(struct device *d);

/* ---- device_input.c ------------------------------------------------------------------------------ */

/* The shape that fits the batch exactly; cut: after so many rows, 0: not. */
struct device_shape device_shape_of(const struct batch *b, int cut);
/* Of a batch of this shape at `base`: half 0 or 1 of one that is cut, else -1. */
struct device_part device_part_of(const struct device_shape *s, uint8_t *base, int half);
/* Where a batch of this shape lies from `base` on (NULL: only how long it is); returns its bytes, but for the
 * block table at the end. */
size_t device_input_layout(const struct device_shape *s, uint8_t *base, struct device_input *in);
/* All its bytes; and written to memory of that layout, padded rows included. */
size_t device_input_bytes(const struct device_shape *s, const struct batch *b);
void device_input_write(const struct device_shape *s, const struct batch *b, uint8_t *base);
/* And n draws, of a shape that has them. */
void device_input_write_draws(const struct device_shape *s, const struct draw *draw, int n, uint8_t *base);

/* Rows of logits that are made at once. */
static inline int device_head_rows(const struct device *d)
{
    return d->room.n_row < DEVICE_HEAD_ROWS ? d->room.n_row : DEVICE_HEAD_ROWS;
}

/* Products round what goes into them to NVFP4, from numbers that are not rounded yet. Where the cache is fp32
 * too, nothing else is rounded: device_is_exact(). Only once there is a cache. */
static inline bool device_quantizes(const struct device *d)
{
    return d->option.gemm_backend == DEVICE_BACKEND_CUBLASLT_NVFP4;
}
static inline bool device_is_exact(const struct device *d)
{
    return device_quantizes(d) && d->kv[0].type == CUDA_KV_F32;
}

/* ---- device_step.c ------------------------------------------------------------------------------- */

/* Rows of the graph that n sequences are replayed with. */
int device_graph_rows(int n);
/* The shape that a batch is run with when nobody watches. */
struct device_shape device_step_shape(const struct device *d, const struct batch *b, int cut);

/* ---- device_plan.c ------------------------------------------------------------------------------- */

/* Embedding to the last layer, and the head for the first rows of out_row. Of several ranks all plan the same
 * sums, and the head brings its columns to rank 0. */
void device_plan_layers(struct device *d, const struct device_shape *s);
/* The layers of one half, or of all rows (-1). */
void device_plan_part(struct device *d, const struct device_shape *s, int half);
struct cuda_op *device_plan_add(struct device *d, int layer, enum cuda_op_kind kind, int n_row,
                                const int32_t *count);
/* Whether a layer's shared experts are in the launch of the others in a step of so many rows, of both halves
 * together if it is cut. */
bool device_joins_shared(const struct device_layer *l, int n_row);
/* A norm: of what several ranks have together, unless that is `summed` up already (or there is nothing). */
void device_plan_norm(struct device *d, int layer, int n_row, const int32_t *count,
                      const struct cuda_add_norm *n, bool summed);
/* ---- device_overlap.c ---------------------------------------------------------------------------- */

/* Rows of the first half of a step of n rows that overlap.h would cut at `cut`; 0: it is not cut. */
int device_cut(int n_row, int cut);
/* How many SMs are best kept for the sums of a step, which takes so long without overlap; 0: nothing is
 * known. */
int device_side_sm(const struct device_side *side, int n_sm, double sum_bytes, double whole_seconds);
/* Whether copy engines carry the sums of a step that is cut into halves of so many rows. */
bool device_sends(const struct device *d, int first, int second);
/* Both halves' layers in turns, sums on the side. */
void device_plan_halves(struct device *d, const struct device_shape *s);

/* ---- device_side.c ------------------------------------------------------------------------------- */

/* Sums that are measured: of so many bytes of all ranks together at most, rows of so many floats. */
#define DEVICE_SUM_BYTES  ((size_t)16 << 20)
#define DEVICE_SUM_WIDTH  4096
#define DEVICE_SUM_ROUNDS 15

/* What a slot needs for a half of the longest step, or as much of it as may be taken. */
size_t device_sent_bytes(const struct device *d, int hidden, int n_rank);
/* Whether steps can be cut, and what sums take beside other work: the same on all ranks, which all call it.
 */
enum nyb_code device_join_overlap(struct device *d, struct comm *comm, struct nyb_err *err) NYB_MUST_CHECK;

/* ---- device_plan_head.c -------------------------------------------------------------------------- */

/* This rank's part of the vocabulary. */
struct shard_range device_columns(const struct device *d);
void device_plan_head(struct device *d, const struct device_shape *s, int first, int n_out, bool exact);
void device_plan_best(struct device *d, int n_out); /* of the logits that are there */
/* The same for rows of out_row from `first` on: drawn. */
void device_plan_draw(struct device *d, const struct device_shape *s, int first, int n_out, bool exact);
void device_plan_clear(struct device *d);
const char *device_op_name(const struct cuda_op *op);

#endif
