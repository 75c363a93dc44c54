/* NVFP4 weights on AVX2: fp32 operands, and int8. */
#include <immintrin.h>

#include "fp4/fp4.h"
#include "kernels/cpu/nvfp4_avx2.h"
#include "kernels/cpu/tile_avx2.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

/* ---- fp32 --------------------------------------------------------------------------------------
 * Rows 0 1 4 5 are in one vector ("a") and 2 3 6 7 in the other ("b"), each row in a pair of lanes that hold
 * k and k + 1; a last horizontal add joins pairs and rows. */

/* dot[i][a, b] += w * x for the four k whose codes are in the bytes of `nibbles`: (k, k + 1), (k + 4, k + 5).
 */
INLINE void f32_nibbles(const int T, __m256i nibbles, const float *const *x, int k, __m256i low, __m256i high,
                        __m256 *dot)
{
    __m256 w[4];
    nvfp4_floats(nibbles, low, high, w);
    UNROLL
    for (int j = 0; j < 2; j++) {
        UNROLL
        for (int i = 0; i < T; i++) {
            __m256 v = broadcast_pair(x[i] + k + 4 * j);
            dot[2 * i] = _mm256_fmadd_ps(w[2 * j], v, dot[2 * i]);
            dot[2 * i + 1] = _mm256_fmadd_ps(w[2 * j + 1], v, dot[2 * i + 1]);
        }
        KEEP_ORDER();
    }
}

/* One group of one half: sum[i][a, b] = fma(scale, dot, sum). codes: 32 bytes for k 0..7, and 64 on
 * for 8..15. */
INLINE void f32_group(const int T, const uint8_t *codes, const uint8_t *scale, const float *const *x, int k,
                      __m256i low, __m256i high, __m256 *sum)
{
    __m256 dot[MAX_SUM];
    UNROLL
    for (int i = 0; i < 2 * T; i++)
        dot[i] = _mm256_setzero_ps();
    UNROLL
    for (int z = 0; z < 2; z++) {
        __m256i c = _mm256_loadu_si256((const __m256i *)(codes + 64 * z));
        f32_nibbles(T, nvfp4_low_nibbles(c), x, k + 8 * z, low, high, dot);
        f32_nibbles(T, nvfp4_high_nibbles(c), x, k + 8 * z + 2, low, high, dot);
    }
    __m256 s = nvfp4_scale_of_8(scale), sa = _mm256_unpacklo_ps(s, s), sb = _mm256_unpackhi_ps(s, s);
    UNROLL
    for (int i = 0; i < T; i++) {
        sum[2 * i] = _mm256_fmadd_ps(sa, dot[2 * i], sum[2 * i]);
        sum[2 * i + 1] = _mm256_fmadd_ps(sb, dot[2 * i + 1], sum[2 * i + 1]);
    }
}

INLINE void f32_tile(const struct gemm_tile *t, int p, const int first_half, const int T, const int HALVES)
{
    const __m256i low = nvfp4_low_bytes(), high = nvfp4_high_bytes();
    const float *x[4];
    __m256 sum[MAX_SUM];
    UNROLL
    for (int i = 0; i < T; i++)
        x[i] = t->x[i];
    UNROLL
    for (int i = 0; i < 2 * T * HALVES; i++)
        sum[i] = _mm256_setzero_ps();
    for (int g = 0; g < t->k / FP4_GROUP; g++) {
        const uint8_t *codes = t->panel[p] + nvfp4_codes_at(g), *scale = t->panel[p] + nvfp4_scale_at(g);
        if (first_half == 0)
            nvfp4_prefetch_group(codes);
        UNROLL
        for (int h = 0; h < HALVES; h++)
            f32_group(T, codes + 32 * (first_half + h), scale + 8 * (first_half + h), x, g * FP4_GROUP, low,
                      high, sum + 2 * T * h);
    }
    UNROLL
    for (int h = 0; h < HALVES; h++) {
        UNROLL
        for (int i = 0; i < T; i++) {
            __m256 rows = _mm256_hadd_ps(sum[2 * (T * h + i)], sum[2 * (T * h + i) + 1]);
            _mm256_store_ps(sum_at(t, p, i, first_half + h),
                            _mm256_mul_ps(rows, _mm256_set1_ps(NVFP4_SCALE_UNIT)));
        }
    }
}

/* ---- int8 --------------------------------------------------------------------------------------
 * part = fma(block scale, dot << shift, part) over 64 elements, then sum = fma(x's scale, part, sum). */

INLINE void i8_group(const int T, const uint8_t *codes, const uint8_t *scale, const struct gemm_tile *t,
                     int g, __m256i table, __m256 *part)
{
    __m256i w[4];
    nvfp4_bytes(codes, table, w);
    __m256 s = nvfp4_scale_of_8(scale);
    UNROLL
    for (int i = 0; i < T; i++) {
        const int8_t *x = (const int8_t *)t->x[i] + g * FP4_GROUP;
        __m256i pairs = _mm256_maddubs_epi16(w[0], broadcast_dword(x));
        UNROLL
        for (int j = 1; j < 4; j++)
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[j], broadcast_dword(x + 4 * j)));
        __m256i dot = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
        dot = _mm256_add_epi32(dot, _mm256_set1_epi32(t->x_group[i][g].bias));
        dot = _mm256_sllv_epi32(dot, _mm256_set1_epi32(t->x_group[i][g].shift));
        part[i] = _mm256_fmadd_ps(s, _mm256_cvtepi32_ps(dot), part[i]);
    }
}

INLINE void i8_tile(const struct gemm_tile *t, int p, const int first_half, const int T, const int HALVES)
{
    const __m256i table = nvfp4_biased_codes();
    const int n_group = t->k / FP4_GROUP;
    __m256 part[MAX_SUM], sum[MAX_SUM];
    UNROLL
    for (int i = 0; i < T * HALVES; i++)
        part[i] = sum[i] = _mm256_setzero_ps();
    for (int g = 0; g < n_group; g++) {
        const uint8_t *codes = t->panel[p] + nvfp4_codes_at(g), *scale = t->panel[p] + nvfp4_scale_at(g);
        if (first_half == 0)
            nvfp4_prefetch_group(codes);
        UNROLL
        for (int h = 0; h < HALVES; h++)
            i8_group(T, codes + 32 * (first_half + h), scale + 8 * (first_half + h), t, g, table,
                     part + T * h);
        if (g % 4 != 3 && g != n_group - 1)
            continue;
        UNROLL
        for (int i = 0; i < T * HALVES; i++) { /* the end of 64 elements */
            sum[i] = _mm256_fmadd_ps(_mm256_set1_ps(t->x_scale[i % T][g / 4]), part[i], sum[i]);
            part[i] = _mm256_setzero_ps();
        }
    }
    nvfp4_store_tile(t, p, first_half, T, HALVES, sum);
}

void gemm_avx2_nvfp4_f32(const struct gemm_tile *t)
{
    AVX2_TILE(f32_tile, t)
}

void gemm_avx2_nvfp4_i8(const struct gemm_tile *t)
{
    AVX2_TILE(i8_tile, t)
}
