/* NVFP4 codes and scales to vectors of eight floats. */
#ifndef NYB_KERNELS_CPU_NVFP4_AVX2_H
#define NYB_KERNELS_CPU_NVFP4_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/tile_avx2.h"
#include "kernels/weight_layout.h"

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

/* The codes of a group, eight rows, through a table of bytes: a vector for each quad of k. */
INLINE void nvfp4_bytes(const uint8_t *codes, __m256i table, __m256i *quad)
{
    UNROLL
    for (int z = 0; z < 2; z++) {
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 64 * z));
        quad[2 * z] = _mm256_shuffle_epi8(table, nvfp4_low_nibbles(c));
        quad[2 * z + 1] = _mm256_shuffle_epi8(table, nvfp4_high_nibbles(c));
    }
}

/* Block scales of eight rows, times 2^-8. */
INLINE __m256 nvfp4_scale_of_8(const uint8_t *s)
{
    __m128i half = _mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)s)), 7);
    return _mm256_cvtph_ps(half);
}

/* Both lines of a group's codes, so many bytes before they are read. */
INLINE void nvfp4_prefetch_group(const uint8_t *codes)
{
    _mm_prefetch((const char *)codes + PREFETCH_AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)codes + PREFETCH_AHEAD + 64, _MM_HINT_T0);
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

/* Kernels of integers take a code as twice e2m1: the unit of their sums. */
#define NVFP4_INTEGER_UNIT (0.5f * NVFP4_SCALE_UNIT)

/* Their sums of a tile of T rows, [HALVES][T], to where they go. */
INLINE void nvfp4_store_tile(const struct gemm_tile *t, int p, const int first_half, const int T,
                             const int HALVES, const __m256 *sum)
{
    UNROLL
    for (int h = 0; h < HALVES; h++) {
        UNROLL
        for (int i = 0; i < T; i++)
            _mm256_store_ps(sum_at(t, p, i, first_half + h),
                            _mm256_mul_ps(sum[T * h + i], _mm256_set1_ps(NVFP4_INTEGER_UNIT)));
    }
}

/* Their sums of a block, (rows, 2, 8), to those of panel p. */
INLINE void nvfp4_store_block(const struct gemm_block *b, int p, float (*sum)[2][8])
{
    float *to = b->sum + (size_t)p * GEMM_BLOCK_ROW * WEIGHT_PANEL;
    for (int i = 0; i < b->n_row; i++) {
        for (int h = 0; h < 2; h++)
            _mm256_store_ps(to + i * WEIGHT_PANEL + 8 * h,
                            _mm256_mul_ps(_mm256_load_ps(sum[i][h]), _mm256_set1_ps(NVFP4_INTEGER_UNIT)));
    }
}

#endif
