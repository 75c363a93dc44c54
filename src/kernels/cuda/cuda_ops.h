/* The operators of a transformer step on a GPU, as plain data: what the program hands to the plug-in.
 *
 * A step is an array of struct cuda_op, run in order on one stream. All pointers in it are the device's, all
 * arrays are row-major without gaps. What changes from step to step (tokens, positions, counts) lies in
 * device memory at addresses that do not change, so that an array of operators can be recorded once as a
 * graph and replayed: an operator's `n_row` is what its grid covers, `*count` how many rows there really are.
 * Rows from *count on may be computed from whatever is in memory, finite or not, and written to their own
 * place; they read and write nothing else: no cache slot, no other row, no counter.
 *
 * Every operator gives the same bits on every run, and a row's result does not depend on other rows, except
 * that it may depend on which kernel its number of rows selects.
 *
 * bf16 is uint16_t, rounded to nearest even. Sums are fp32. Numbers in [brackets] are shapes. */
#ifndef NYB_KERNELS_CUDA_OPS_H
#define NYB_KERNELS_CUDA_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_ROWS_MAX    32  /* rows in a call of the products' kernels for few */
#define CUDA_SLOTS_MAX   256 /* with as many tokens: tokens x experts a token up to which each is floats */
#define CUDA_EXPERTS_MAX 512
#define CUDA_PARTS_MAX   3 /* matrices that one linear operator multiplies the same rows with */
#define CUDA_DELTAS_MAX  2

#define CUDA_KV_BLOCK 16 /* tokens a block of the cache */
#define CUDA_SPLIT_KEYS \
    128 /* keys of a sequence that one part of split attention walks, cut at absolute positions */
#define CUDA_TILE_TOKENS 64 /* tokens of one sequence in a tile of attention over several rows */

/* ---- weights ------------------------------------------------------------------------------------- */

enum cuda_weight_type {
    CUDA_NVFP4_PACKED, /* cuda_layout.h; K a multiple of 64                                                */
    CUDA_NVFP4,        /* data [n][K/2], low nibble first; block [n][K/16] e4m3, positive, 0x7f is 480     */
    CUDA_FP8,          /* data [n][K] e4m3 */
    CUDA_BF16,
    CUDA_F16,
    CUDA_F32,
    CUDA_NVFP4_TILED, /* cuda_tiled.h: products through cuBLASLt, whose other factor is NVFP4 too           */
};

/* A matrix of n rows (outputs) of K, row-major but for the packed one; 256-byte aligned. Several of one shape
 * (experts) follow each other without a gap in each array: data, block, scale. */
struct cuda_weight {
    int32_t type;
    const uint8_t *data;
    const uint8_t *block; /* CUDA_NVFP4 and CUDA_NVFP4_TILED, else NULL */
    const float *scale;   /* [1]: multiplies the products. Never NULL. Of CUDA_NVFP4_TILED [2]: the second is
                             the scale of the inputs, and is in the first already */
};

/* ---- operators ----------------------------------------------------------------------------------- */

/* residual[t] = table[tok[t]] * scale. A token outside of the table counts as 0. */
struct cuda_embed {
    struct cuda_weight table; /* not packed */
    const int32_t *tok;       /* [n_row] */
    float *residual;          /* [n_row][hidden] */
    int32_t vocab, hidden;
};

/* r = residual[row ? row[t] : t] + (delta[1] + delta[0], or delta[0], or nothing), the deltas of that row
 * too; y[t] = r * rsqrt(mean(r^2) + eps) * weight. Where `row` is NULL, r replaces residual[t]. The sum of
 * squares is of fixed order. */
struct cuda_add_norm {
    float *residual;                     /* [][n] */
    const float *delta[CUDA_DELTAS_MAX]; /* [][n]; NULL: absent, the second only after the first */
    const int32_t *row;                  /* [n_row] or NULL */
    const float *weight;                 /* [n] */
    uint16_t *y;                         /* bf16 [n_row][n], 16-byte aligned */
    float *y_float;                      /* [n_row][n] unrounded, or NULL */
    int32_t n;
    float eps;
};

/* out = x * w^T * scale + bias for each part. All parts have the same type; those of the packed type may lie
 * one after the other in memory (as q, k and v do), which a kernel may look for. */
struct cuda_linear_part {
    struct cuda_weight w;
    const float *bias; /* [n_out] or NULL */
    float *out;        /* [n_row][n_out] */
    int32_t n_out;
};
struct cuda_linear {
    struct cuda_linear_part part[CUDA_PARTS_MAX];
    int32_t n_part, K;
    const uint16_t *x;    /* bf16 [n_row][K], 16-byte aligned; or NULL, and then */
    const float *x_float; /* [n_row][K]: products of fp32 */
};

/* One layer's cache: block b has CUDA_KV_BLOCK tokens of all KV heads, cuda_kv_block_bytes() of keys at k + b
 * * that, and as many of values. The layout inside is the kernels'. */
enum cuda_kv_type { CUDA_KV_F32, CUDA_KV_BF16, CUDA_KV_FP8 };
struct cuda_kv {
    uint8_t *k, *v;
    const float *scale; /* [2] of keys, of values; stored = x / scale, saturated. Ones where not FP8 */
    int32_t type, n_kv_head, head_dim;
};
static inline size_t cuda_kv_block_bytes(int type, int n_kv_head, int head_dim)
{
    size_t width = type == CUDA_KV_F32 ? 4 : type == CUDA_KV_BF16 ? 2 : 1;
    return (size_t)CUDA_KV_BLOCK * (size_t)n_kv_head * (size_t)head_dim * width;
}

/* RMSNorm of each head of q and of k where there are weights, rotation of the first rotary_dim elements of
 * each, q to bf16, k and v into the cache at slot[t]. k and v are left as they are or not: nobody reads them
 * again, nor q_out but attention: it need not be written where the next operator is that, with nothing but
 * rows of `single`: one launch may do both then. Position and slot are of real rows only. */
struct cuda_qkv {
    const float *q;               /* [n_row][n_head * head_dim]     */
    const float *k, *v;           /* [n_row][n_kv_head * head_dim]  */
    const float *q_norm, *k_norm; /* [head_dim] or NULL             */
    const float *cos, *sin;       /* [][rotary_dim / 2], by position */
    const int32_t *pos, *slot;    /* [n_row]; slot = block * CUDA_KV_BLOCK + offset */
    uint16_t *q_out;              /* bf16 [n_row][n_head * head_dim], 16-byte aligned */
    struct cuda_kv kv;
    int32_t n_head, rotary_dim;
    bool interleaved; /* pairs (2i, 2i + 1), else (i, i + rotary_dim / 2) */
    float eps;
    float *q_float; /* instead of q_out where not NULL: unrounded; may be q */
};

/* Rows [row, row + n_row) are tokens of sequence `seq` at positions pos[row], pos[row] + 1, ... image: which
 * of an attention's images is the first of that sequence's. */
struct cuda_tile {
    int32_t row, n_row, seq, image;
};
#define CUDA_IMAGE_KEYS 128

/* Causal attention over the paged cache: row t of sequence s sees keys 0..pos[t] of blocks
 * block_table[s * *stride + i]. Each row is either one of `single` (its sequence has one row in this step:
 * its keys are shared out, and results put together in a fixed order) or in one tile. n_single and n_tile are
 * what the grids cover, and n_split * CUDA_SPLIT_KEYS keys what the rows of `single` see at most; real counts
 * lie in memory.
 *
 * One row whose heads are normed (of the commonest sizes), or more than CUDA_JOINED_ABOVE rows, that are all
 * of `single` are one launch with the cuda_qkv in front of it where that makes what they take; then q is not
 * written.
 */
#define CUDA_JOINED_ABOVE 8
struct cuda_attention {
    const uint16_t *q; /* bf16 [n_row][n_head * head_dim] */
    uint16_t *y;       /* bf16 [n_row][n_head * head_dim] */
    struct cuda_kv kv;
    const int32_t *pos;                       /* [n_row] */
    const int32_t *block_table;               /* [sequence][*stride] */
    const int32_t *stride;                    /* [1] */
    const struct cuda_tile *single;           /* [n_single], n_row 1 */
    const struct cuda_tile *tile;             /* [n_tile], n_row 1 to CUDA_TILE_TOKENS */
    const int32_t *single_count, *tile_count; /* [1] */
    int32_t n_single, n_tile, n_split;
    /* Images of CUDA_IMAGE_KEYS keys and their values, as a kernel wants them, which the operator makes in
     * its scratch: those of all sequences in tiles, one after the other, as many for each as its last tile
     * sees keys of. 0: the cache is read as it is, which costs time and no memory. No number depends on it,
     * while values of later tokens are finite: a row multiplies those that share its last image by zero. */
    int32_t n_image;
    int32_t n_head;
    float scale;
    const float *q_float; /* of a cache of type F32 where not NULL: instead of q, and */
    float *y_float;       /* instead of y: nothing is rounded                         */
};

/* The choice of experts, as struct router_args of kernels/kernels.h has it. */
struct cuda_router {
    struct cuda_weight w; /* n_expert rows of K, not packed */
    const float *x;       /* [n_row][K]: logits are products of fp32 */
    int32_t K;
    float *logits;     /* [n_row][n_expert], room for them */
    const float *bias; /* [n_expert] or NULL */
    bool sigmoid;      /* else softmax */
    bool normalize, softmax_topk, norm_add;
    int32_t n_expert, top_k, n_group, top_group;
    float norm_min, scaling;
    /* [n_row][top_k + n_shared]: best first, ties to the lowest index, then n_expert, n_expert + 1, ...,
     * which every row takes as they are; -1 in rows from *count on */
    int32_t *expert;
    float *weight;  /* as many: of those that are taken as they are 1; 0 in rows from *count on */
    uint64_t *load; /* [n_expert]: one more for each choice of a real row (atomic adds); NULL: not counted */
    int32_t n_shared; /* n_expert and they together at most CUDA_EXPERTS_MAX */
};

/* out[t] = sum over j, in order, of weight[t][j] * down(h) of expert id[t][j], h = silu(gate(x[t])) *
 * up(x[t]) rounded to bf16; ids below zero are of no expert here. The kernels for packed weights.
 *
 * Where `each` is not NULL, the products go there instead, as they are before they are weighted and added up:
 * [n_row][n_used][hidden], bf16 where cuda_moe_is_for_many(), else fp32. Nothing is written in the places of
 * ids below zero, and weight and out are not looked at. */
struct cuda_moe {
    const uint8_t *gate_up; /* [n_expert] packed pairs: 2 * inner rows of hidden    */
    const uint8_t *down;    /* [n_expert] packed: hidden rows of inner              */
    const float *gate_scale, *up_scale, *down_scale; /* [n_expert] */
    const uint16_t *x;                               /* bf16 [n_row][hidden], 16-byte aligned */
    const int32_t *id;                               /* [n_row][n_used] */
    const float *weight;                             /* [n_row][n_used] */
    float *out;                                      /* [n_row][hidden] */
    int32_t n_used, n_expert, hidden, inner;         /* the last two multiples of 64 */
    void *each;                                      /* or NULL */
    /* So many experts, the last, are in the last places of every row: who has many rows is known before the
     * ids are. It changes which kernel is used, and no number. */
    int32_t n_shared;
};
/* Whether `each` is bf16, as the kernel for many rows writes it, and not floats. Without `each` the kernel
 * for few may take more. */
static inline bool cuda_moe_is_for_many(int32_t n_row, int32_t n_used)
{
    return n_row > CUDA_ROWS_MAX || (int64_t)n_row * n_used > CUDA_SLOTS_MAX;
}

/* The same for weights that are not packed, of any type and size, with biases: simple, not fast. `each` is
 * fp32 for any number of rows. */
struct cuda_moe_plain {
    struct cuda_weight gate, up, down; /* [n_expert] each */
    const float *gate_bias, *up_bias,
        *down_bias; /* [n_expert][inner], [n_expert][inner], [n_expert][hidden], or NULL */
    const uint16_t *x;
    const int32_t *id;
    const float *weight;
    float *out;
    int32_t n_used, n_expert, hidden, inner;
    float *each;
};

/* h = silu(gate) * up, rounded to bf16 */
struct cuda_swiglu {
    const float *gate, *up; /* [n_row][n] */
    uint16_t *h;            /* bf16 [n_row][n], 16-byte aligned */
    int32_t n;
    float *h_float; /* instead of h where not NULL: unrounded; may be gate or up */
};

/* id[t] = index of the largest of x[t]: the lowest among equals, and of numbers only; 0 where all are NaN. */
struct cuda_argmax {
    const float *x; /* [n_row][n] */
    int32_t *id;    /* [n_row] */
    int32_t n;
};

/* One token of each row, as the CPU's sampler (engine/sampler.h) draws it from the same logits with the same
 * number: plugin/sample.cu says how far that goes. Rows that are not wanted are left as they are, their ids
 * too; the logits of the others are lost. */
#define CUDA_SAMPLE_MAX   (1 << 19) /* columns         */
#define CUDA_SAMPLE_TOP_K 1024      /* of a row's top_k */
struct cuda_draw {
    double uniform;     /* in [0, 1)                                   */
    float scale;        /* 1 / temperature; 0: the likeliest           */
    float top_p, min_p; /* 1, 0: off                                   */
    int32_t top_k;      /* 0: off                                      */
    int32_t wanted, unused;
};
struct cuda_sample {
    float *x;                     /* [n_row][n] */
    const struct cuda_draw *draw; /* [n_row] */
    int32_t *id;                  /* [n_row]; -1: no logit is finite */
    int32_t n;
};

/* ---- GPUs that compute a step together ----
 *
 * Peers (cuda_plugin.h) run the same operators of the following kinds in the same order, with the same n_row,
 * *count and sizes; their launches wait for each other. Numbers are bit-identical on all of them. Not before
 * peers_connect. */

#define CUDA_PEERS_MAX 8

/* How sums travel. All but the last are this plug-in's and give the same bits; sums in rank order. */
enum cuda_reduce_way {
    CUDA_REDUCE_AUTO,     /* one of the next two, by size (peers_set_two_shot) */
    CUDA_REDUCE_ONE_SHOT, /* everybody's rows to everybody                     */
    CUDA_REDUCE_TWO_SHOT, /* a share of the rows to each, and their sums back  */
    CUDA_REDUCE_SENT,     /* everybody's rows have been sent by cuda_send      */
    CUDA_REDUCE_LIBRARY,  /* NCCL (library_open): only into `sum`              */
};

/* part[t] = delta[0] + delta[1], where absent zeros: either may be. The sum of all ranks' parts takes the
 * place of what cuda_add_norm adds to the residual; all else is as there. Or, where `sum` is not NULL, it
 * goes there, and of `norm` only the deltas, n and `row` (NULL) are looked at; `sum` may be delta[0]. */
struct cuda_all_reduce {
    struct cuda_add_norm norm;
    float *sum;   /* [n_row][n] or NULL */
    int32_t way;  /* enum cuda_reduce_way */
    int32_t slot; /* CUDA_REDUCE_SENT: cuda_send's; no `row` then */
};

/* This rank's part of a sum to all others by copy engines, which take no SMs: n_row rows whatever `count`
 * says. The cuda_all_reduce that adds up comes later on every rank, names the same slot and the same rows and
 * has the part as its only delta; the part must stay as it is until then.
 *
 * A slot holds the parts of one sum. It may be sent to again once this rank has added up what is in it and,
 * after that, another sum, which it began to send after the former was added up: only then is it known that
 * the others are done with the slot, too. So two slots in turn do for sums that follow each other, and four
 * for two such rows of sums. Within a call that is checked; from call to call it is the caller's care. */
#define CUDA_SEND_SLOTS 4
struct cuda_send {
    const float *part; /* [n_row][n]; NULL: zeros */
    int32_t n, slot;   /* slot < CUDA_SEND_SLOTS  */
};

/* Columns of all ranks side by side on rank 0: out[t][first[r] + j] = rank r's x[t][j]. */
struct cuda_gather {
    const float *x;                    /* [n_row][first[rank + 1] - first[rank]], which may be 0 */
    float *out;                        /* [n_row][first[size]]; not looked at but on rank 0 */
    int32_t first[CUDA_PEERS_MAX + 1]; /* by rank, ascending from 0 */
};

/* ---- rows that are on one rank each ----
 *
 * With expert parallelism every rank has rows of its own, and experts of its own. Row i of rank r, i <
 * count[r], is row place[r * most + i] of all rows together; no two have the same place. Counts and places
 * lie in the device's memory, written by copies and by no operator, and are the same on all ranks, as are
 * `most` and `n_all`. These operators' own n_row is `most`, and their `count` is NULL. */
struct cuda_spread {
    const int32_t *count; /* [size]       */
    const int32_t *place; /* [size][most] */
    int32_t most, n_all;  /* that the launches cover: of any rank, and of all together */
};

/* Rows to the ranks that have an expert which they chose, once to each; or to all ranks, where `expert` is
 * NULL. local[row][j] is the choice as one of this rank's experts, -1 where it is another's or the row is not
 * real; rows of x_all that nobody here needs are left as they are. */
struct cuda_dispatch {
    struct cuda_spread rows;
    const uint16_t *x;                 /* bf16 [count[rank]][n], 16-byte aligned, of this rank      */
    const int32_t *expert;             /* [count[rank]][n_used] of this rank's rows, or NULL        */
    uint16_t *x_all;                   /* bf16 [n_all][n], 16-byte aligned                          */
    int32_t *local;                    /* [n_all][n_used]; not where `expert` is NULL               */
    uint64_t *load;                    /* [first[size]] counts up every rank's choices, or NULL     */
    int32_t first[CUDA_PEERS_MAX + 1]; /* rank r has experts [first[r], first[r + 1])  */
    int32_t n, n_used;                 /* n a multiple of 8 */
};

/* What the experts of all ranks made of this rank's rows, added up in the order of choice as cuda_moe does:
 * out[i] = sum over j of weight[i][j] * product. */
struct cuda_combine {
    struct cuda_spread rows;
    const void *each;      /* [n_all][n_used][n] this rank's products, as cuda_moe's */
    bool is_bf16;          /* they are, else fp32; the same on all ranks             */
    const int32_t *local;  /* [n_all][n_used] of the dispatch before                 */
    const int32_t *expert; /* [count[rank]][n_used] of this rank's rows: that dispatch's */
    const float *weight;   /* [count[rank]][n_used], written before it               */
    float *out;            /* [count[rank]][n], 16-byte aligned                      */
    int32_t first[CUDA_PEERS_MAX + 1];
    int32_t n, n_used;
};

/* cuda_moe for tiled weights (use_cublaslt): what goes into the matrices is rounded to NVFP4 under the scale
 * of each, and nothing else below fp32. The host waits in it for the choice of experts: not for graphs. */
struct cuda_moe_w4a4 {
    struct cuda_weight gate, up, down; /* [n_expert] each */
    const float *x;                    /* [n_row][hidden] */
    const int32_t *id;
    const float *weight;
    float *out;
    int32_t n_used, n_expert, hidden, inner; /* the last two multiples of 16 */
};

enum cuda_op_kind {
    CUDA_OP_EMBED,
    CUDA_OP_ADD_NORM,
    CUDA_OP_LINEAR,
    CUDA_OP_QKV,
    CUDA_OP_ATTENTION,
    CUDA_OP_ROUTER,
    CUDA_OP_MOE,
    CUDA_OP_MOE_PLAIN,
    CUDA_OP_SWIGLU,
    CUDA_OP_ARGMAX,
    CUDA_OP_ALL_REDUCE,
    CUDA_OP_GATHER,
    CUDA_OP_MOE_W4A4,
    CUDA_OP_DISPATCH,
    CUDA_OP_COMBINE,
    CUDA_OP_SAMPLE,
    CUDA_OP_SEND,
    CUDA_OP_KINDS,
};

/* Operators of a lane run in order, each after the one before it in the array; those of two lanes run side by
 * side, but for what `back` says. A call's operators begin when all calls before it have ended, and are over
 * when both lanes are. While both are in use, a few SMs are kept for the side (peers_reserve), unless it has
 * nothing but cuda_send. No two operators that wait for peers may run side by side: all ranks run them, and
 * send, in the order of the array. */
enum cuda_lane { CUDA_LANE_MAIN, CUDA_LANE_SIDE, CUDA_LANES };

struct cuda_op {
    int32_t kind;         /* enum cuda_op_kind */
    int32_t n_row;        /* that the launch covers, at least 1 */
    const int32_t *count; /* [1] rows that are real; NULL: n_row. Never more than n_row */
    int32_t lane;         /* enum cuda_lane */
    int32_t back;         /* of the other lane: begins when the operator so many places before it has ended;
                             0: it waits for none */
    union {
        struct cuda_embed embed;
        struct cuda_add_norm add_norm;
        struct cuda_linear linear;
        struct cuda_qkv qkv;
        struct cuda_attention attention;
        struct cuda_router router;
        struct cuda_moe moe;
        struct cuda_moe_plain moe_plain;
        struct cuda_swiglu swiglu;
        struct cuda_argmax argmax;
        struct cuda_all_reduce all_reduce;
        struct cuda_gather gather;
        struct cuda_moe_w4a4 moe_w4a4;
        struct cuda_dispatch dispatch;
        struct cuda_combine combine;
        struct cuda_sample sample;
        struct cuda_send send;
    } as;
};

/* ---- weights on their way in --------------------------------------------------------------------- */

/* Rows of an NVFP4 matrix, as checkpoints have them, into packed form on the device. */
enum cuda_pack_rows {
    CUDA_PACK_WHOLE, /* row r of the matrix is row r of the tiles */
    CUDA_PACK_GATE,  /* row r is row r % 8 of tile r / 8, and the other eight rows of it stay as they are */
    CUDA_PACK_UP,    /* the same, row r % 8 + 8 */
    CUDA_PACK_TILED, /* CUDA_NVFP4_TILED: `device` are its codes, `block` its scales */
};
struct cuda_pack {
    uint8_t *device;       /* the matrix, or the pair, from its beginning */
    const uint8_t *codes;  /* the host's: [n_row][K/2]                     */
    const uint8_t *scales; /* the host's: [n_row][K/16], not negative      */
    int32_t rows;          /* enum cuda_pack_rows */
    int32_t first, n_row;  /* `first` is a multiple of 16; n_row too, unless they are the last */
    int32_t n_whole, K; /* rows of the whole matrix (of a pair: of one of the two); padding rows of the last
                           tile become zeros */
    uint8_t *block;     /* CUDA_PACK_TILED, whose K is a multiple of 16, that of the others of 64 */
    int32_t n_part;     /* CUDA_PACK_WHOLE: columns in so many equal parts, a multiple of 64 each, as matrices
                           one after the other; 0: in one */
};

#endif
