/* Between the files of attention. */
#pragma once

#include "kernels/cuda/plugin/kv.cuh"
#include "kernels/cuda/plugin/operators.h"

#define LOG2_E 1.44269504088896f

/* A sequence of fewer keys than ATTENTION_WHOLE is the work of a cluster of blocks, which puts the row
 * together itself. Longer ones are cut into parts at absolute positions; a launch of its own merges their
 * results, [n_single][n_head][attention_part_count] each. Which way a row goes depends on its own position
 * alone. */
#define ATTENTION_WHOLE (16 * CUDA_SPLIT_KEYS)
struct attention_parts {
    float *max, *sum; /* of the scores in units of log2; of 2^(score - max) */
    float *acc;       /* [head_dim]: of 2^(score - max) * value */
};

/* Heads of this size and cache type have kernels for tensor cores. */
bool attention_has_mma(const struct cuda_kv *kv);

/* Rows that share a graph's launches count as many: up to a power of two. */
static inline int attention_rows(const struct cuda_attention *a)
{
    int rows = 1;
    while (rows < a->n_single)
        rows *= 2;
    return rows;
}
/* Where few rows are in the step, short sequences have short parts, which use more of the GPU; long ones have
 * less to put together, and blocks that live longer. The position from which on parts are long: about 64
 * short ones in all the rows before; 0 for more than 8 rows. */
#define ATTENTION_PART (4 * CUDA_SPLIT_KEYS)
static inline int attention_long_from(const struct cuda_attention *a)
{
    const int rows = attention_rows(a);
    return rows <= 8 ? 64 * CUDA_SPLIT_KEYS / rows : 0;
}
__host__ __device__ __forceinline__ int attention_part_keys(int long_from, int pos)
{
    return pos < long_from ? CUDA_SPLIT_KEYS : ATTENTION_PART;
}
/* Into how many parts a launch cuts the keys that rows of `single` may see; 0: every row is whole. */
static inline int attention_part_count(const struct cuda_attention *a)
{
    if (a->n_split * CUDA_SPLIT_KEYS <= ATTENTION_WHOLE)
        return 0;
    const int n_long = (a->n_split * CUDA_SPLIT_KEYS + ATTENTION_PART - 1) / ATTENTION_PART;
    return max(n_long, min(a->n_split, attention_long_from(a) / CUDA_SPLIT_KEYS));
}

/* qkv: the operator before, whose work the launch does, too; NULL: it has been done. */
const char *attention_single_start(const struct cuda_attention *a, const struct cuda_qkv *qkv,
                                   const struct attention_parts *parts, const struct op_place *at);
/* The same of one row that is whole, with the operator before. */
bool attention_one_takes(const struct cuda_qkv *q, const struct cuda_attention *a);
const char *attention_one_start(const struct cuda_qkv *q, const struct cuda_attention *a,
                                const struct op_place *at);
/* The parts to rows of y. */
const char *attention_merge_start(const struct cuda_attention *a, const struct attention_parts *parts,
                                  cudaStream_t stream);
const char *attention_tile_start(const struct cuda_attention *a, cudaStream_t stream);

/* The same, on Hopper, for rows of tiles. */
bool attention_has_wgmma(const struct cuda_kv *kv, const struct gpu_limits *limits);
/* images: where it may make them, and a word behind them, and has them made; NULL: it does without. */
const char *attention_wgmma_start(const struct cuda_attention *a, uint8_t *images, const struct op_place *at);
/* Images and the word, which is 0 when they are there. */
size_t attention_image_bytes(const struct cuda_attention *a);
uint32_t *attention_ticket(const struct cuda_attention *a, uint8_t *images);
const char *attention_images_start(const struct cuda_attention *a, uint8_t *images, cudaStream_t stream);

/* NULL: whatever follows is one of these sizes. */
#define ATTENTION_SWITCH(why, kv, call)           \
    switch ((kv).head_dim * 4 + (kv).type) {      \
    case 32 * 4 + CUDA_KV_BF16:                   \
        why = call(32, CUDA_KV_BF16);             \
        break;                                    \
    case 32 * 4 + CUDA_KV_FP8:                    \
        why = call(32, CUDA_KV_FP8);              \
        break;                                    \
    case 64 * 4 + CUDA_KV_BF16:                   \
        why = call(64, CUDA_KV_BF16);             \
        break;                                    \
    case 64 * 4 + CUDA_KV_FP8:                    \
        why = call(64, CUDA_KV_FP8);              \
        break;                                    \
    case 128 * 4 + CUDA_KV_BF16:                  \
        why = call(128, CUDA_KV_BF16);            \
        break;                                    \
    case 128 * 4 + CUDA_KV_FP8:                   \
        why = call(128, CUDA_KV_FP8);             \
        break;                                    \
    default:                                      \
        why = "attention: heads of another size"; \
    }

/* A lane's 8 elements of a cache block, from element `at` on, as four pairs of bf16. */
template <int TYPE> __device__ __forceinline__ uint4 kv_vector(const uint8_t *base, size_t at)
{
    if (TYPE == CUDA_KV_BF16)
        return *(const uint4 *)(base + 2 * at);
    const uint2 eight = *(const uint2 *)(base + at);
    uint4 v;
    e4m3_bf16(eight.x, &v.x, &v.y);
    e4m3_bf16(eight.y, &v.z, &v.w);
    return v;
}

/* Values of the keys from `n` on (of a lane's four: 4q to 4q + 3) become zeros: memory that no token has
 * written may hold NaN, which a weight of zero does not silence. */
__device__ __forceinline__ uint4 kv_keep(uint4 v, int n)
{
    const uint32_t first = n >= 2   ? ~0u
                           : n == 1 ? 0xffffu
                                    : 0u,
                   second = n >= 4   ? ~0u
                            : n == 3 ? 0xffffu
                                     : 0u;
    return make_uint4(v.x & first, v.y & second, v.z & first, v.w & second);
}

/* The token of a block that is row g of an operand of eight keys; of the second eight, two more. Chosen so
 * that lane q's columns 2q and 2q + 1 of both are tokens 4q to 4q + 3, as values lie. */
__device__ __forceinline__ int key_of(int g)
{
    return g / 2 * 4 + g % 2;
}
