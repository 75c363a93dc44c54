/* Around the tiles: rows of x to their operand forms, and sums to y. */
#include <immintrin.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

/* exp(x) as in gemm_rows_avx512.c; 2^n by adding n to the exponent field, which |x| <= 87 keeps normal. */
static __m256 exp_ps(__m256 x)
{
    x = _mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(-87.0f)), _mm256_set1_ps(87.0f));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x); /* ln 2 in two parts */
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
    __m256 e = _mm256_set1_ps(1.0f / 5040);
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0f / 720));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0f / 120));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0f / 24));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0f / 6));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(0.5f));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0f));
    e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(e), power));
}

/* Eight outputs of one row, before accumulation. */
static __m256 finish_half(const struct gemm_finish *f, size_t at)
{
    __m256 v = _mm256_mul_ps(_mm256_load_ps(f->sum + at), _mm256_set1_ps(f->scale));
    if (!f->gated)
        return v;
    __m256 up = _mm256_mul_ps(_mm256_load_ps(f->sum_up + at), _mm256_set1_ps(f->scale_up));
    __m256 e = exp_ps(_mm256_sub_ps(_mm256_setzero_ps(), v));
    return _mm256_mul_ps(_mm256_div_ps(v, _mm256_add_ps(e, _mm256_set1_ps(1.0f))), up);
}

void gemm_avx2_finish(const struct gemm_finish *f)
{
    float bias[WEIGHT_PANEL] = {0}, out[WEIGHT_PANEL];
    if (f->bias)
        memcpy(bias, f->bias, (size_t)f->n * sizeof(*bias));
    for (int row = 0; row < f->n_row; row++) {
        float *y = f->y + (size_t)row * (size_t)f->ldy;
        for (int h = 0; h < WEIGHT_PANEL; h += 8) {
            __m256 v = finish_half(f, (size_t)(row * WEIGHT_PANEL + h));
            if (f->bias)
                v = _mm256_add_ps(v, _mm256_loadu_ps(bias + h));
            if (f->accumulate && f->n == WEIGHT_PANEL)
                v = _mm256_add_ps(v, _mm256_loadu_ps(y + h));
            _mm256_storeu_ps(out + h, v);
        }
        for (int i = 0; f->accumulate && f->n < WEIGHT_PANEL && i < f->n; i++)
            out[i] += y[i];
        memcpy(y, out, (size_t)f->n * sizeof(*y));
    }
}

/* To bf16 in the upper half of each lane: nearest even, NaN kept. */
static __m256i round_bf16(__m256 v)
{
    __m256i u = _mm256_castps_si256(v);
    __m256i even = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(u, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_and_si256(_mm256_blendv_epi8(rounded, quiet, nan), _mm256_set1_epi32((int)0xffff0000u));
}

static float max_of(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
}

/* 16 elements to bytes in the order of struct operand; returns -12 times their sum. */
static int32_t quantize_group(const float *x, float factor, int8_t *q)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m128i word[2];
    for (int h = 0; h < 2; h++) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * h), _mm256_set1_ps(factor));
        v = _mm256_and_ps(v, _mm256_cmp_ps(v, v, _CMP_ORD_Q)); /* what is no number is zero */
        __m256i d = _mm256_permutevar8x32_epi32(_mm256_cvtps_epi32(v), order);
        word[h] = _mm_packs_epi32(_mm256_castsi256_si128(d), _mm256_extracti128_si256(d, 1));
    }
    _mm_storeu_si128((__m128i *)q, _mm_packs_epi16(word[0], word[1]));
    __m128i sum = _mm_madd_epi16(_mm_add_epi16(word[0], word[1]), _mm_set1_epi16(-12));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(sum);
}

/* Elements k .. k + 63 of a row, zero from r->k on, as ref/gemm_ref.c does it, to the same bits. */
static void quantize_block(const struct gemm_row *r, int k)
{
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    float x[I8_BLOCK] = {0}, amax[I8_BLOCK / FP4_GROUP], most = 0.0f;
    int left = r->k - k, n_group = (r->k_pad - k < I8_BLOCK ? r->k_pad - k : I8_BLOCK) / FP4_GROUP;
    if (left > 0)
        memcpy(x, r->x + k, (size_t)(left < I8_BLOCK ? left : I8_BLOCK) * sizeof(*x));
    for (int g = 0; g < n_group; g++) {
        __m256 a = _mm256_loadu_ps(x + g * FP4_GROUP), b = _mm256_loadu_ps(x + g * FP4_GROUP + 8);
        amax[g] = max_of(_mm256_max_ps(_mm256_and_ps(a, magnitude), _mm256_and_ps(b, magnitude)));
        most = amax[g] > most ? amax[g] : most;
    }
    float inverse = most >= I8_LEAST && most <= I8_MOST ? 127.0f / most : 0.0f;
    r->i8_scale[k / I8_BLOCK] = most * I8_SCALE;
    for (int g = 0; g < n_group; g++) {
        float ratio = most / amax[g]; /* at least 1, or NaN in a block of zeros */
        int finer = 0, at = k / FP4_GROUP + g;
        while (finer < I8_SHIFT_MAX && !(ratio < (float)(2 << finer)))
            finer++;
        r->i8_group[at].shift = I8_SHIFT_MAX - finer;
        r->i8_group[at].bias =
            quantize_group(x + g * FP4_GROUP, inverse * (float)(1 << finer), r->i8 + at * FP4_GROUP);
    }
}

/* Group g of the row to 16-bit integers, as struct operand says. The exponent is that of the largest value
 * and a little more: integers stay within 127 * 256, so that the upper byte does within 127. */
static void to_i16(const struct gemm_row *r, int g, __m256 a, __m256 b)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most2 = _mm256_max_epu32(_mm256_and_si256(_mm256_castps_si256(a), magnitude),
                                     _mm256_and_si256(_mm256_castps_si256(b), magnitude));
    __m128i most = _mm_max_epu32(_mm256_castsi256_si128(most2), _mm256_extracti128_si256(most2, 1));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, _MM_SHUFFLE(1, 0, 3, 2)));
    most = _mm_max_epu32(most, _mm_shuffle_epi32(most, _MM_SHUFFLE(2, 3, 0, 1)));
    uint32_t bits = (uint32_t)_mm_cvtsi128_si32(most), least, exponent = (bits + 0x20000) >> 23;
    memcpy(&least, &(float){I16_LEAST}, sizeof(least));
    bool finite = bits < 0x7f800000, some = finite && bits >= least;
    /* 2^14 / 2^e, and the inverse of that */
    uint32_t scale_bits = some ? (268 - exponent) << 23 : 0;
    uint32_t unit_bits = some ? (exponent - 14) << 23 : finite ? 0 : 0x7fc00000;
    __m256 scale = _mm256_castsi256_ps(_mm256_set1_epi32((int)scale_bits));
    memcpy(&r->i16_group[g].unit, &unit_bits, sizeof(unit_bits));
    __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(a, scale)),
            high = _mm256_cvtps_epi32(_mm256_mul_ps(b, scale));
    __m256i q = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    if (!some)
        q = _mm256_setzero_si256();
    _mm256_storeu_si256((__m256i *)(void *)(r->i16 + g * FP4_GROUP), q);

    __m256i sum2 = _mm256_madd_epi16(q, _mm256_set1_epi16(-12));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sum2), _mm256_extracti128_si256(sum2, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(1, 0, 3, 2)));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, _MM_SHUFFLE(2, 3, 0, 1)));
    r->i16_group[g].bias = _mm_cvtsi128_si32(sum);

    const __m256i order =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
    __m256i upper = _mm256_srai_epi16(_mm256_add_epi16(q, _mm256_set1_epi16(128)), 8);
    __m256i lower = _mm256_sub_epi16(q, _mm256_slli_epi16(upper, 8));
    __m256i bytes = _mm256_shuffle_epi8(_mm256_packs_epi16(upper, lower), order);
    _mm256_storeu_si256((__m256i *)(void *)(r->i16_bytes + 2 * g * FP4_GROUP),
                        _mm256_permute4x64_epi64(bytes, 0xd8));
}

void gemm_avx2_row(const struct gemm_row *r)
{
    for (int k = 0; k < r->k_pad; k += FP4_GROUP) {
        float piece[FP4_GROUP] = {0};
        int left = r->k - k;
        if (left > 0)
            memcpy(piece, r->x + k, (size_t)(left < FP4_GROUP ? left : FP4_GROUP) * sizeof(*piece));
        __m256 v[2] = {_mm256_loadu_ps(piece), _mm256_loadu_ps(piece + 8)};
        if (r->bf16) {
            __m256i b0 = round_bf16(v[0]), b1 = round_bf16(v[1]);
            __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(b0, 16), _mm256_srli_epi32(b1, 16));
            _mm256_storeu_si256((__m256i *)(r->bf16 + k), _mm256_permute4x64_epi64(packed, 0xd8));
            if (r->i16)
                to_i16(r, k / FP4_GROUP, v[0], v[1]);
            v[0] = _mm256_castsi256_ps(b0);
            v[1] = _mm256_castsi256_ps(b1);
        }
        if (r->f32) {
            _mm256_storeu_ps(r->f32 + k, v[0]);
            _mm256_storeu_ps(r->f32 + k + 8, v[1]);
        }
    }
    for (int k = 0; r->i8 && k < r->k_pad; k += I8_BLOCK)
        quantize_block(r, k);
}
