/* Weights of attention that are rounded to bf16, sixteen or more at a time. */
#ifndef NYB_KERNELS_CPU_SOFTMAX_AVX512_H
#define NYB_KERNELS_CPU_SOFTMAX_AVX512_H

#include <immintrin.h>

/* 2^x of what is rounded to bf16 next: 2^(x - floor(x)) by a polynomial of degree 4, 3.5e-6 off. NaN stays
 * NaN, -inf gives 0. */
static inline __m512 exp2_short(__m512 x)
{
    __m512 f = _mm512_reduce_ps(x, 0x09), y = _mm512_set1_ps(1.36703095e-02f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.17449978e-02f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.41604357e-01f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.92972922e-01f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.00000349f));
    return _mm512_scalef_ps(y, x); /* by 2^floor(x) */
}

/* sum and both elements of each pair. */
static inline __m512 add_pairs(__m512 sum, __m512bh pairs)
{
    return _mm512_dpbf16_ps(sum, pairs, (__m512bh)_mm512_set1_epi16(0x3f80)); /* times one */
}

#endif
