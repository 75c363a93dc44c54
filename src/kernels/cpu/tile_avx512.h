/* Shared by the AVX-512 tile kernels. */
#ifndef NYB_KERNELS_CPU_TILE_AVX512_H
#define NYB_KERNELS_CPU_TILE_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/tile_unroll.h"
#include "kernels/gemm_tile.h"

#define MAX_SUM 16 /* panels * rows at most; NVFP4 stops at 8, as it needs as many dots again */

INLINE int32_t load_dword(const void *p)
{
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return v;
}

/* sum += products of w and the pair of bf16 at x, which the instruction broadcasts by itself: gcc would spend
 * another on that. With fewer instructions the window reaches further ahead, also where two panels load the
 * same pair. */
#ifdef __clang__
INLINE __m512 dot_pair(__m512 sum, __m512i w, const uint8_t *x)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32(load_dword(x)));
}
#else
INLINE __m512 dot_pair(__m512 sum, __m512i w, const uint8_t *x)
{
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const uint8_t(*)[4])x));
    return sum;
}
#endif

INLINE void store_sums(const struct gemm_tile *t, const int P, const int T, const __m512 *sum, float unit)
{
    UNROLL
    for (int p = 0; p < P; p++) {
        UNROLL
        for (int i = 0; i < T; i++)
            _mm512_store_ps(t->sum + (size_t)(p * GEMM_TILE_ROW + i) * WEIGHT_PANEL,
                            _mm512_mul_ps(sum[p * T + i], _mm512_set1_ps(unit)));
    }
}

#endif
