/* The operator table: everything a layer does besides gemm.h, for one device. CPU now; CUDA fills the same.
 *
 * All operators run on the pool and obey the contract of gemm.h: a row's result depends on that row's inputs
 * alone, bit for bit, for any batch and thread count. All activations are fp32, row-major. */
#ifndef NYB_KERNELS_KERNELS_H
#define NYB_KERNELS_KERNELS_H

#include "base/arena.h"
#include "base/pool.h"
#include "kernels/gemm.h"

/* ---- paged KV cache ------------------------------------------------------------------------------ */

enum kv_type {
    KV_F32,
    KV_BF16,
    KV_FP8,
    KV_I16 /* what some levels make of KV_BF16, see kv_kept(): keys as integers, values as bf16 */
};
#define KV_BLOCK 16 /* tokens a block */

/* One layer's cache. Block b holds, for each KV head, KV_BLOCK keys and KV_BLOCK values; the layout inside
 * belongs to the kernels, which tell the size. */
struct kv_layer {
    enum kv_type type;
    uint8_t *k, *v; /* (n_block) blocks of kv_block_key_bytes(), of kv_block_value_bytes() */
    int n_block;
    int n_kv_head, head_dim;
    float k_scale, v_scale; /* FP8: stored = x / scale */
};
size_t kv_block_key_bytes(enum kv_type type, int n_kv_head, int head_dim);
size_t kv_block_value_bytes(enum kv_type type, int n_kv_head, int head_dim);

/* One step, as plain data so that it can be broadcast as bytes. Written by the scheduler, read-only after. */
struct batch {
    int n_seq;                  /* sequences taking part                                          */
    int n_tok;                  /* rows of the hidden state this step                             */
    int n_block_max;            /* columns of block_table                                         */
    int n_out;                  /* rows whose logits are wanted                                   */
    const int32_t *tok;         /* (n_tok) ids                                                    */
    const int32_t *pos;         /* (n_tok) position in its sequence                               */
    const int32_t *slot;        /* (n_tok) block * KV_BLOCK + offset where its K and V land       */
    const int32_t *seq_start;   /* (n_seq + 1) prefix sums over tok                               */
    const int32_t *block_table; /* (n_seq, n_block_max), -1 padded                                */
    const int32_t *out_row;     /* (n_out) rows of tok                                            */
    const int32_t *home;        /* (n_seq) rank that has its KV, where ranks share the sequences out;
                                 * NULL: its first block modulo the number of ranks */
};

/* How the token of a row of logits is drawn, where no logit is changed before: the sampler's temperature,
 * min_p, top_k, top_p and one uniform number (sampler_choose of engine/sampler.h is the truth). */
struct draw {
    double uniform;
    float scale; /* 1 / temperature; 0: the likeliest token */
    float top_p, min_p;
    int top_k;   /* 0: off */
    bool wanted; /* false: the row's logits are wanted instead */
};

/* ---- operators ----------------------------------------------------------------------------------- */

/* Rows of parts that are still on their way. Called by any worker, once for each row in any order: `come`
 * before the row is read (false: it never will; the row's outputs stay as they are), `used` when it has been
 * read. */
struct norm_arrival {
    bool (*come)(void *own, int row);
    void (*used)(void *own, int row);
    void *own;
};

/* Told of each row of y that is there, by the worker that has it in its cache. */
struct norm_use {
    void (*row)(void *own, int row, const float *y);
    void *own;
};

struct norm_args {
    const float *x;           /* (m, n)                                              */
    const float *const *part; /* NULL; or (n_part) arrays (m, n): x is their sum, in this order */
    int n_part;
    const struct norm_arrival *arrival; /* NULL: all rows of `part` are there       */
    const float *weight;                /* (n)                                                 */
    float *residual;                    /* NULL; or (m, n): residual += x first, norm of that  */
    float *y;                           /* (m, n)                                              */
    const struct norm_use *use;         /* NULL: nobody                                        */
    int m, n;
    float eps; /* y = r * rsqrt(mean(r^2) + eps) * weight             */
};

enum rope_style { ROPE_HALF, ROPE_INTERLEAVED }; /* pairs (i, i + d/2), or (2i, 2i + 1) */

/* In place on q and k rows: optional per-head RMSNorm, then rotary embedding of the first rotary_dim
 * elements of each head; then k and v go to the cache at batch.slot. */
struct qkv_args {
    float *q;                     /* (n_tok, n_head * head_dim)                                      */
    float *k, *v;                 /* (n_tok, n_kv_head * head_dim)                                   */
    const float *q_norm, *k_norm; /* (head_dim) or NULL                                      */
    float norm_eps;
    const float *cos, *sin; /* (max_pos, rotary_dim / 2)                                     */
    enum rope_style style;
    int rotary_dim, n_head, n_kv_head, head_dim, n_tok;
    const int32_t *pos, *slot;
    struct kv_layer *kv;
};

/* Causal attention over the paged cache, softmax in fp32. */
struct attention_args {
    const float *q; /* (n_tok, n_head * head_dim), rotated */
    float *y;       /* (n_tok, n_head * head_dim)          */
    const struct kv_layer *kv;
    const struct batch *batch;
    int n_head;
    float scale;  /* usually head_dim^-0.5               */
    bool round_q; /* q may be rounded to bf16, where keys are no wider and that is faster: half the work */
    /* NULL; or what is to be done with q, k and v before, where attention_may_rotate (attention.h), and how:
     * a kernel table's qkv_head. */
    const struct qkv_args *qkv;
    void (*rotate)(const struct qkv_args *, int tok, int kv_head);
};

enum router_score { ROUTER_SOFTMAX, ROUTER_SIGMOID };
struct router_args {
    const float *logits; /* (m, n_expert) fp32                                                        */
    const float *bias;   /* (n_expert) added for the choice only, or NULL                             */
    enum router_score score;
    int m, n_expert, top_k, n_group, top_group; /* n_group 1: no groups                               */
    bool normalize;    /* weights divided by their sum                                              */
    bool softmax_topk; /* softmax over the chosen logits only (Mixtral; equal to softmax + normalize) */
    float norm_min;    /* the sum is at least this (ERNIE moe_norm_min); added instead if norm_add  */
    bool norm_add;     /* GLM: sum + norm_min                                                        */
    float scaling;     /* routed_scaling_factor                                                     */
    int32_t *expert;   /* (m, top_k), best first, ties to the lowest index                          */
    float *weight;     /* (m, top_k)                                                                */
};

/* y[t] = (shared ? shared[t] : 0) + sum over s of weight[t, s] * part[slot_row[t, s]], slots in order. */
struct combine_args {
    const float *part;       /* (rows, n)      */
    const int32_t *slot_row; /* (m, top_k)     */
    const float *weight;     /* (m, top_k)     */
    const float *shared;     /* (m, n) or NULL */
    float *y;                /* (m, n)         */
    int m, n, top_k;
};

struct kernels {
    const char *name;
    bool integer_keys; /* KV_I16 is faster than KV_BF16 here, and no less exact */
    void (*rmsnorm)(struct pool *, const struct norm_args *);
    void (*qkv)(struct pool *, const struct qkv_args *);
    void (*qkv_head)(const struct qkv_args *, int tok,
                     int kv_head); /* a KV head of one token and its q heads */
    void (*attention)(struct pool *, struct arena *scratch, const struct attention_args *);
    void (*router)(struct pool *, const struct router_args *);
    void (*combine)(struct pool *, const struct combine_args *);
};

/* The table for the CPU level in force (base/cpu.h), filled from ref/ and overlaid upward. */
const struct kernels *kernels_cpu(void);

/* How these kernels keep a cache of which `type` is asked for. */
enum kv_type kv_kept(const struct kernels *kernels, enum kv_type type);

#endif
