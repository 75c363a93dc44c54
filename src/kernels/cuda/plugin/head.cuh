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

/* Where they lie in room of table_floats(); d: head_dim. */
static __device__ __forceinline__ tables tables_at(const cuda_qkv &a, int d, float *room)
{
    return {room, room + d, room + 2 * d, room + 2 * d + a.rotary_dim / 2};
}

static __device__ __forceinline__ tables load_tables(const cuda_qkv &a, int pos, float *room)
{
    const int d = a.kv.head_dim, half = a.rotary_dim / 2;
    const tables to = tables_at(a, d, room);
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

/* The sum over the warp of each: the bits of warp_sum, whose steps take turns. */
template <int N> static __device__ __forceinline__ void warp_sums(float (&v)[N])
{
#ifdef __CUDACC__
#pragma unroll
    for (int d = 16; d > 0; d /= 2)
#pragma unroll
        for (int j = 0; j < N; j++)
            v[j] += __shfl_xor_sync(ALL_LANES, v[j], d);
#else
    for (int j = 0; j < N; j++)
        v[j] = warp_sum(v[j]);
#endif
}

/* Heads side by side, normed where `norm` is not NULL and rotated where they lie, in shared memory: x [d], d
 * the head's dimensions. The same bits whichever kernel does it: no product and sum here is left to the
 * compiler to join. */
template <int N>
static __device__ __forceinline__ void finish_heads(const cuda_qkv &a, int d, const tables &table,
                                                    const float *const (&norm)[N], float *const (&x)[N],
                                                    int lane)
{
    const int half = a.rotary_dim / 2;
    if (a.q_norm || a.k_norm) {
        float by[N] = {};
        for (int i = lane; i < d; i += 32)
#pragma unroll
            for (int j = 0; j < N; j++)
                by[j] = fmaf(x[j][i], x[j][i], by[j]);
        warp_sums<N>(by);
#pragma unroll
        for (int j = 0; j < N; j++)
            by[j] = norm[j] ? 1.0f / sqrtf(by[j] / (float)d + a.eps) : 1.0f;
        for (int i = lane; i < d; i += 32)
#pragma unroll
            for (int j = 0; j < N; j++)
                x[j][i] = x[j][i] * by[j] * (norm[j] ? norm[j][i] : 1.0f);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = lane; i < half; i += 32) {
        const int first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + half;
        const float c = table.cos[i], s = table.sin[i];
        float u[N], v[N];
#pragma unroll
        for (int j = 0; j < N; j++)
            u[j] = x[j][first], v[j] = x[j][second];
#pragma unroll
        for (int j = 0; j < N; j++) {
            x[j][first] = fmaf(u[j], c, -v[j] * s);
            x[j][second] = fmaf(v[j], c, u[j] * s);
        }
    }
    __syncwarp();
}

static __device__ __forceinline__ void finish_head(const cuda_qkv &a, int d, const tables &table,
                                                   const float *norm, float *x, int lane)
{
    const float *const norms[1] = {norm};
    float *const rows[1] = {x};
    finish_heads<1>(a, d, table, norms, rows, lane);
}

/* The same of a head in registers: x[j] is a lane's dimension lane + 32 * j. */
template <int PER>
static __device__ __forceinline__ void store_lanes(const struct cuda_kv &kv, bool key, int slot, int head,
                                                   const float (&x)[PER], int lane)
{
    const int d = 32 * PER, type = kv.type, token = slot % CUDA_KV_BLOCK;
    const size_t region = kv_region(kv, slot / CUDA_KV_BLOCK, head);
    const float inverse = type == CUDA_KV_FP8 ? 1.0f / kv.scale[key ? 0 : 1] : 1.0f;
#pragma unroll
    for (int j = 0; j < PER; j++) {
        const int i = lane + 32 * j;
        kv_put(type, key ? kv.k : kv.v, region + (key ? kv_key_at(d, token, i) : kv_value_at(token, i)), x[j],
               inverse);
    }
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
