/* The operators of cuda_ops.h, one function each: start its kernels on the stream. NULL, or why not, one
 * line. The functions that end in _scratch say how much memory the kernels of one use between them. */
#pragma once

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/plugin/internal.h"

/* Words of `barrier`: what the experts' kernel meets at (of that one the top bit alternates), and blocks of
 * the router that have ended. */
#define OP_MEET           0
#define OP_ARRIVED_ROUTER 32
#define OP_ARRIVED_WORDS  64

/* Where they run. */
struct gpu_peers;
struct lt;
struct op_place {
    const struct gpu_limits *limits;
    uint8_t *scratch;  /* 256-byte aligned */
    uint32_t *barrier; /* OP_ARRIVED_WORDS zeros; a kernel that counts there leaves zeros behind */
    cudaStream_t stream;
    const struct gpu_peers *peers; /* peers.h; NULL: there are none */
    struct lt *lt;                 /* cublaslt.h; NULL: it was not asked for */
};

const char *embed_start(const struct cuda_op *op, const struct op_place *at);
const char *add_norm_start(const struct cuda_op *op, const struct op_place *at);
const char *swiglu_start(const struct cuda_op *op, const struct op_place *at);
const char *argmax_start(const struct cuda_op *op, const struct op_place *at);
const char *qkv_start(const struct cuda_op *op, const struct op_place *at);
const char *attention_start(const struct cuda_op *op, const struct op_place *at);
size_t attention_scratch(const struct cuda_op *op);
const char *router_start(const struct cuda_op *op, const struct op_place *at);
const char *moe_plain_start(const struct cuda_op *op, const struct op_place *at);
size_t moe_plain_scratch(const struct cuda_op *op);
const char *linear_op_start(const struct cuda_op *op, const struct op_place *at);
size_t linear_op_scratch(const struct cuda_op *op);
const char *all_reduce_start(const struct cuda_op *op, const struct op_place *at);
const char *gather_start(const struct cuda_op *op, const struct op_place *at);

/* The real rows of an operator, in a kernel. */
#define OP_COUNT(count, n_row) ((count) ? min(*(count), (n_row)) : (n_row))
