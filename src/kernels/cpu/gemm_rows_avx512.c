/* Around the tiles: rows of x to their operand forms, and sums to y. */
#include <immintrin.h>

#include "fp4/fp4.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

/* exp(x) for x clamped to +-88: 2^n by exponent, e^r on |r| <= ln2 / 2 by its series to r^7 (error < 2 ulp).
 */
static __m512 exp_ps(__m512 x)
{
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-88.0f)), _mm512_set1_ps(88.0f));
    __m512 n = _mm512_cvtepi32_ps(_mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f))));
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x); /* ln 2 in two parts */
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 e = _mm512_set1_ps(1.0f / 5040);
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f / 720));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f / 120));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f / 24));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f / 6));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(0.5f));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f));
    e = _mm512_fmadd_ps(e, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(e, n);
}

void gemm_avx512_finish(const struct gemm_finish *f)
{
    const __mmask16 in = (__mmask16)((1u << f->n) - 1);
    const __m512 scale = _mm512_set1_ps(f->scale), scale_up = _mm512_set1_ps(f->scale_up);
    const __m512 bias = f->bias ? _mm512_maskz_loadu_ps(in, f->bias) : _mm512_setzero_ps();
    for (int row = 0; row < f->n_row; row++) {
        __m512 v = _mm512_mul_ps(_mm512_load_ps(f->sum + row * WEIGHT_PANEL), scale);
        if (f->gated) {
            __m512 up = _mm512_mul_ps(_mm512_load_ps(f->sum_up + row * WEIGHT_PANEL), scale_up);
            __m512 e = exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), v));
            v = _mm512_mul_ps(_mm512_div_ps(v, _mm512_add_ps(e, _mm512_set1_ps(1.0f))), up);
        } else if (f->bias) {
            v = _mm512_add_ps(v, bias);
        }
        if (f->rounded) {
            __m256i half = (__m256i)_mm512_cvtneps_pbh(v);
            _mm256_mask_storeu_epi16(f->rounded + (size_t)row * (size_t)f->ldy, in, half);
            continue;
        }
        float *y = f->y + (size_t)row * (size_t)f->ldy;
        if (f->accumulate)
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(in, y));
        if (f->n == WEIGHT_PANEL)
            _mm512_storeu_ps(y, v);
        else
            _mm512_mask_storeu_ps(y, in, v);
    }
}

/* The four maxima of |x[0..3]|, by their bits: so what is no number is the largest. */
static __m128i block_maxima(const __m512 *x)
{
    __m512i v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm512_castps_si512(_mm512_abs_ps(x[i]));
    __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    __m512i m = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(m), _mm512_extracti32x8_epi32(m, 1));
    return _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* Bytes of x * factor, nearest even. */
static __m128i to_bytes(__m512 x, __m512 factor)
{
    return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, factor)));
}

/* -12 times the sum of each 16 of 64 bytes. */
static __m128i block_bias(__m512i q)
{
    __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(12), q);
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_CDAB));
    sum = _mm512_add_epi32(sum, _mm512_shuffle_epi32(sum, _MM_PERM_BADC));
    sum = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), sum);
    return _mm_sub_epi32(_mm_setzero_si128(), _mm512_castsi512_si128(sum));
}

/* Where the largest is infinite, no number, or too large: what no sum survives. */
static void overflow_block(struct i8_block *to)
{
    *to = (struct i8_block){.scale = 0x1p112f};
    for (int i = 0; i < I8_BLOCK; i++)
        to->q[i] = 127;
    for (int g = 0; g < I8_BLOCK / FP4_GROUP; g++)
        to->bias[g] = -12 * 127 * FP4_GROUP;
}

/* 64 elements of a row, as ref/gemm_ref.c does it. */
static void quantize_block(struct i8_block *to, const __m512 *x)
{
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
    __m128i bits = block_maxima(x);
    const __m128 amax = _mm_castsi128_ps(bits);
    bits = _mm_max_epu32(bits, _mm_shuffle_epi32(bits, _MM_SHUFFLE(1, 0, 3, 2)));
    bits = _mm_max_epu32(bits, _mm_shuffle_epi32(bits, _MM_SHUFFLE(2, 3, 0, 1)));
    const __m128 most = _mm_castsi128_ps(bits);
    if (!(_mm_cvtss_f32(most) <= I8_MOST)) {
        overflow_block(to);
        return;
    }
    __mmask8 fits = _mm_cmp_ps_mask(most, _mm_set1_ps(I8_LEAST), _CMP_GE_OQ);
    __m128 inverse = _mm_maskz_div_ps(fits, _mm_set1_ps(127.0f), most);
    /* exponent of most / amax; that of zero is large */
    __m128i exponent = _mm_srli_epi32(_mm_slli_epi32(_mm_castps_si128(_mm_div_ps(most, amax)), 1), 24);
    __m128i finer = _mm_min_epi32(_mm_sub_epi32(exponent, _mm_set1_epi32(127)), _mm_set1_epi32(I8_SHIFT_MAX));
    __m128i power = _mm_slli_epi32(_mm_add_epi32(finer, _mm_set1_epi32(127)), 23);
    __m512 factor = _mm512_castps128_ps512(_mm_mul_ps(inverse, _mm_castsi128_ps(power)));
    __m512i q = _mm512_castsi128_si512(to_bytes(x[0], _mm512_permutexvar_ps(_mm512_set1_epi32(0), factor)));
    q = _mm512_inserti32x4(q, to_bytes(x[1], _mm512_permutexvar_ps(_mm512_set1_epi32(1), factor)), 1);
    q = _mm512_inserti32x4(q, to_bytes(x[2], _mm512_permutexvar_ps(_mm512_set1_epi32(2), factor)), 2);
    q = _mm512_inserti32x4(q, to_bytes(x[3], _mm512_permutexvar_ps(_mm512_set1_epi32(3), factor)), 3);
    q = _mm512_shuffle_epi8(q, order);
    _mm512_storeu_si512(to->q, q);
    _mm_storeu_si128((__m128i *)(void *)to->bias, block_bias(q));
    _mm_storeu_si64(to->finer, _mm_cvtepi32_epi16(finer));
    to->scale = _mm_cvtss_f32(most) * I8_SCALE;
}

static void row_i8(const struct gemm_row *r)
{
    for (int k = 0; k < r->k_pad; k += I8_BLOCK) {
        __m512 x[4];
        for (int i = 0; i < 4; i++) {
            int left = r->k - k - 16 * i;
            __mmask16 in = (__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
            x[i] = _mm512_maskz_loadu_ps(in, r->x + (left > 0 ? k + 16 * i : 0));
        }
        quantize_block(&r->i8_block[k / I8_BLOCK], x);
    }
}

void gemm_avx512_row(const struct gemm_row *r)
{
    for (int k = 0; k < r->k_pad; k += WEIGHT_PANEL) {
        int left = r->k - k;
        __mmask16 in = (__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
        __m512 v = _mm512_maskz_loadu_ps(in, r->x + (left > 0 ? k : 0));
        if (r->bf16) {
            __m256i half = (__m256i)_mm512_cvtneps_pbh(v);
            _mm256_storeu_si256((__m256i *)(r->bf16 + k), half);
            v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
        if (r->f32)
            _mm512_storeu_ps(r->f32 + k, v);
    }
    if (r->i8_block)
        row_i8(r);
}
