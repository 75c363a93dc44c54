/* A head of q or k on its way: norm and rotation, by a warp. */
#pragma once

#include "kernels/cuda/plugin/kv.cuh"

/* What the heads of a block need besides themselves, in shared memory. */
struct tables {
    float *q_norm, *k_norm; /* [head_dim]       */
    float *cos, *sin;       /* [rotary_dim / 2] */
};

static __host__ __device__ __forceinline__ int table_floats(const cuda_qkv &a)
{
    return 2 * a.kv.head_dim + a.rotary_dim;
}

static __device__ __forceinline__ tables load_tables(const cuda_qkv &a, int pos, float *room)
{
    const int d = a.kv.head_dim, half = a.rotary_dim / 2;
    const tables to = {room, room + d, room + 2 * d, room + 2 * d + half};
#pragma unroll 1
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        if (a.q_norm)
            to.q_norm[i] = a.q_norm[i];
        if (a.k_norm)
            to.k_norm[i] = a.k_norm[i];
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        to.cos[i] = a.cos[(size_t)pos * half + i];
        to.sin[i] = a.sin[(size_t)pos * half + i];
    }
    return to;
}

/* A head, normed where `norm` is not NULL and rotated, in shared memory: [head_dim]. `from` may be x. */
static __device__ __forceinline__ void finish_head(const cuda_qkv &a, const tables &table, const float *from,
                                                   const float *norm, float *x, int lane)
{
    const int d = a.kv.head_dim, half = a.rotary_dim / 2;
    float sum = 0.0f;
    for (int i = lane; i < d; i += 32) {
        x[i] = from[i];
        sum = fmaf(x[i], x[i], sum);
    }
    if (norm) {
        const float by = 1.0f / sqrtf(warp_sum(sum) / (float)d + a.eps);
        for (int i = lane; i < d; i += 32)
            x[i] = x[i] * by * norm[i];
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < half; i += 32) {
        const int first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + half;
        const float c = table.cos[i], s = table.sin[i];
        const float u = x[first], v = x[second];
        x[first] = u * c - v * s;
        x[second] = v * c + u * s;
    }
    __syncwarp();
}

/* A key, finished, or a value to its place in the cache. */
static __device__ __forceinline__ void store_head(const struct cuda_kv &kv, bool key, int slot, int head,
                                                  const float *x, int lane)
{
    const int d = kv.head_dim, type = kv.type, j = slot % CUDA_KV_BLOCK;
    const size_t region = kv_region(kv, slot / CUDA_KV_BLOCK, head);
    const float inverse = type == CUDA_KV_FP8 ? 1.0f / kv.scale[key ? 0 : 1] : 1.0f;
    for (int i = lane; i < d; i += 32)
        kv_put(type, key ? kv.k : kv.v, region + (key ? kv_key_at(d, j, i) : kv_value_at(j, i)), x[i],
               inverse);
}
