/* A model: the weights of one checkpoint in kernel layout, its KV cache, and the forward pass of one step.
 *
 * Knows nothing of requests: it receives a struct batch. Not thread-safe: one thread (the engine's, or the
 * command's own) calls it. */
#ifndef NYB_MODEL_MODEL_H
#define NYB_MODEL_MODEL_H

#include "kernels/kernels.h"
#include "model/config.h"

struct model;

enum load_format { LOAD_AUTO, LOAD_DUMMY };

struct model_options {
    const char *folder;           /* already resolved (ckpt_resolve)                             */
    enum load_format load_format; /* LOAD_DUMMY: random weights from config.json alone           */
    uint64_t dummy_seed;
    enum compute compute;
    int n_thread;          /* <= 0: all                                                   */
    int kv_type;           /* enum kv_type, or -1: fp32 when strict or w4a4, else bf16     */
    int64_t max_model_len; /* <= 0: the config's                                          */
    /* Called from the loading thread, at most every 50 ms and once at the end. May be NULL. */
    void (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_arg;
};

/* Open, check everything, allocate, read. Refuses before reading when memory would not do. */
enum nyb_code model_open(struct model **out, const struct model_options *o,
                         struct nyb_err *err) NYB_MUST_CHECK;
void model_close(struct model *m);

const struct model_config *model_config(const struct model *m);
const struct hfconfig_generation *model_generation(const struct model *m);
struct pool *model_pool(struct model *m);
/* Another number of threads, <= 0: all. The old pool, which model_pool named, is gone after success. */
enum nyb_code model_set_threads(struct model *m, int n_thread, struct nyb_err *err) NYB_MUST_CHECK;
struct weights;
const struct weights *model_weights(const struct model *m); /* model/weights.h: for inspect and bench */
enum kv_type model_kv_type(const struct model *m);
const char *model_quant_text(const struct model *m); /* "NVFP4 (modelopt), group 16"        */
uint64_t model_weight_bytes(const struct model *m);  /* resident                            */

/* The KV cache: n_block blocks of KV_BLOCK tokens in every layer. Replaces an earlier one. */
enum nyb_code model_kv_reserve(struct model *m, int n_block, struct nyb_err *err) NYB_MUST_CHECK;
int model_kv_blocks(const struct model *m);
size_t model_kv_block_bytes(const struct model *m); /* all layers, k and v                 */

/* Watches a forward pass, for verify, inspect and bench. Any member may be NULL. */
struct model_probe {
    void *arg;
    /* layer -1: the embedding; 0..L-1: the residual stream after that layer; L: after the final norm. */
    void (*hidden)(void *arg, int layer, const float *h, int n_tok, int hidden_size);
    void (*routing)(void *arg, int layer, const int32_t *expert, const float *weight, int n_tok, int top_k);
    /* A stage has just ended after ns nanoseconds. layer -1: embedding; L: last norm and head. */
    void (*stage)(void *arg, int layer, const char *name, uint64_t ns);
};

/* One step: writes K and V of every token into the cache, and logits (batch->n_out, vocab_size) fp32.
 * logits is NULL when n_out is 0. probe may be NULL. */
enum nyb_code model_forward(struct model *m, const struct batch *b, float *logits,
                            const struct model_probe *probe, struct nyb_err *err) NYB_MUST_CHECK;

#endif
