/* Of attention_wgmma.cu: where things lie in a block's shared memory, what a block works on, and how keys and
 * values get from the cache into the layout that wgmma reads. */
#pragma once

#include "kernels/cuda/plugin/attention_wgmma.cuh"

#define GROUP   128 /* threads */
#define THREADS (3 * GROUP)
#define ROWS    CUDA_TILE_TOKENS
#define KEYS    CUDA_IMAGE_KEYS /* a step */
#define BLOCKS  (KEYS / CUDA_KV_BLOCK)
#define STAGES  2 /* of each ring */

/* Where things lie in shared memory: bytes from its beginning, a multiple of 1024. */
template <int HD> struct plan {
    static const uint32_t QUERIES = ROWS * HD * 2, STEP = KEYS * HD * 2, PANEL_Q = ROWS * 128,
                          PANEL_K = KEYS * 128, PANEL_V = HD * 128, KEY = 2 * QUERIES,
                          VALUE = KEY + STAGES * STEP, SCALE = VALUE + STAGES * STEP,
                          BELLS = SCALE + 2 * ROWS * 4, N_BELL = 6 * STAGES + 2, BYTES = BELLS + 8 * N_BELL,
                          KEY_THERE = BELLS, KEY_FREE = KEY_THERE + 8 * STAGES,
                          VALUE_THERE = KEY_FREE + 8 * STAGES, VALUE_FREE = VALUE_THERE + 8 * STAGES,
                          WORK_THERE = VALUE_FREE + 8 * STAGES, WORK_FREE = WORK_THERE + 8 * STAGES,
                          QUERIES_THERE = WORK_FREE + 8 * STAGES;
};

/* What a block works on: a tile, and one or two query heads that share a KV head. */
struct work {
    struct cuda_tile tile;
    const int32_t *table;
    int kv_head, head, n_head; /* of the first of n_head query heads */
    int pos, end, n_step; /* of the first row; keys that some row sees. No steps: there is no more work */
};

/* Bytes before an image of a KV head: attention_images.cu. */
template <int HD>
[[maybe_unused]] static __device__ __forceinline__ size_t image_at(const struct cuda_kv &kv, int image,
                                                                   int kv_head)
{
    return ((size_t)image * kv.n_kv_head + kv_head) * 2 * plan<HD>::STEP;
}

/* The step's entries of the block table, a lane each; of blocks that no row sees, the last one's. */
[[maybe_unused]] static __device__ __forceinline__ int entries(const work &w, int step, int lane)
{
    return w.table[min(step * BLOCKS + lane % BLOCKS, (w.end - 1) / CUDA_KV_BLOCK)];
}

/* Four tokens' bf16 of one dimension, those from the n-th on as zeros. */
[[maybe_unused]] static __device__ __forceinline__ uint2 keep_four(uint2 v, int n)
{
    const uint4 kept = kv_keep(make_uint4(v.x, v.y, 0, 0), n);
    return make_uint2(kept.x, kept.y);
}

/* bf16 keys: 16 bytes, 8 dimensions of a token, go as they are. */
template <int HD>
static __device__ __forceinline__ void copy_keys(const struct cuda_attention &a, const work &w, int block,
                                                 uint32_t to)
{
    const int t = threadIdx.x, token = t / 4 % 16, chunk = t / 64 % 2 * 4 + t % 4;
    to += panel_chunk(token, chunk);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const uint8_t *from =
            a.kv.k + 2 * kv_region(a.kv, __shfl_sync(ALL_LANES, block, b), w.kv_head) + 16 * t;
#pragma unroll
        for (int i = 0; i < HD / 64; i++) /* 64 dimensions of 16 tokens are 2048 bytes, one for each panel */
            shared_copy<16>(to + b * CUDA_KV_BLOCK * 128 + i * plan<HD>::PANEL_K, from + 2048 * i);
    }
}

/* bf16 values: 8 bytes, four tokens of a dimension. n: keys of the step; memory behind them may hold NaN. */
template <int HD>
static __device__ __forceinline__ void copy_values(const struct cuda_attention &a, const work &w, int block,
                                                   int n, uint32_t to)
{
    const int t = threadIdx.x, token = t / 2 % 4 * 4, dim = t / 8 * 2 + t % 2;
    to += token % 8 * 2;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const uint8_t *from =
            a.kv.v + 2 * kv_region(a.kv, __shfl_sync(ALL_LANES, block, b), w.kv_head) + 8 * t;
        const uint32_t at = to + b / 4 * plan<HD>::PANEL_V + panel_chunk(dim, b % 4 * 2 + token / 8);
        const int left = n - b * CUDA_KV_BLOCK - token;
#pragma unroll
        for (int i = 0; i < HD / 32; i++) { /* 32 dimensions are 128 of these pieces */
            if (left >= 4)
                shared_copy<8>(at + i * 32 * 128, from + 1024 * i);
            else
                shared_put(at + i * 32 * 128, keep_four(*(const uint2 *)(from + 1024 * i), left));
        }
    }
}

/* FP8: 16 bytes a thread and block, AT_ONCE of those under way. Of heads of 64 a block is half of the
 * threads'.
 */
template <int HD> struct fp8_share {
    static const int BLOCKS_AT_ONCE = GROUP / HD, AT_ONCE = 4, N = BLOCKS / BLOCKS_AT_ONCE;
    static_assert(N % AT_ONCE == 0, "whole rounds");
    int t, first; /* the thread's 16 bytes of a block; of which block of BLOCKS_AT_ONCE */
    uint4 v[AT_ONCE];
    __device__ __forceinline__ fp8_share()
    {
        const int thread = thread_anew();
        t = thread % HD;
        first = thread / HD;
    }
    __device__ __forceinline__ int block_of(int i) const
    {
        return i * BLOCKS_AT_ONCE + first;
    }
    __device__ __forceinline__ void load(const struct cuda_kv &kv, const uint8_t *base, int block,
                                         int kv_head, int from)
    {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int number = __shfl_sync(ALL_LANES, block, block_of(from + i));
            v[i] = *(const uint4 *)(base + kv_region(kv, number, kv_head) + 16 * t);
        }
    }
};

[[maybe_unused]] static __device__ __forceinline__ uint4 halves(uint32_t first, uint32_t second)
{
    return make_uint4(e4m3_half_pair(first), e4m3_half_pair(first >> 16), e4m3_half_pair(second),
                      e4m3_half_pair(second >> 16));
}

/* 16 dimensions of a token, two chunks of f16. */
template <int HD>
static __device__ __forceinline__ void put_keys(const struct cuda_attention &a, const work &w, int block,
                                                uint32_t to)
{
    fp8_share<HD> mine;
    const int t = mine.t, token = t / 2 % 16, chunk = t / 32 % 2 * 4 + t % 2 * 2;
    to += t / 64 * plan<HD>::PANEL_K;
#pragma unroll
    for (int n = 0; n < mine.N; n += mine.AT_ONCE) {
        mine.load(a.kv, a.kv.k, block, w.kv_head, n);
#pragma unroll
        for (int i = 0; i < mine.AT_ONCE; i++) {
            const uint32_t at = to + mine.block_of(n + i) * CUDA_KV_BLOCK * 128;
            shared_put(at + panel_chunk(token, chunk), halves(mine.v[i].x, mine.v[i].y));
            shared_put(at + panel_chunk(token, chunk + 1), halves(mine.v[i].z, mine.v[i].w));
        }
    }
}

/* Eight tokens of two dimensions. */
template <int HD>
static __device__ __forceinline__ void put_values(const struct cuda_attention &a, const work &w, int block,
                                                  int n_key, uint32_t to)
{
    fp8_share<HD> mine;
    const int dim = mine.t / 2 * 2, eight = mine.t % 2;
#pragma unroll
    for (int n = 0; n < mine.N; n += mine.AT_ONCE) {
        mine.load(a.kv, a.kv.v, block, w.kv_head, n);
#pragma unroll
        for (int i = 0; i < mine.AT_ONCE; i++) {
            const int b = mine.block_of(n + i), left = n_key - b * CUDA_KV_BLOCK - 8 * eight;
            const uint32_t at = to + b / 4 * plan<HD>::PANEL_V;
            uint4 v = mine.v[i];
            if (left < 8)
                v = make_uint4(kv_keep_bytes(v.x, left), kv_keep_bytes(v.y, left),
                               kv_keep_bytes(v.z, left - 4), kv_keep_bytes(v.w, left - 4));
            shared_put(at + panel_chunk(dim, b % 4 * 2 + eight), halves(v.x, v.z));
            shared_put(at + panel_chunk(dim + 1, b % 4 * 2 + eight), halves(v.y, v.w));
        }
    }
}
