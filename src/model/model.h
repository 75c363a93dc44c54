/* A model: the weights of one checkpoint in kernel layout, its KV cache, and the forward pass of one step.
 *
 * Knows nothing of requests: it receives a struct batch. Not thread-safe: one thread (the engine's, or the
 * command's own) calls it. */
#ifndef NYB_MODEL_MODEL_H
#define NYB_MODEL_MODEL_H

#include "kernels/kernels.h"
#include "model/config.h"

struct comm;
struct model;

enum load_format { LOAD_AUTO, LOAD_DUMMY };

/* Values of model_options.kv_type besides those of enum kv_type. */
#define MODEL_KV_AUTO (-1) /* fp32 when strict or w4a4, else bf16                               */
#define MODEL_KV_DECLARED                                                       \
    (-2) /* FP8 where the checkpoint declares an FP8 cache, else MODEL_KV_AUTO; \
          * strict stays fp32, the truth */

/* Two-batch overlap (overlap.h). */
enum overlap_mode {
    OVERLAP_OFF,
    OVERLAP_AUTO,   /* where it has been measured to be faster             */
    OVERLAP_ALWAYS, /* wherever there are two rows to cut apart: for tests */
};

struct overlap_options {
    enum overlap_mode mode;
    int prefill_min; /* rows of a step with prompts below which it is not cut; <= 0: the default   */
    int decode_min;  /* sequences of a step with one row each; <= 0: the default                   */
};

/* How rows travel to the experts of other ranks. All but the first round, and so change numbers. */
enum dispatch_type { DISPATCH_F32, DISPATCH_BF16, DISPATCH_FP8, DISPATCH_NVFP4 };

bool model_parse_dispatch(const char *text, enum dispatch_type *out); /* "f32", "bf16", "fp8", "nvfp4" */

/* What computes. */
enum device_choice {
    DEVICE_CPU,
    DEVICE_CUDA, /* the first GPU, or of several ranks rank r's is GPU r; an error where that cannot be */
    DEVICE_AUTO, /* the same where they can take the whole model, else the CPU, and says why */
};

/* Kernels for quantized products on a GPU (docs/BACKENDS.md). */
enum device_backend {
    DEVICE_BACKEND_AUTO,
    DEVICE_BACKEND_SM90_W4A16,
    DEVICE_BACKEND_CUBLASLT_NVFP4,
    DEVICE_BACKEND_REFERENCE,
};

bool model_parse_device(const char *text, enum device_choice *out);   /* "cpu", "cuda", "auto" */
bool model_parse_backend(const char *text, enum device_backend *out); /* "auto", "sm90-w4a16", ... */

struct model_options {
    const char *folder;           /* already resolved (ckpt_resolve)                             */
    enum load_format load_format; /* LOAD_DUMMY: random weights from config.json alone           */
    uint64_t dummy_seed;
    enum compute compute;
    int n_thread;             /* <= 0: as many as are worth it (threads.h)                      */
    int kv_type;              /* enum kv_type, or one of the two above                       */
    int64_t max_model_len;    /* <= 0: the config's                                          */
    const char *hf_overrides; /* what replaces members of config.json (hfconfig.h); NULL: nothing */
    enum device_choice device;
    enum device_backend moe_backend, gemm_backend; /* of a GPU: experts, and all other products */
    int max_batched_tokens; /* GPU: rows of the longest step to make room for; <= 0: a default */
    bool no_graphs;         /* GPU: launch every operator of every step */
    /* The ranks that compute this model together: all open it at once, and each keeps its part (shard.h).
     * Rank 0 goes on to use it; the others call model_follow. NULL: one rank. The model's after success:
     * model_close closes it. */
    struct comm *comm;
    bool expert_parallel;  /* experts and sequences are shared out over the ranks, not features (ep.h) */
    int redundant_experts; /* slots of each layer for second copies of experts (placement.h) */
    enum dispatch_type dispatch;
    int dispatch_rows; /* of one rank that go through a layer's experts at once; <= 0: 64 MB of products */
    struct overlap_options overlap; /* all zero: off */
    bool no_fusion;                 /* comm_calibrate's: all-reduce, residual and norm stay apart          */
    int fusion_max_tokens;          /* rows of the longest step that is fused; <= 0: as long as it pays    */
    /* Called from the loading thread, at most every 50 ms and once at the end. May be NULL. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
};

/* Open, check everything, allocate, read. Refuses before reading when memory would not do. */
enum nyb_code model_open(struct model **out, const struct model_options *o,
                         struct nyb_err *err) NYB_MUST_CHECK;
void model_close(struct model *m);
/* The options' comm is the caller's again, who closes it after the model. */
void model_give_comm_back(struct model *m);
int model_ranks(const struct model *m);
/* NYB_E_RANK when one of them is lost. */
enum nyb_code model_status(struct model *m, struct nyb_err *err) NYB_MUST_CHECK;
/* Ranks above 0: take part in whatever rank 0 does with its model, until it closes that (NYB_OK) or a rank is
 * lost. */
enum nyb_code model_follow(struct model *m, struct nyb_err *err) NYB_MUST_CHECK;

const struct model_config *model_config(const struct model *m);
const struct hfconfig_generation *model_generation(const struct model *m);
struct pool *model_pool(struct model *m);
/* Another number of threads, <= 0: all. The old pool, which model_pool named, is gone after success. */
enum nyb_code model_set_threads(struct model *m, int n_thread, struct nyb_err *err) NYB_MUST_CHECK;
/* From the next step on; rank 0 decides for all. */
void model_set_overlap(struct model *m, enum overlap_mode mode);
struct weights;
const struct weights *model_weights(const struct model *m); /* model/weights.h: for inspect and bench */
enum kv_type model_kv_type(const struct model *m);
const char *model_quant_text(const struct model *m); /* "NVFP4 (modelopt), group 16"        */
uint64_t model_weight_bytes(const struct model *m);  /* resident                            */

/* The GPU's name, or NULL: the CPU computes. */
const char *model_device_name(const struct model *m);
/* Bytes a second of reading its memory, measured now. NYB_E_ARG without a GPU. */
enum nyb_code model_device_read_rate(struct model *m, double *rate, struct nyb_err *err) NYB_MUST_CHECK;

/* Each kind of kernel in a step of this batch on the GPU: how many there are in it and the seconds of one.
 * The batch's keys and values are computed. NYB_E_ARG without a GPU. */
enum nyb_code model_device_profile(struct model *m, const struct batch *b,
                                   void (*fn)(void *arg, const char *name, int n, double seconds), void *arg,
                                   struct nyb_err *err) NYB_MUST_CHECK;

/* Bytes that a KV cache may take where nobody has said how many. */
uint64_t model_kv_room(const struct model *m);
/* The KV cache: n_block blocks of KV_BLOCK tokens in every layer. Replaces an earlier one. */
enum nyb_code model_kv_reserve(struct model *m, int n_block, struct nyb_err *err) NYB_MUST_CHECK;
int model_kv_blocks(const struct model *m);
size_t model_kv_block_bytes(const struct model *m); /* all layers, k and v; all ranks of this machine */

/* Watches a forward pass, for verify, inspect and bench. Any member may be NULL. */
struct model_probe {
    void *arg;
    /* layer -1: the embedding; 0..L-1: the residual stream after that layer; L: after the final norm. */
    void (*hidden)(void *arg, int layer, const float *h, int n_tok, int hidden_size);
    void (*routing)(void *arg, int layer, const int32_t *expert, const float *weight, int n_tok, int top_k);
    /* A stage has just ended after ns nanoseconds. layer -1: embedding; L: last norm and head. */
    void (*stage)(void *arg, int layer, const char *name, uint64_t ns);
    /* The same with two-batch overlap, when micro_batch (0 or 1) is done with a stage: communication lasts
     * from its start until what came has been taken. Of a GPU by its own clock, once the step is over, and
     * also of kernels that all rows go through together (-1), with overlap or without. */
    void (*span)(void *arg, int micro_batch, int layer, const char *name, bool communication,
                 uint64_t begin_ns, uint64_t end_ns);
};

/* What the routers have chosen since model_open: (token, choice) pairs of each expert of a layer, into count
 * (n_expert). False where the layer has no experts. Any thread, also beside model_forward. */
bool model_expert_load(const struct model *m, int layer, uint64_t *count);

/* ---- experts that change ranks: rebalance.h ------------------------------------------------------- */

struct model_experts {
    int n_rank, n_slot; /* of each layer; n_slot: its experts and their copies */
    uint64_t rebalances, moves, moved_bytes, stall_ns; /* since model_open; bytes: between ranks */
};
/* Any thread. Without expert parallelism: one rank, a slot for each expert. */
void model_experts(const struct model *m, struct model_experts *out);
/* What each slot of a layer holds, into expert (n_slot); ranks have neighbouring slots, n_slot * r / n_rank
 * and on. False where the layer has no experts. Any thread. */
bool model_expert_slots(const struct model *m, int layer, int *expert);
/* (token, choice) pairs that each rank has computed, since model_open and since experts moved last, into all
 * and recent (n_rank). False where the layer has no experts, or without expert parallelism. Any thread. */
bool model_rank_load(const struct model *m, int layer, uint64_t *all, uint64_t *recent);

/* What a rebalancing plans and has done. */
struct model_rebalance {
    int n_layer; /* whose experts move */
    uint64_t n_move, bytes, ns;
    double before, after; /* busiest rank's load over the mean, of the average layer: as it was, as planned */
};
/* Rank 0, the thread that steps: plan where experts should be from what the routers have chosen. False: there
 * is nothing to plan, for want of expert parallelism. */
bool model_rebalance_begin(struct model *m);
/* Move experts for so long, one at least; *more: some are left, or an update has the weights. Between two
 * steps; tokens do not change. out may be NULL. NYB_E_RANK: a rank is lost. */
enum nyb_code model_rebalance_step(struct model *m, uint64_t budget_ns, bool *more,
                                   struct model_rebalance *out, struct nyb_err *err) NYB_MUST_CHECK;

/* One step: writes K and V of every token into the cache, and logits (batch->n_out, vocab_size) fp32.
 * logits is NULL when n_out is 0. probe may be NULL. */
enum nyb_code model_forward(struct model *m, const struct batch *b, float *logits,
                            const struct model_probe *probe, struct nyb_err *err) NYB_MUST_CHECK;
/* Memory for the logits of steps, 64-byte aligned: on a GPU such that they are copied at full speed. NULL:
 * there is none. Freed before the model is closed. */
float *model_logits_alloc(struct model *m, size_t bytes);
void model_logits_free(struct model *m, float *logits);
/* The same step, of which only the likeliest token of each row of logits is wanted: best (batch->n_out), the
 * lowest id among equals. On a GPU the logits stay there. */
enum nyb_code model_forward_best(struct model *m, const struct batch *b, int32_t *best,
                                 struct nyb_err *err) NYB_MUST_CHECK;
/* The same step on a GPU (model_can_draw), which draws there: token (batch->n_out), -1 where no logit is
 * finite. Of rows whose draw (batch->n_out) is not wanted the logits are copied instead, to their place in
 * logits (batch->n_out, vocab_size); all else there stays as it is. */
enum nyb_code model_forward_draw(struct model *m, const struct batch *b, const struct draw *draw,
                                 int32_t *token, float *logits, struct nyb_err *err) NYB_MUST_CHECK;
/* The largest top_k of model_forward_draw; 0: this model's steps do not draw. */
int model_can_draw(const struct model *m);

#endif
