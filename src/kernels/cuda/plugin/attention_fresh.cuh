/* The query heads of a row and its own key and value, straight from the product that made them: normed and
 * rotated (head.cuh) by the block that attends, which finds the key and the value here and not in the cache.
 */
#pragma once

#include "kernels/cuda/plugin/attention.cuh"
#include "kernels/cuda/plugin/head.cuh"

/* In shared memory. */
template <int HD, int NT> struct fresh_row {
    float x[8 * NT + 2][HD + 4];                      /* query heads; then key, value. + 4: other banks */
    __align__(16) uint8_t key[2 * HD], value[2 * HD]; /* as the cache has them */
    float table[3 * HD];                              /* of `tables`, at most */
    float spare[12][HD + 4];                          /* of each warp, for what it has no row for */
};

/* What a block takes: query heads [head, head + n_head) of a row, and the KV head that they share. */
struct fresh_heads {
    int row, head, n_head, kv_head;
    bool holds, writes; /* it needs the row's key and value, too; it is the one that writes them */
};

/* A thread's part of what is the same for all heads, on its way to shared memory. */
struct table_part {
    float q_norm, k_norm, cos, sin;
    __device__ __forceinline__ void ask_norms(const cuda_qkv &a, int d)
    {
        const int i = threadIdx.x;
        q_norm = i < d && a.q_norm ? a.q_norm[i] : 1.0f;
        k_norm = i < d && a.k_norm ? a.k_norm[i] : 1.0f;
    }
    __device__ __forceinline__ void ask_angles(const cuda_qkv &a, int pos)
    {
        const int i = threadIdx.x, half = a.rotary_dim / 2;
        cos = i < half ? a.cos[(size_t)pos * half + i] : 0.0f;
        sin = i < half ? a.sin[(size_t)pos * half + i] : 0.0f;
    }
    __device__ __forceinline__ tables put(const cuda_qkv &a, int d, float *room) const
    {
        const int i = threadIdx.x, half = a.rotary_dim / 2;
        const tables to = tables_at(a, d, room);
        if (i < d) {
            to.q_norm[i] = q_norm;
            to.k_norm[i] = k_norm;
        }
        if (i < half) {
            to.cos[i] = cos;
            to.sin[i] = sin;
        }
        return to;
    }
};

/* All of a warp's rows are asked for before the first is waited for. */
template <int HD, int NT, int WARPS>
static __device__ __forceinline__ void take_fresh(fresh_row<HD, NT> &to, const cuda_qkv &a,
                                                  const fresh_heads &h, int warp, int lane)
{
    const int N = (8 * NT + 2 + WARPS - 1) / WARPS, n = h.n_head + (h.holds ? 2 : 0);
    const float *q = a.q + ((size_t)h.row * a.n_head + h.head) * HD;
    const size_t kv = ((size_t)h.row * a.kv.n_kv_head + h.kv_head) * HD;
    float4 v[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = warp + j * WARPS;
        if (i < n && 4 * lane < HD) {
            const float *from = i < h.n_head ? q + i * HD : (i == h.n_head ? a.k : a.v) + kv;
            v[j] = __ldcg((const float4 *)from + lane);
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = warp + j * WARPS;
        if (i < n && 4 * lane < HD)
            *(float4 *)&to.x[i][4 * lane] = v[j];
    }
    __syncwarp();
}

/* Heads to what attention takes; key and value also to the row's slot of the cache. By the warps that took
 * them. */
template <int HD, int TYPE, int NT, int WARPS>
static __device__ __forceinline__ void finish_fresh(fresh_row<HD, NT> &f, const cuda_qkv &a,
                                                    const tables &table, const fresh_heads &h, int slot,
                                                    int warp, int lane)
{
    const int N = (8 * NT + 2 + WARPS - 1) / WARPS, n = h.n_head + (h.holds ? 2 : 0);
    float *x[N];
    const float *norm[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = warp + j * WARPS;
        x[j] = i < h.n_head || (i == h.n_head && h.holds) ? f.x[i] : f.spare[warp];
        norm[j] = i < h.n_head ? (a.q_norm ? table.q_norm : nullptr) : a.k_norm ? table.k_norm : nullptr;
    }
    finish_heads<N>(a, HD, table, norm, x, lane);
#pragma unroll 1
    for (int i = warp; i < n; i += WARPS) {
        if (i < h.n_head)
            continue;
        const bool key = i == h.n_head;
        uint8_t *mine = key ? f.key : f.value, *cache = key ? a.kv.k : a.kv.v;
        const size_t region = kv_region(a.kv, slot / CUDA_KV_BLOCK, h.kv_head);
        const float inverse = TYPE == CUDA_KV_FP8 ? 1.0f / a.kv.scale[key ? 0 : 1] : 1.0f;
        const int j = slot % CUDA_KV_BLOCK;
#pragma unroll
        for (int d = lane; d < HD; d += 32) {
            const float v = f.x[i][d];
            kv_put(TYPE, mine, (size_t)d, v, inverse);
            if (h.writes)
                kv_put(TYPE, cache, region + (key ? kv_key_at(HD, j, d) : kv_value_at(j, d)), v, inverse);
        }
    }
}
