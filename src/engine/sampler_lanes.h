/* The few vector operations that the sampler's passes over a row are made of, at the width of the file that
 * includes this: 16, 8 or 4 floats.
 *
 * Whatever the width, a pass keeps 16 running values (LANES_STEP), of which value i takes the elements 16
 * apart, in LANES_COUNT vectors, and adds them up as one tree. Nothing is fused and nothing is estimated, so
 * the same bits come out at every width. */
#ifndef NYB_ENGINE_SAMPLER_LANES_H
#define NYB_ENGINE_SAMPLER_LANES_H

#include <immintrin.h>
#include <stdint.h>

#define LANES_STEP 16

#if defined(__AVX512F__)

#define LANES_WIDTH 16
typedef __m512 lanes_f;
typedef __mmask16 lanes_m;
#define lanes_load(p)      _mm512_loadu_ps(p)
#define lanes_store(p, v)  _mm512_storeu_ps(p, v)
#define lanes_all(x)       _mm512_set1_ps(x)
#define lanes_gt(a, b)     _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define lanes_ge(a, b)     _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ)
#define lanes_eq(a, b)     _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define lanes_max(v, m)    _mm512_max_ps(v, m)
#define lanes_keep(m, v)   _mm512_maskz_mov_ps(m, v)
#define lanes_but(m, less) ((lanes_m)((m) & ~(less)))
#define lanes_bits(m)      ((unsigned)(m))

#elif defined(__AVX2__)

#define LANES_WIDTH        8
typedef __m256 lanes_f;
typedef __m256 lanes_m;
#define lanes_load(p)      _mm256_loadu_ps(p)
#define lanes_store(p, v)  _mm256_storeu_ps(p, v)
#define lanes_all(x)       _mm256_set1_ps(x)
#define lanes_gt(a, b)     _mm256_cmp_ps(a, b, _CMP_GT_OQ)
#define lanes_ge(a, b)     _mm256_cmp_ps(a, b, _CMP_GE_OQ)
#define lanes_eq(a, b)     _mm256_cmp_ps(a, b, _CMP_EQ_OQ)
#define lanes_max(v, m)    _mm256_max_ps(v, m)
#define lanes_keep(m, v)   _mm256_and_ps(m, v)
#define lanes_but(m, less) _mm256_andnot_ps(less, m)
#define lanes_bits(m)      ((unsigned)_mm256_movemask_ps(m))

#else /* SSE2, which every x86-64 has */

#define LANES_WIDTH        4
typedef __m128 lanes_f;
typedef __m128 lanes_m;
#define lanes_load(p)      _mm_loadu_ps(p)
#define lanes_store(p, v)  _mm_storeu_ps(p, v)
#define lanes_all(x)       _mm_set1_ps(x)
#define lanes_gt(a, b)     _mm_cmpgt_ps(a, b)
#define lanes_ge(a, b)     _mm_cmpge_ps(a, b)
#define lanes_eq(a, b)     _mm_cmpeq_ps(a, b)
#define lanes_max(v, m)    _mm_max_ps(v, m) /* m where v is NaN, at every width */
#define lanes_keep(m, v)   _mm_and_ps(m, v) /* v where the mask is set, else 0  */
#define lanes_but(m, less) _mm_andnot_ps(less, m)
#define lanes_bits(m)      ((unsigned)_mm_movemask_ps(m))

#endif

#define LANES_COUNT (LANES_STEP / LANES_WIDTH)
typedef uint32_t lanes_u __attribute__((vector_size(4 * LANES_WIDTH)));

/* The arrays of LANES_COUNT vectors must become registers. */
#define LANES_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define LANES_EACH(v)                     \
    LANES_PRAGMA(clang loop unroll(full)) \
    for (int v = 0; v < LANES_COUNT; v++)
#else
#define LANES_EACH(v)           \
    LANES_PRAGMA(GCC unroll 16) \
    for (int v = 0; v < LANES_COUNT; v++)
#endif

/* Values 8 apart are added, then those 4 apart. */
static inline __m128 lanes_quarter(const lanes_f sum[LANES_COUNT])
{
#if LANES_WIDTH == 16
    __m256 half = _mm512_castps512_ps256(sum[0]) + _mm512_extractf32x8_ps(sum[0], 1);
    return _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
#elif LANES_WIDTH == 8
    __m256 half = sum[0] + sum[1];
    return _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
#else
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
#endif
}

/* The sum of the 16; the last four are added in fp64. */
static inline double lanes_sum(const lanes_f sum[LANES_COUNT])
{
    __m128 quarter = lanes_quarter(sum);
    __m128d pair = _mm_cvtps_pd(quarter) + _mm_cvtps_pd(_mm_movehl_ps(quarter, quarter));
    return pair[0] + pair[1];
}

/* 2^t for t <= 0: 2^k p(t - k) with k the nearest integer and p of degree 6, within 9e-9 of 2^r for |r| <=
 * 1/2 (the interpolation of (2^r - 1) / r in Chebyshev's points), 1e-7 with rounding; p(0) is 1 exactly. 0
 * below -125, where normal floats end, and for NaN. */
static inline lanes_f lanes_exp2(lanes_f t)
{
    const lanes_f magic =
        lanes_all(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    lanes_f shifted = t + magic;
    lanes_u k = (lanes_u)shifted << 23;
    lanes_f r = t - (shifted - magic);
    lanes_f p = r * lanes_all(0.000154614478f) + lanes_all(0.00133908668f);
    p = p * r + lanes_all(0.00961805694f);
    p = p * r + lanes_all(0.0555035695f);
    p = p * r + lanes_all(0.240226507f);
    p = p * r + lanes_all(0.693147182f);
    p = p * r + lanes_all(1.0f);
    return lanes_keep(lanes_ge(t, lanes_all(-125.0f)), (lanes_f)((lanes_u)p + k));
}

#endif
