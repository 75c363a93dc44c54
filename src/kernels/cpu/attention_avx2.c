/* Attention for AVX2 and FMA: a vector of 16 floats is two registers, and a pair of bf16 is spread to two
 * floats by a shift and a mask, so products and sums are fp32 throughout. */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/unroll.h"
#include "kernels/ops.h"

/* Register tiles: 4 vectors are 8 of the 16 registers. */
#define VEC_TILE_SCORES 4
#define VEC_TILE_VALUES 4
#define VEC_ROWS(X)     X(4) X(2) X(1)
#define VEC_UNROLL      UNROLL(4)

typedef struct {
    __m256 lo, hi;
} vec;

static inline vec vec_set(float x)
{
    return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline vec vec_zero(void)
{
    return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()};
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

static inline __m256 first_of(__m256i pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
static inline __m256 second_of(__m256i pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u)));
}

static inline vec vec_madd_first(vec acc, const uint32_t *word, const uint8_t *unit)
{
    __m256 a = first_of(_mm256_set1_epi32((int)*word));
    acc.lo = _mm256_fmadd_ps(a, first_of(_mm256_loadu_si256((const __m256i *)unit)), acc.lo);
    acc.hi = _mm256_fmadd_ps(a, first_of(_mm256_loadu_si256((const __m256i *)unit + 1)), acc.hi);
    return acc;
}

static inline vec vec_madd(vec acc, const uint32_t *word, const uint8_t *unit, bool bf16)
{
    __m256i w = _mm256_set1_epi32((int)*word);
    if (!bf16) {
        acc.lo = _mm256_fmadd_ps(_mm256_castsi256_ps(w), _mm256_loadu_ps((const float *)unit), acc.lo);
        acc.hi = _mm256_fmadd_ps(_mm256_castsi256_ps(w), _mm256_loadu_ps((const float *)unit + 8), acc.hi);
        return acc;
    }
    acc = vec_madd_first(acc, word, unit);
    acc.lo = _mm256_fmadd_ps(second_of(w), second_of(_mm256_loadu_si256((const __m256i *)unit)), acc.lo);
    acc.hi = _mm256_fmadd_ps(second_of(w), second_of(_mm256_loadu_si256((const __m256i *)unit + 1)), acc.hi);
    return acc;
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

/* The upper halves of 2 x 8 words, packed in order. */
static inline __m256i pack_upper(__m256i lo, __m256i hi)
{
    __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(lo, 16), _mm256_srli_epi32(hi, 16));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

static inline vec vec_exp2_short(vec x)
{
    return vec_exp2(x);
}

/* 64 floats to bf16 at p; returns sum and what was stored. */
static inline vec vec_store_bf16(uint16_t *p, const vec *x, vec sum)
{
    vec rounded[4];
    for (int i = 0; i < 4; i++) {
        __m256i lo = round_bf16(x[i].lo), hi = round_bf16(x[i].hi);
        _mm256_storeu_si256((__m256i *)(p + 16 * i), pack_upper(lo, hi));
        rounded[i] = (vec){_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
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
static inline vec vec_score(vec acc, const uint32_t *first, const uint32_t *second, const uint8_t *unit)
{
    __m256 a = _mm256_castsi256_ps(_mm256_set1_epi32((int)*first));
    __m256 b = _mm256_castsi256_ps(_mm256_set1_epi32((int)*second));
    __m256i lo = _mm256_loadu_si256((const __m256i *)unit),
            hi = _mm256_loadu_si256((const __m256i *)unit + 1);
    acc.lo = _mm256_fmadd_ps(b, second_of(lo), _mm256_fmadd_ps(a, first_of(lo), acc.lo));
    acc.hi = _mm256_fmadd_ps(b, second_of(hi), _mm256_fmadd_ps(a, first_of(hi), acc.hi));
    return acc;
}

/* 16 e4m3 codes in 16-bit lanes to bf16, exact: magnitudes move up 4 bits and the exponent's bias from 7 to
 * 127; the eight subnormals come from a table, and 0x7f is NaN. */
static inline __m256i bf16_of_e4m3(__m256i code)
{
    const __m256i subnormal = _mm256_broadcastsi128_si256(_mm_setr_epi16(
        0, 118 << 7, 119 << 7, 119 << 7 | 0x40, 120 << 7, 120 << 7 | 0x20, 120 << 7 | 0x40, 120 << 7 | 0x60));
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(code, _mm256_set1_epi16(0x80)), 8);
    __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), _mm256_set1_epi16(120 << 7));
    __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
    normal = _mm256_or_si256(normal, _mm256_and_si256(nan, _mm256_set1_epi16(0x7fc0)));
    /* bytes 2m and 2m + 1 of the table: indices m * 0x0202 + 0x0100 */
    __m256i index =
        _mm256_add_epi16(_mm256_mullo_epi16(magnitude, _mm256_set1_epi16(0x0202)), _mm256_set1_epi16(0x0100));
    __m256i small = _mm256_shuffle_epi8(subnormal, index);
    __m256i is_small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
    return _mm256_or_si256(sign, _mm256_blendv_epi8(normal, small, is_small));
}

/* n groups of 64 e4m3 bytes to 64 bf16 each, in the order of kv.h; `next` is prefetched. */
static void fp8_decode(uint8_t *dst, const uint8_t *src, size_t n, const uint8_t *next)
{
    for (size_t i = 0; i < n; i++) {
        __builtin_prefetch(next + 64 * i, 0, 2);
        for (size_t lane = 0; lane < 4; lane++) {
            __m128i code = _mm_loadu_si128((const __m128i *)(src + 64 * i + 16 * lane));
            __m256i b = bf16_of_e4m3(_mm256_cvtepu8_epi16(code));
            _mm_storeu_si128((__m128i *)(dst + 128 * i + 16 * lane), _mm256_castsi256_si128(b));
            _mm_storeu_si128((__m128i *)(dst + 128 * i + 64 + 16 * lane), _mm256_extracti128_si256(b, 1));
        }
    }
}

#include "kernels/cpu/attention_simd.h"

void attention_avx2(struct pool *pool, struct arena *scratch, const struct attention_args *a)
{
    static const struct attention_kernel kernel = {work_bytes, split};
    attention_run(pool, scratch, a, &kernel);
}
