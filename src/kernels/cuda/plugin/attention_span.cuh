/* A span: the keys and values that a warp multiplies at once, as they lie in the cache, in vectors of 16
 * bytes that nobody reads twice. Of bf16 it is one cache block of 16 keys, of FP8 two: the number of TILES of
 * the matrix instruction that it makes.
 *
 * Row g of tile t is key 4 * TILES * (g / 2) + 4 * t + g % 2 of the span, row g + 8 the second after it: so
 * lane c of a group of four has, transposed, the weights of keys 4 * TILES * c to 4 * TILES * (c + 1) - 1,
 * which lie side by side in a vector of values. */
#pragma once

#include "kernels/cuda/plugin/attention_number.cuh"

template <int TYPE> struct span {
    static const int TILES = TYPE == CUDA_KV_FP8 ? 2 : 1, BLOCKS = TILES, KEYS = TILES * CUDA_KV_BLOCK;
    static __device__ __forceinline__ int key_of_row(int tile, int g)
    {
        return 4 * TILES * (g / 2) + 4 * tile + g % 2;
    }
    static __device__ __forceinline__ int key_of_lane(int c)
    {
        return 4 * TILES * c;
    }
};

/* Keys of rows g and g + 8 of each tile. Of FP8, heads of 32 have vectors of eight bytes. */
template <int HD, int TYPE> struct span_keys;

template <int HD> struct span_keys<HD, CUDA_KV_BF16> {
    uint4 v[HD / 32][2];
    /* region: of the block that has this lane's rows (kv_region) */
    __device__ __forceinline__ void load(const uint8_t *base, size_t region, int g, int c)
    {
        const uint8_t *from =
            base + 2 * (region + (size_t)(span<CUDA_KV_BF16>::key_of_row(0, g) * 32 + 8 * c));
#pragma unroll
        for (int b = 0; b < HD / 32; b++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                v[b][r] = __ldcs((const uint4 *)(from + (b * CUDA_KV_BLOCK + 2 * r) * 64));
    }
    /* Key j of the span is `fresh` instead, [HD] in shared memory as the cache has it. */
    __device__ __forceinline__ void put(int j, const uint8_t *fresh, int g, int c)
    {
#pragma unroll
        for (int b = 0; b < HD / 32; b++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (span<CUDA_KV_BF16>::key_of_row(0, g) + 2 * r == j)
                    v[b][r] = *(const uint4 *)(fresh + 2 * (32 * b + 8 * c));
    }
    /* The dimensions of a query that meet them: vector i of a lane. */
    static __device__ __forceinline__ int query_at(int i, int c)
    {
        return 32 * i + 8 * c;
    }
    template <int NT>
    __device__ __forceinline__ void score(float (&s)[1][NT][4], const uint4 (&q)[NT][HD / 32]) const
    {
#pragma unroll
        for (int b = 0; b < HD / 32; b++) {
            const uint4 u = v[b][0], w = v[b][1];
            const uint32_t low[4] = {u.x, w.x, u.y, w.y}, high[4] = {u.z, w.z, u.w, w.w};
#pragma unroll
            for (int t = 0; t < NT; t++) {
                mma_bf16(s[0][t], low, q[t][b].x, q[t][b].y);
                mma_bf16(s[0][t], high, q[t][b].z, q[t][b].w);
            }
        }
    }
};

template <int HD> struct span_keys<HD, CUDA_KV_FP8> {
    static const int WORDS = HD % 64 ? 2 : 4, N = HD / (16 * WORDS); /* a vector; vectors of a row and lane */
    uint32_t v[2][N][2][WORDS];
    /* a row's 32 dimensions of the block lie side by side: two lanes', or those of all four */
    static __device__ __forceinline__ int first_of(int c)
    {
        return WORDS == 4 ? c / 2 : 0;
    }
    static __device__ __forceinline__ int at_of(int c)
    {
        return WORDS == 4 ? 16 * (c % 2) : 8 * c;
    }
    static __device__ __forceinline__ void take(uint32_t (&to)[WORDS], const uint8_t *from)
    {
        if (WORDS == 4) {
            const uint4 x = *(const uint4 *)from;
            to[0] = x.x, to[1] = x.y, to[WORDS - 2] = x.z, to[WORDS - 1] = x.w;
        } else {
            const uint2 x = *(const uint2 *)from;
            to[0] = x.x, to[1] = x.y;
        }
    }
    __device__ __forceinline__ void load(const uint8_t *base, size_t region, int g, int c)
    {
        const int b = first_of(c), at = at_of(c);
#pragma unroll
        for (int tile = 0; tile < 2; tile++)
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int token = span<CUDA_KV_FP8>::key_of_row(tile, g) % CUDA_KV_BLOCK + 2 * r;
                    const uint8_t *from =
                        base + region + (size_t)(((2 * i + b) * CUDA_KV_BLOCK + token) * 32 + at);
                    uint32_t(&to)[WORDS] = v[tile][i][r];
                    if (WORDS == 4) {
                        const uint4 x = __ldcs((const uint4 *)from);
                        to[0] = x.x, to[1] = x.y, to[WORDS - 2] = x.z, to[WORDS - 1] = x.w;
                    } else {
                        const uint2 x = __ldcs((const uint2 *)from);
                        to[0] = x.x, to[1] = x.y;
                    }
                }
    }
    __device__ __forceinline__ void put(int j, const uint8_t *fresh, int g, int c)
    {
#pragma unroll
        for (int tile = 0; tile < 2; tile++)
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (span<CUDA_KV_FP8>::key_of_row(tile, g) + 2 * r == j)
                        take(v[tile][i][r], fresh + (2 * i + first_of(c)) * 32 + at_of(c));
    }
    static __device__ __forceinline__ int query_at(int i, int c)
    {
        return WORDS == 4 ? 64 * (i / 2) + 16 * c + 8 * (i % 2) : 8 * c;
    }
    template <int NT>
    __device__ __forceinline__ void score(float (&s)[2][NT][4], const uint4 (&q)[NT][HD / 32]) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int k = 0; k < WORDS; k++)
#pragma unroll
                for (int tile = 0; tile < 2; tile++) {
                    const uint32_t x = v[tile][i][0][k], y = v[tile][i][1][k];
                    const uint32_t a[4] = {e4m3_half_pair(x), e4m3_half_pair(y), e4m3_half_pair(x >> 16),
                                           e4m3_half_pair(y >> 16)};
#pragma unroll
                    for (int t = 0; t < NT; t++) {
                        const uint4 &of = q[t][WORDS / 2 * i + k / 2];
                        mma_half(s[tile][t], a, k % 2 ? of.z : of.x, k % 2 ? of.w : of.y);
                    }
                }
    }
};

/* Values of dimensions 2g and 2g + 1 of each 16, of this lane's keys. */
template <int HD, int TYPE> struct span_values {
    uint4 v[HD / 16];
    /* region: of the block that has this lane's keys */
    __device__ __forceinline__ void load(const uint8_t *base, size_t region, int g, int c)
    {
        const int width = TYPE == CUDA_KV_FP8 ? 1 : 2, first = span<TYPE>::key_of_lane(c) % CUDA_KV_BLOCK;
        const uint8_t *from = base + (region + (size_t)(g * 32 + 2 * first)) * width;
#pragma unroll
        for (int b = 0; b < HD / 16; b++)
            v[b] = __ldcs((const uint4 *)(from + 256 * b * width));
    }
    /* Keys of this lane from the n-th on are not there: see kv_keep. */
    __device__ __forceinline__ void keep(int n)
    {
#pragma unroll
        for (int b = 0; b < HD / 16; b++)
            if (TYPE == CUDA_KV_FP8)
                v[b] = make_uint4(kv_keep_bytes(v[b].x, n), kv_keep_bytes(v[b].y, n),
                                  kv_keep_bytes(v[b].z, n - 4), kv_keep_bytes(v[b].w, n - 4));
            else
                v[b] = kv_keep(v[b], n);
    }
    /* The value of this lane's t-th key, if it has so many, is `fresh` instead, as key's. */
    __device__ __forceinline__ void put(int t, const uint8_t *fresh, int g)
    {
        const int width = TYPE == CUDA_KV_FP8 ? 1 : 2, of_word = 4 / width;
        if (t < 0 || t >= 4 * span<TYPE>::TILES)
            return;
        const int shift = t % of_word * 8 * width;
        const uint32_t mask = (width == 1 ? 0xffu : 0xffffu) << shift;
        const uint32_t first = t < of_word ? mask : 0u, second = mask ^ first;
#pragma unroll
        for (int b = 0; b < HD / 16; b++) {
            const uint8_t *from = fresh + (16 * b + 2 * g) * width;
            const uint32_t both = width == 1 ? *(const uint16_t *)from : *(const uint32_t *)from;
            const uint32_t even = (width == 1 ? both & 0xffu : both & 0xffffu) << shift,
                           odd = (both >> 8 * width) << shift;
            /* bf16: x and y are the first dimension; e4m3: x and z */
            v[b].x = (v[b].x & ~first) | (even & first);
            v[b].w = (v[b].w & ~second) | (odd & second);
            if (width == 1) {
                v[b].y = (v[b].y & ~first) | (odd & first);
                v[b].z = (v[b].z & ~second) | (even & second);
            } else {
                v[b].y = (v[b].y & ~second) | (even & second);
                v[b].z = (v[b].z & ~first) | (odd & first);
            }
        }
    }
    /* o += weights * values. p: of each tile and each eight heads, as pairs, transposed */
    template <int NT>
    __device__ __forceinline__ void add(float (&o)[NT][HD / 16][4],
                                        const uint32_t (&p)[span<TYPE>::TILES][NT][2]) const
    {
#pragma unroll
        for (int b = 0; b < HD / 16; b++)
#pragma unroll
            for (int tile = 0; tile < span<TYPE>::TILES; tile++) {
                const uint32_t x = tile ? v[b].z : v[b].x, y = tile ? v[b].w : v[b].y;
                const uint32_t bf16[4] = {v[b].x, v[b].z, v[b].y, v[b].w};
                const uint32_t half[4] = {e4m3_half_pair(x), e4m3_half_pair(y), e4m3_half_pair(x >> 16),
                                          e4m3_half_pair(y >> 16)};
#pragma unroll
                for (int t = 0; t < NT; t++)
                    if (TYPE == CUDA_KV_FP8)
                        mma_half(o[t][b], half, p[tile][t][0], p[tile][t][1]);
                    else
                        mma_bf16(o[t][b], bf16, p[tile][t][0], p[tile][t][1]);
            }
    }
};
