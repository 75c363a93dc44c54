/* BF16, FP8, F16 and F32 weights on AVX2, with fp32 operands: each lane of each output is one chain of fma.
 */
#include <immintrin.h>

#include "kernels/cpu/tile_avx2.h"
#include "kernels/gemm_kernels.h"

/* What one decoding step takes: this much of K, in this many bytes of a panel. */
INLINE int unit_k(const enum weight_type type)
{
    return type == WEIGHT_FP8 ? 4 : type == WEIGHT_BF16 ? 2 : 1;
}
INLINE int unit_bytes(const enum weight_type type)
{
    return type == WEIGHT_F16 ? 32 : 64;
}

/* A step of BF16, F16 or F32 for eight rows: one vector for each element of K. */
INLINE void step_rows(const enum weight_type type, const int T, const uint8_t *unit, int h,
                      const float *const *x, int k, __m256 *sum)
{
    __m256 w[2];
    if (type == WEIGHT_F32) {
        w[0] = _mm256_loadu_ps((const float *)(const void *)unit + 8 * h);
    } else if (type == WEIGHT_F16) {
        w[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(unit + 16 * h)));
    } else {
        __m256i pair = _mm256_loadu_si256((const __m256i *)(unit + 32 * h));
        w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
        w[1] = _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32((int)0xffff0000u)));
    }
    UNROLL
    for (int j = 0; j < unit_k(type); j++) {
        UNROLL
        for (int i = 0; i < T; i++)
            sum[i] = _mm256_fmadd_ps(w[j], _mm256_broadcast_ss(x[i] + k + j), sum[i]);
        KEEP_ORDER();
    }
}

/* e4m3 bytes in the upper halves of 16-bit lanes to fp16 bits, which are the value times 2^-8. */
INLINE __m256i fp8_to_f16(__m256i raised)
{
    return _mm256_and_si256(_mm256_srai_epi16(raised, 1), _mm256_set1_epi16((short)0xbf80u));
}

/* A step of FP8: rows 0..3 in sum[2i], 4..7 in sum[2i + 1], each row in a pair of lanes for k and k + 1. */
INLINE void step_fp8(const int T, const uint8_t *unit, int h, const float *const *x, int k, __m256 *sum)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(unit + 32 * h)), zero = _mm256_setzero_si256();
    UNROLL
    for (int j = 0; j < 2; j++) {
        __m256i f16 = fp8_to_f16(j ? _mm256_unpackhi_epi8(zero, v) : _mm256_unpacklo_epi8(zero, v));
        __m256 w0 = _mm256_cvtph_ps(_mm256_castsi256_si128(f16));
        __m256 w1 = _mm256_cvtph_ps(_mm256_extracti128_si256(f16, 1));
        UNROLL
        for (int i = 0; i < T; i++) {
            __m256 xv = broadcast_pair(x[i] + k + 2 * j);
            sum[2 * i] = _mm256_fmadd_ps(w0, xv, sum[2 * i]);
            sum[2 * i + 1] = _mm256_fmadd_ps(w1, xv, sum[2 * i + 1]);
        }
    }
}

INLINE void dense_tile(const enum weight_type type, const struct gemm_tile *t, int p, const int first_half,
                       const int T, const int HALVES)
{
    const int each = type == WEIGHT_FP8 ? 2 : 1; /* sums of a row and half */
    const float *x[4];
    const uint8_t *unit = t->panel[p];
    __m256 sum[MAX_SUM];
    UNROLL
    for (int i = 0; i < T; i++)
        x[i] = t->x[i];
    UNROLL
    for (int i = 0; i < each * T * HALVES; i++)
        sum[i] = _mm256_setzero_ps();
    for (int k = 0; k < t->k; k += unit_k(type), unit += unit_bytes(type)) {
        if (first_half == 0)
            _mm_prefetch((const char *)unit + PREFETCH_AHEAD, _MM_HINT_T0);
        UNROLL
        for (int h = 0; h < HALVES; h++) {
            if (type == WEIGHT_FP8)
                step_fp8(T, unit, first_half + h, x, k, sum + each * T * h);
            else
                step_rows(type, T, unit, first_half + h, x, k, sum + each * T * h);
        }
    }
    UNROLL
    for (int h = 0; h < HALVES; h++) {
        UNROLL
        for (int i = 0; i < T; i++) {
            __m256 rows = sum[each * (T * h + i)];
            if (type == WEIGHT_FP8) { /* join pairs: rows 0 1 4 5 | 2 3 6 7, put in order */
                rows = _mm256_hadd_ps(rows, sum[each * (T * h + i) + 1]);
                rows = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(rows), 0xd8));
                rows = _mm256_mul_ps(rows, _mm256_set1_ps(256.0f));
            }
            _mm256_store_ps(sum_at(t, p, i, first_half + h), rows);
        }
    }
}

/* Both halves of a panel for up to four rows: eight chains, as many as hide the latency of fma. */
#define DENSE_TILE(type, t)                  \
    for (int p = 0; p < (t)->n_panel; p++) { \
        switch ((t)->n_row) {                \
        case 1:                              \
            dense_tile(type, t, p, 0, 1, 2); \
            break;                           \
        case 2:                              \
            dense_tile(type, t, p, 0, 2, 2); \
            break;                           \
        case 3:                              \
            dense_tile(type, t, p, 0, 3, 2); \
            break;                           \
        default:                             \
            dense_tile(type, t, p, 0, 4, 2); \
        }                                    \
    }

void gemm_avx2_bf16_f32(const struct gemm_tile *t)
{
    DENSE_TILE(WEIGHT_BF16, t)
}

#define TILE_FP8(t, p, h, T, H) dense_tile(WEIGHT_FP8, t, p, h, T, H)

void gemm_avx2_fp8_f32(const struct gemm_tile *t)
{
    AVX2_TILE(TILE_FP8, t)
}

void gemm_avx2_f16_f32(const struct gemm_tile *t)
{
    DENSE_TILE(WEIGHT_F16, t)
}

void gemm_avx2_f32_f32(const struct gemm_tile *t)
{
    DENSE_TILE(WEIGHT_F32, t)
}
