/* Where an element of a cache block lies: for tensor cores, so that each lane's part of an operand is one
 * vector and a block's head is one run of memory.
 *
 * A block has a region of CUDA_KV_BLOCK x head_dim elements for each KV head. With j the token of the block
 * and i the dimension: keys are [head_dim / 32][16 tokens][32] (lane q of a group of four reads dimensions
 * 8q to 8q + 7 of a token: its part of two k-steps of 16), values [head_dim / 2][4][2][4 tokens] (lane q
 * reads tokens 4q to 4q + 3 of two dimensions). Head sizes that are no multiple of 32 have keys
 * [16][head_dim].
 */
#pragma once

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/plugin/gpu.h"

__device__ __forceinline__ int kv_key_at(int head_dim, int j, int i)
{
    return head_dim % 32 ? j * head_dim + i : (i / 32 * CUDA_KV_BLOCK + j) * 32 + i % 32;
}

__device__ __forceinline__ int kv_value_at(int j, int i)
{
    return ((i / 2 * 4 + j / 4) * 2 + i % 2) * 4 + j % 4;
}

/* Elements before the region of a head. */
__device__ __forceinline__ size_t kv_region(const struct cuda_kv &kv, int block, int head)
{
    return ((size_t)block * kv.n_kv_head + head) * (size_t)(CUDA_KV_BLOCK * kv.head_dim);
}

__device__ __forceinline__ float kv_get(int type, const uint8_t *base, size_t at)
{
    return type == CUDA_KV_F32    ? ((const float *)base)[at]
           : type == CUDA_KV_BF16 ? bf16_float(((const uint16_t *)base)[at])
                                  : e4m3_float(base[at]);
}

__device__ __forceinline__ void kv_put(int type, uint8_t *base, size_t at, float v, float inverse)
{
    if (type == CUDA_KV_F32)
        ((float *)base)[at] = v;
    else if (type == CUDA_KV_BF16)
        ((uint16_t *)base)[at] = float_bf16(v);
    else
        base[at] = float_e4m3(v * inverse);
}

/* NULL, or why the kernels refuse this cache. */
static inline const char *kv_check(const struct cuda_kv *kv)
{
    if (kv->type < CUDA_KV_F32 || kv->type > CUDA_KV_FP8 || kv->n_kv_head < 1 || kv->head_dim < 8 ||
        kv->head_dim > 1024 || kv->head_dim % 8)
        return "the cache's heads: their size is a multiple of 8 from 8 to 1024";
    return nullptr;
}
