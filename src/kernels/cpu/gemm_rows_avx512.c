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
        float *y = f->y + (size_t)row * (size_t)f->ldy;
        __m512 v = _mm512_mul_ps(_mm512_load_ps(f->sum + row * WEIGHT_PANEL), scale);
        if (f->gated) {
            __m512 up = _mm512_mul_ps(_mm512_load_ps(f->sum_up + row * WEIGHT_PANEL), scale_up);
            __m512 e = exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), v));
            v = _mm512_mul_ps(_mm512_div_ps(v, _mm512_add_ps(e, _mm512_set1_ps(1.0f))), up);
        } else if (f->bias) {
            v = _mm512_add_ps(v, bias);
        }
        if (f->accumulate)
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(in, y));
        _mm512_mask_storeu_ps(y, in, v);
    }
}

/* As ref/gemm_ref.c: scale = amax / 127 of a group; a group that is zero, not finite or subnormal becomes
 * zero. */
static void quantize_group(__m512 x, int8_t *q, float *scale, int32_t *bias)
{
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    float amax = _mm512_reduce_max_ps(_mm512_abs_ps(x));
    *scale = amax / 127.0f;
    float inverse = amax > 0.0f && amax <= 3.0e38f ? 127.0f / amax : 0.0f;
    if (!(inverse <= 3.0e38f))
        inverse = 0.0f;
    __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(inverse));
    __mmask16 is_number = _mm512_cmp_ps_mask(scaled, scaled, _CMP_ORD_Q); /* INT_MIN would overflow the sum */
    __m512i v = _mm512_maskz_cvtps_epi32(is_number, scaled);
    v = _mm512_permutexvar_epi32(order, v);
    _mm_storeu_si128((__m128i *)q, _mm512_cvtsepi32_epi8(v));
    *bias = -12 * _mm512_reduce_add_epi32(v);
}

void gemm_avx512_row(const struct gemm_row *r)
{
    for (int k = 0; k < r->k_pad; k += WEIGHT_PANEL) {
        int left = r->k - k;
        __mmask16 in = (__mmask16)(left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
        __m512 v = _mm512_maskz_loadu_ps(in, r->x + (left > 0 ? k : 0)), rounded = v;
        if (r->bf16) {
            __m256i half = (__m256i)_mm512_cvtneps_pbh(v);
            _mm256_storeu_si256((__m256i *)(r->bf16 + k), half);
            rounded = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        }
        _mm512_storeu_ps(r->f32 + k, rounded);
        if (r->i8)
            quantize_group(v, r->i8 + k, &r->i8_scale[k / FP4_GROUP], &r->i8_bias[k / FP4_GROUP]);
    }
}
