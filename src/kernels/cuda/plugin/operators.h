/* The operators of cuda_ops.h, one function each: start its kernels on the stream. NULL, or why not, one
 * line. The functions that end in _scratch say how much memory the kernels of one use between them. */
#pragma once

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/plugin/internal.h"

/* Words of `barrier`: what the experts' kernel meets at (of that one the top bit alternates), blocks of the
 * router that have ended, and what the experts' kernel for one token exchanges (exchange.cuh): whose turn it
 * is, and two buffers. */
#define OP_MEET           0
#define OP_ARRIVED_ROUTER 32
#define OP_SINGLE         64
#define OP_SINGLE_H       128
#define OP_SINGLE_WORDS   16384
#define OP_ARRIVED_WORDS  (OP_SINGLE_H + 2 * OP_SINGLE_WORDS)

/* Weights that the kernel behind one needs first: they may be on their way to the L2 while that one waits. */
struct op_ahead {
    const void *from[2];
    size_t bytes[2];
};

/* Where they run. */
struct gpu_peers;
struct lt;
struct op_place {
    const struct gpu_limits *limits;
    uint8_t *scratch; /* 256-byte aligned; its end is for experts of few rows, and for nobody else */
    size_t scratch_bytes;
    uint32_t *barrier; /* OP_ARRIVED_WORDS zeros; a kernel that counts there leaves zeros behind */
    cudaStream_t stream;
    const struct gpu_peers *peers; /* peers.h; NULL: there are none */
    struct lt *lt;                 /* cublaslt.h; NULL: it was not asked for */
    bool alone;                    /* gpu_launch_meeting */
    struct op_ahead ahead;         /* zeros: nothing; a kernel of one row may ask for it */
};

const char *embed_start(const struct cuda_op *op, const struct op_place *at);
const char *add_norm_start(const struct cuda_op *op, const struct op_place *at);
const char *swiglu_start(const struct cuda_op *op, const struct op_place *at);
const char *argmax_start(const struct cuda_op *op, const struct op_place *at);
const char *sample_start(const struct cuda_op *op, const struct op_place *at);
const char *qkv_start(const struct cuda_op *op, const struct op_place *at);
const char *attention_start(const struct cuda_op *op, const struct op_place *at);
size_t attention_scratch(const struct cuda_op *op, const struct gpu_limits *limits);
/* Attention of rows that are alone in their sequences, and what precedes it, in one launch: two operators, of
 * which the first is of CUDA_OP_QKV. The second's scratch. Whether they are so, and many enough for it to
 * pay. */
bool attention_joined_takes(const struct cuda_op *op, int n_op);
const char *attention_joined_start(const struct cuda_op *op, const struct op_place *at);
const char *qkv_check(const struct cuda_op *op); /* NULL, or why qkv_start would refuse it */
/* The kernel for more rows than this; other heads than the commonest are qkv.cu's at any number. */
#define QKV_ROWS_ABOVE 64
bool qkv_rows_takes(const struct cuda_op *op);
const char *qkv_rows_start(const struct cuda_op *op, const struct op_place *at);
const char *router_start(const struct cuda_op *op, const struct op_place *at);
const char *moe_plain_start(const struct cuda_op *op, const struct op_place *at);
size_t moe_plain_scratch(const struct cuda_op *op);
const char *moe_start(const struct packed_moe *w, const struct moe_scratch *scratch,
                      const struct op_place *at);
const char *linear_op_start(const struct cuda_op *op, const struct op_place *at);
size_t linear_op_scratch(const struct cuda_op *op);
/* Whether the kernels for many rows of packed weights will take it. */
bool linear_op_is_prefill(const struct cuda_op *op, const struct gpu_limits *limits);
const char *all_reduce_start(const struct cuda_op *op, const struct op_place *at);
const char *send_start(const struct cuda_op *op, const struct op_place *at);
const char *gather_start(const struct cuda_op *op, const struct op_place *at);
const char *dispatch_start(const struct cuda_op *op, const struct op_place *at);
const char *combine_start(const struct cuda_op *op, const struct op_place *at);

/* The kernels for one row, of experts and of a packed product; and the former joined with the router before
 * it, or with that and the norm before it: `w` is the last of the operators. A function that ends in _takes
 * says whether there is such a kernel for it; of joined ones, for how many operators. */
bool moe_single_takes(const struct packed_moe *w, const struct gpu_limits *limits);
const char *moe_single_start(const struct packed_moe *w, const struct op_place *at);
int moe_joined_takes(const struct cuda_op *op, int n_op, const struct packed_moe *w,
                     const struct gpu_limits *limits);
const char *moe_joined_start(const struct cuda_op *op, const struct packed_moe *w, const struct op_place *at);
bool linear_single_takes(const struct packed_linear *w, const struct gpu_limits *limits);
const char *linear_single_start(const struct packed_linear *w, const struct op_place *at);
/* That of few rows, K shared out. How many it takes at once: 64, 32, or 0: none of this shape. */
int linear_split_rows(int n_out, int K, const struct gpu_limits *limits);
const char *linear_split_start(const struct packed_linear *w, const struct op_place *at);
/* That by wgmma, K shared out as well, for 2 to 64 rows; where it is the faster. */
bool linear_wgmma_takes(const struct packed_linear *w, const struct gpu_limits *limits);
const char *linear_wgmma_start(const struct packed_linear *w, const struct op_place *at);

/* The real rows of an operator, in a kernel. */
#define OP_COUNT(count, n_row) ((count) ? min(*(count), (n_row)) : (n_row))
