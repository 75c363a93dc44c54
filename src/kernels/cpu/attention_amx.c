/* Attention over bf16 and FP8 caches on AMX, with the vector work of AVX-512. */
#include <immintrin.h>
#include <math.h>

#include "kernels/cpu/fp8_avx512.h"
#include "kernels/cpu/softmax_avx512.h"
#include "kernels/cpu/tile_amx.h"
#include "kernels/cpu/tile_config.h"
#include "kernels/cpu/tile_unroll.h"
#include "kernels/ops.h"

/* (dimensions / 32, {low, high}, 16 rows, 32): where a row's next 16 dimensions go. */
#define QUERY_LOW  0
#define QUERY_HIGH (TILE_BYTES / 2)

/* A row of q as the sum of two bf16, 2^-17 off at most; the last tile is filled up with zeros. */
static void rows_query(uint16_t *to, const float *x, int d)
{
    for (int i = 0; i < (d + 31) / 32 * 32; i += 16) {
        __mmask16 there = (__mmask16)(d - i >= 16 ? 0xffff : d - i > 0 ? (1 << (d - i)) - 1 : 0);
        __m512 v = _mm512_maskz_loadu_ps(there, x + i);
        __m256i high = (__m256i)_mm512_cvtneps_pbh(v);
        __m512 kept = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
        __m256i low = (__m256i)_mm512_cvtneps_pbh(_mm512_sub_ps(v, kept));
        uint16_t *at = to + i / 32 * TILE_BYTES + i % 32;
        _mm256_storeu_si256((__m256i *)(void *)(at + QUERY_LOW), low);
        _mm256_storeu_si256((__m256i *)(void *)(at + QUERY_HIGH), high);
    }
}

/* 16 scores of a row that sees `left` more keys: those of others become -inf. */
INLINE __m512 seen(__m512 score, int left)
{
    const __m512i key = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __mmask16 there = _mm512_cmplt_epi32_mask(key, _mm512_set1_epi32(left));
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), there, score);
}

INLINE int least_of(const int *sees, int n)
{
    int least = sees[0];
    for (int r = 1; r < n; r++)
        least = sees[r] < least ? sees[r] : least;
    return least;
}

/* Scores (keys / 16, 16 rows, 16 keys): the largest that each of R rows sees. */
INLINE void top_of(const float *score, int n_key, const int *sees, const int R, float *top)
{
    __m512 most[8];
    int key = 0, all = least_of(sees, R);
    UNROLL
    for (int r = 0; r < R; r++)
        most[r] = _mm512_set1_ps(-INFINITY);
    for (; key + 16 <= all; key += 16) {
        UNROLL
        for (int r = 0; r < R; r++)
            most[r] = _mm512_max_ps(_mm512_loadu_ps(score + 16 * key + 16 * r), most[r]);
    }
    for (; key < n_key; key += 16) {
        UNROLL
        for (int r = 0; r < R; r++)
            most[r] = _mm512_max_ps(seen(_mm512_loadu_ps(score + 16 * key + 16 * r), sees[r] - key), most[r]);
    }
    UNROLL
    for (int r = 0; r < R; r++)
        top[r] = _mm512_reduce_max_ps(most[r]);
}

/* Weights 2^(score * scale - top) of 32 keys from `key` on, rounded; returns sum with them. */
INLINE __m512 weigh_32(const float *score, int key, int left, bool all, __m512 scale, float top, uint16_t *to,
                       __m512 sum)
{
    __m512 a = _mm512_loadu_ps(score + 16 * key), b = _mm512_loadu_ps(score + 16 * key + TILE_SUMS);
    if (!all) {
        a = seen(a, left);
        b = seen(b, left - 16);
    }
    a = exp2_short(_mm512_fmsub_ps(a, scale, _mm512_set1_ps(top)));
    b = exp2_short(_mm512_fmsub_ps(b, scale, _mm512_set1_ps(top)));
    __m512bh pairs = _mm512_cvtne2ps_pbh(b, a);
    _mm512_storeu_si512(to + 16 * key, (__m512i)pairs);
    return add_pairs(sum, pairs);
}

/* All weights of R rows (keys / 32, 16 rows, 32 keys), and their sums. */
INLINE void weigh_of(const float *score, int n_key, const int *sees, const int R, __m512 scale,
                     const float *top, uint16_t *prob, float *l)
{
    __m512 sum[8];
    int key = 0, all = least_of(sees, R);
    UNROLL
    for (int r = 0; r < R; r++)
        sum[r] = _mm512_setzero_ps();
    for (; key + 32 <= all; key += 32) {
        UNROLL
        for (int r = 0; r < R; r++)
            sum[r] = weigh_32(score + 16 * r, key, 0, true, scale, top[r], prob + 32 * r, sum[r]);
    }
    for (; key < n_key; key += 32) {
        UNROLL
        for (int r = 0; r < R; r++)
            sum[r] =
                weigh_32(score + 16 * r, key, sees[r] - key, false, scale, top[r], prob + 32 * r, sum[r]);
    }
    UNROLL
    for (int r = 0; r < R; r++)
        l[r] = _mm512_reduce_add_ps(sum[r]);
}

static void rows_top(const float *score, int n_key, const int *sees, int n, float *top)
{
    int r = 0;
    for (; r + 8 <= n; r += 8)
        top_of(score + 16 * r, n_key, sees + r, 8, top + r);
    for (; r < n; r++)
        top_of(score + 16 * r, n_key, sees + r, 1, top + r);
}

static void rows_weigh(const float *score, int n_key, const int *sees, int n, float scale, const float *top,
                       uint16_t *prob, float *l)
{
    const __m512 by = _mm512_set1_ps(scale);
    int r = 0;
    for (; r + 8 <= n; r += 8)
        weigh_of(score + 16 * r, n_key, sees + r, 8, by, top + r, prob + 32 * r, l + r);
    for (; r < n; r++)
        weigh_of(score + 16 * r, n_key, sees + r, 1, by, top + r, prob + 32 * r, l + r);
}

#include "kernels/cpu/attention_tiles.h" /* in terms of the above */

void attention_amx(struct pool *pool, struct arena *scratch, const struct attention_args *a)
{
    static const struct attention_kernel kernel = {tiles_work_bytes, tiles_split, UNIT_ROWS};
    if (a->kv->type == KV_F32)
        attention_avx512(pool, scratch, a);
    else
        attention_run(pool, scratch, a, &kernel);
}
