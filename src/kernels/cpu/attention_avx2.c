/* Attention for AVX2 and FMA: a vector of 16 floats is two registers, and bf16 is widened to floats, so
 * products and sums are fp32 throughout. */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/unroll.h"
#include "kernels/ops.h"

#define VEC_UNROLL UNROLL(16)

typedef struct {
    __m256 lo, hi;
} vec;

static inline vec vec_set(float x)
{
    return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline vec vec_load(const float *p)
{
    return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
static inline vec vec_scale(vec x, float by)
{
    __m256 b = _mm256_set1_ps(by);
    return (vec){_mm256_mul_ps(x.lo, b), _mm256_mul_ps(x.hi, b)};
}
static inline vec vec_add(vec a, vec b)
{
    return (vec){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
static inline vec vec_sub(vec a, vec b)
{
    return (vec){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

/* The second operand where either is NaN. */
static inline vec vec_max(vec a, vec b)
{
    return (vec){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
static inline float vec_max_lane(vec x)
{
    __m256 a = _mm256_max_ps(x.lo, x.hi);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}
static inline float vec_sum_lane(vec x)
{
    __m256 a = _mm256_add_ps(x.lo, x.hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* 2^x for x <= 0, as in attention_avx512.c: the same polynomial; results below 2^-126 become 0. */
static inline __m256 exp2_8(__m256 x)
{
    const __m256 least = _mm256_set1_ps(-126.0f);
    __m256 tiny = _mm256_cmp_ps(x, least, _CMP_LT_OQ);
    x = _mm256_max_ps(least, x);
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_sub_ps(x, n), y = _mm256_set1_ps(1.546144485e-04f);
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(1.340042800e-03f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(9.618056938e-03f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(5.550327152e-02f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(2.402265072e-01f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(6.931471825e-01f));
    y = _mm256_fmadd_ps(y, f, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    /* The product, not a sum of exponents: a NaN in y stays one whatever became of n. */
    return _mm256_andnot_ps(tiny, _mm256_mul_ps(y, _mm256_castsi256_ps(power)));
}
static inline vec vec_exp2(vec x)
{
    return (vec){exp2_8(x.lo), exp2_8(x.hi)};
}

/* 8 floats to the upper halves of their 32 bits, nearest even; NaN stays NaN. */
static inline __m256i round_bf16(__m256 x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    up = _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan));
    return _mm256_and_si256(up, _mm256_set1_epi32((int)0xffff0000u));
}

static inline vec vec_exp2_short(vec x)
{
    return vec_exp2(x);
}

/* 64 floats, rounded to bf16 and floats again, at `words`; returns sum and what was stored. */
static inline vec vec_store_rounded(uint32_t *words, const vec *x, vec sum)
{
    vec rounded[4];
    for (int i = 0; i < 4; i++) {
        __m256i lo = round_bf16(x[i].lo), hi = round_bf16(x[i].hi);
        rounded[i] = (vec){_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
        vec_store((float *)(void *)(words + 16 * i), rounded[i]);
    }
    return vec_add(sum, vec_add(vec_add(rounded[0], rounded[1]), vec_add(rounded[2], rounded[3])));
}

/* q stays as it is: keys are widened to fp32 anyway. */
#define VEC_ROUNDS_QUERY false
static void vec_query(uint32_t *words, const float *x, size_t d)
{
    memcpy(words, x, d * sizeof(*x));
}
static void vec_query_rounded(uint32_t *words, const float *x, size_t d)
{
    vec_query(words, x, d);
}
/* No integer keys on this level. */
static float vec_query_integers(uint32_t *words, const float *x, size_t d)
{
    vec_query(words, x, d);
    return 1.0f;
}
/* 32 e4m3 codes to bf16, exact, as lower and upper bytes. With the exponent's bias of 127 instead of 7, its
 * lowest bit and the mantissa are the code's low nibble, and the bits above follow from the high one; the
 * eight subnormals come from tables, and 0x7f is NaN. */
static inline void bf16_of_e4m3(__m256i code, __m256i *lower, __m256i *upper)
{
    const __m256i exponent = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(60, 61, 62, 63, 64, 65, 66, 67, 60, 61, 62, 63, 64, 65, 66, 67));
    const __m256i small_lower = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 0, -0x80, -0x40, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, 0));
    const __m256i small_upper =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 59, 59, 59, 60, 60, 60, 60, 0, 0, 0, 0, 0, 0, 0, 0));
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi8(0x7f));
    __m256i nibble = _mm256_and_si256(_mm256_srli_epi16(code, 4), _mm256_set1_epi8(15));
    __m256i low = _mm256_and_si256(_mm256_slli_epi16(code, 4), _mm256_set1_epi8(-16));
    __m256i high = _mm256_shuffle_epi8(exponent, nibble);
    __m256i is_small = _mm256_cmpgt_epi8(_mm256_set1_epi8(8), magnitude);
    __m256i is_nan = _mm256_cmpeq_epi8(magnitude, _mm256_set1_epi8(0x7f));
    *lower = _mm256_blendv_epi8(low, _mm256_shuffle_epi8(small_lower, magnitude), is_small);
    high = _mm256_blendv_epi8(high, _mm256_shuffle_epi8(small_upper, magnitude), is_small);
    high = _mm256_or_si256(high, _mm256_and_si256(code, _mm256_set1_epi8(-0x80)));
    *upper = _mm256_or_si256(high, is_nan);
}

/* n groups of 64 e4m3 bytes to 64 bf16 each, in the order of kv.h; `next` is prefetched. */
static void fp8_decode(uint8_t *dst, const uint8_t *src, size_t n, const uint8_t *next)
{
    for (size_t i = 0; i < n; i++, src += 64, next += 64, dst += 128) {
        __builtin_prefetch(next, 0, 2);
        for (size_t half = 0; half < 2; half++) {
            __m256i lower, upper;
            bf16_of_e4m3(_mm256_loadu_si256((const __m256i *)(const void *)(src + 32 * half)), &lower,
                         &upper);
            _mm256_storeu_si256((__m256i *)(void *)(dst + 32 * half), _mm256_unpacklo_epi8(lower, upper));
            _mm256_storeu_si256((__m256i *)(void *)(dst + 64 + 32 * half),
                                _mm256_unpackhi_epi8(lower, upper));
        }
    }
}

#include "kernels/cpu/attention_products_avx2.h"
/* in terms of these */
#include "kernels/cpu/attention_simd.h"

void attention_avx2(struct pool *pool, struct arena *scratch, const struct attention_args *a)
{
    static const struct attention_kernel kernel = {work_bytes, split, ATTENTION_ROWS};
    attention_run(pool, scratch, a, &kernel);
}
