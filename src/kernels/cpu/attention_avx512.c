/* Attention for AVX-512 with VBMI and BF16: a vector of 16 floats is one register, vdpbf16ps does two
 * products a lane. */
#include <immintrin.h>
#include <math.h>

#include "kernels/cpu/fp8_avx512.h"
#include "kernels/cpu/softmax_avx512.h"
#include "kernels/cpu/unroll.h"
#include "kernels/kv.h"
#include "kernels/ops.h"

/* Register tiles: 16 sums in flight hide the latency of vdpbf16ps, and leave room for the units and the
 * broadcast words in 32 registers. */
#define VEC_TILE_SCORES 16
#define VEC_TILE_VALUES 16
#define VEC_ROWS(X)     X(8) X(4) X(2) X(1)
#define VEC_UNROLL      UNROLL(16)

typedef __m512 vec;

static inline vec vec_zero(void)
{
    return _mm512_setzero_ps();
}
static inline vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vec_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}
static inline vec vec_scale(vec x, float by)
{
    return _mm512_mul_ps(x, _mm512_set1_ps(by));
}
static inline vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
static inline vec vec_set(float x)
{
    return _mm512_set1_ps(x);
}
static inline vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

/* The second operand where either is NaN, so that a NaN in b is kept. */
static inline vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
static inline float vec_max_lane(vec x)
{
    return _mm512_reduce_max_ps(x);
}
static inline float vec_sum_lane(vec x)
{
    return _mm512_reduce_add_ps(x);
}

static inline vec vec_madd(vec acc, const uint32_t *word, const uint8_t *unit, bool bf16)
{
    __m512i b = _mm512_loadu_si512(unit);
    if (bf16)
        return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)*word), (__m512bh)b);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)*word)), _mm512_castsi512_ps(b), acc);
}

/* Only the first of each pair of bf16. */
static inline vec vec_madd_first(vec acc, const uint32_t *word, const uint8_t *unit)
{
    __m512i b = _mm512_maskz_loadu_epi16(0x55555555u, unit);
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)*word), (__m512bh)b);
}

/* 2^x for x <= 0: x = n + f with |f| <= 1/2, and 2^f by a polynomial of degree 6 that interpolates it in the
 * Chebyshev nodes: 2e-8 off, so that rounding dominates (1.2e-7 in all). NaN stays NaN, -inf gives 0. */
static inline vec vec_exp2(vec x)
{
    x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
    __m512 n = _mm512_cvtepi32_ps(_mm512_cvtps_epi32(x)); /* to nearest even */
    __m512 f = _mm512_sub_ps(x, n), y = _mm512_set1_ps(1.546144485e-04f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.340042800e-03f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(9.618056938e-03f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.550327152e-02f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.402265072e-01f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.931471825e-01f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

/* 64 floats to pairs of bf16 at `words`, nearest even; returns sum and the pairs of what was stored. */
static inline vec vec_store_rounded(uint32_t *words, const vec *x, vec sum)
{
    __m512bh a = _mm512_cvtne2ps_pbh(x[1], x[0]), b = _mm512_cvtne2ps_pbh(x[3], x[2]);
    _mm512_storeu_si512(words, (__m512i)a);
    _mm512_storeu_si512(words + 16, (__m512i)b);
    return add_pairs(add_pairs(sum, a), b);
}
static inline vec vec_exp2_short(vec x)
{
    return exp2_short(x);
}

/* q as the sum of two bf16, 2^-17 off at most: per pair of elements the pair of high parts, then the low
 * ones. */
static void vec_query(uint32_t *words, const float *x, size_t d)
{
    for (size_t i = 0; i < d; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        __m128i high = (__m128i)_mm256_cvtneps_pbh(v);
        __m256 kept = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16));
        __m128i low = (__m128i)_mm256_cvtneps_pbh(_mm256_sub_ps(v, kept));
        _mm_storeu_si128((__m128i *)(words + i), _mm_unpacklo_epi32(high, low));
        _mm_storeu_si128((__m128i *)(words + i + 4), _mm_unpackhi_epi32(high, low));
    }
}
/* q rounded: half the words, and half the work. */
#define VEC_ROUNDS_QUERY true
static void vec_query_rounded(uint32_t *words, const float *x, size_t d)
{
    for (size_t i = 0; i < d; i += 8)
        _mm_storeu_si128((__m128i *)(words + i / 2), (__m128i)_mm256_cvtneps_pbh(_mm256_loadu_ps(x + i)));
}
/* q as multiples of the unit that is returned, of which it has KV_I16_NORM in all. */
static float vec_query_integers(uint32_t *words, const float *x, size_t d)
{
    const __mmask16 last = d % 16 ? 0xff : 0xffff;
    __m512 square = _mm512_setzero_ps();
    for (size_t i = 0; i < d; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(i + 16 > d ? last : 0xffff, x + i);
        square = _mm512_fmadd_ps(v, v, square);
    }
    float norm = sqrtf(_mm512_reduce_add_ps(square));
    if (!(norm > 1e-15f && norm < INFINITY)) /* its squares may be too small or too large for floats */
        norm = (float)kv_norm(x, d);
    const float inverse = norm > (float)KV_I16_LEAST && norm < INFINITY ? KV_I16_NORM / norm : 0;
    for (size_t i = 0; i < d; i += 16) {
        const __mmask16 here = i + 16 > d ? last : 0xffff;
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(here, x + i), _mm512_set1_ps(inverse));
        _mm256_mask_storeu_epi16(words + i / 2, here, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
    }
    return norm < INFINITY ? norm / KV_I16_NORM : NAN;
}
/* Exact: what KV_I16_NORM is for. As the instruction itself, since the intrinsic wants sums of another type,
 * and gcc copies all of them back and forth for that, some through memory. */
static inline vec vec_madd_integers(vec acc, const uint32_t *word, const uint8_t *unit)
{
    __m512i k = _mm512_loadu_si512(unit), q = _mm512_set1_epi32((int)*word);
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(k), "v"(q));
    return acc;
}
/* Times the query's unit, then the keys': neither product is large where the score is not. */
static inline vec vec_of_integers(vec x, float of_query, const uint8_t *of_keys)
{
    x = vec_scale(_mm512_cvtepi32_ps(_mm512_castps_si512(x)), of_query);
    return _mm512_mul_ps(x, _mm512_loadu_ps(of_keys));
}
static inline vec vec_score(vec acc, const uint32_t *high, const uint32_t *low, const uint8_t *unit)
{
    __m512bh k = (__m512bh)_mm512_loadu_si512(unit);
    acc = _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)*low), k);
    return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_set1_epi32((int)*high), k);
}

#include "kernels/cpu/attention_products.h"
/* in terms of these */
#include "kernels/cpu/attention_simd.h"

void attention_avx512(struct pool *pool, struct arena *scratch, const struct attention_args *a)
{
    static const struct attention_kernel kernel = {work_bytes, split, ATTENTION_ROWS};
    attention_run(pool, scratch, a, &kernel);
}
