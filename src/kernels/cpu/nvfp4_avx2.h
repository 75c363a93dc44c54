/* NVFP4 codes and scales to vectors of eight floats. */
#ifndef NYB_KERNELS_CPU_NVFP4_AVX2_H
#define NYB_KERNELS_CPU_NVFP4_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/tile_unroll.h"

/* e2m1 as bf16 has two bytes that matter: a table for each, interleaved to 16-bit halves. */
INLINE __m256i nvfp4_low_bytes(void)
{
    const __m128i table = _mm_setr_epi8(0, 0, -128, -64, 0, 64, -128, -64, 0, 0, -128, -64, 0, 64, -128, -64);
    return _mm256_broadcastsi128_si256(table);
}
INLINE __m256i nvfp4_high_bytes(void)
{
    const __m128i table = _mm_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, -0x80, -0x41, -0x41,
                                        -0x41, -0x40, -0x40, -0x40, -0x40);
    return _mm256_broadcastsi128_si256(table);
}

/* Codes as unsigned 12 + 2 * e2m1, at most 24: sums of eight products with bytes stay below 8 * 24 * 128 =
 * 24576, so that 16-bit additions are exact. The operand's bias takes the 12 away again. */
INLINE __m256i nvfp4_biased_codes(void)
{
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

INLINE __m256i nvfp4_low_nibbles(__m256i c)
{
    return _mm256_and_si256(c, _mm256_set1_epi8(15));
}
INLINE __m256i nvfp4_high_nibbles(__m256i c)
{
    return _mm256_and_si256(_mm256_srli_epi16(c, 4), _mm256_set1_epi8(15));
}

/* Block scales of eight rows, times 2^-8. */
INLINE __m256 nvfp4_scale_of_8(const uint8_t *s)
{
    __m128i half = _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)s)), 7);
    return _mm256_cvtph_ps(half);
}

/* The codes in the bytes of `nibbles`, eight rows of four, to floats. Rows 0 1 4 5 (w[0], w[2]) and 2 3 6 7
 * (w[1], w[3]) have a pair of lanes each, for k and k + 1 (w[0], w[1]) and for k + 4 and k + 5. */
INLINE void nvfp4_floats(__m256i nibbles, __m256i low, __m256i high, __m256 *w)
{
    const __m256i odd = _mm256_set1_epi32((int)0xffff0000u);
    __m256i l = _mm256_shuffle_epi8(low, nibbles), h = _mm256_shuffle_epi8(high, nibbles);
    __m256i a = _mm256_unpacklo_epi8(l, h), b = _mm256_unpackhi_epi8(l, h);
    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    w[1] = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
    w[2] = _mm256_castsi256_ps(_mm256_and_si256(a, odd));
    w[3] = _mm256_castsi256_ps(_mm256_and_si256(b, odd));
}

#endif
