/* Shared by the AVX2 tile kernels. A panel is worked on in halves of 8 rows; a kernel takes HALVES at once:
 * both where registers allow, so that memory is read once, front to back. */
#ifndef NYB_KERNELS_CPU_TILE_AVX2_H
#define NYB_KERNELS_CPU_TILE_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/tile_unroll.h"
#include "kernels/gemm_tile.h"

#define MAX_SUM 8 /* halves * rows * sums of a half, at most */

/* Sums stay in registers, and loads where they are: gcc otherwise moves them about and runs out of registers.
 */
#define KEEP_HERE(a, b) __asm__ volatile("" : "+x"(a), "+x"(b) : : "memory")

/* Two elements of x to all lane pairs. */
INLINE __m256 broadcast_pair(const float *x)
{
    return _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)x));
}

INLINE __m256i broadcast_dword(const void *p)
{
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* Where the sums of row i, half h, of panel p go. */
INLINE float *sum_at(const struct gemm_tile *t, int p, int i, int h)
{
    return t->sum + (size_t)(p * GEMM_TILE_ROW + i) * WEIGHT_PANEL + 8 * h;
}

/* BODY(t, p, first half, rows, halves) for every panel. */
#define AVX2_TILE(body, t)                      \
    for (int p_ = 0; p_ < (t)->n_panel; p_++) { \
        switch ((t)->n_row) {                   \
        case 1:                                 \
            body(t, p_, 0, 1, 2);               \
            break;                              \
        case 2:                                 \
            body(t, p_, 0, 2, 1);               \
            body(t, p_, 1, 2, 1);               \
            break;                              \
        case 3:                                 \
            body(t, p_, 0, 3, 1);               \
            body(t, p_, 1, 3, 1);               \
            break;                              \
        default:                                \
            body(t, p_, 0, 4, 1);               \
            body(t, p_, 1, 4, 1);               \
        }                                       \
    }

#endif
