/* NVFP4 weights on AVX2, a few rows of 16-bit integers. Decoding codes to bytes takes half the operations
 * that decoding them to floats does, and vpmaddubsw multiplies 32 of them at once: each row goes as upper and
 * lower bytes, whose sums of products meet at the end of a group of 16. All of that is exact. */
#include <immintrin.h>

#include "fp4/fp4.h"
#include "kernels/cpu/nvfp4_avx2.h"
#include "kernels/cpu/tile_avx2.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

/* Pair sums of 16 bytes of x, four of them with each vector of codes. */
INLINE __m256i byte_products(const __m256i *w, const int8_t *x)
{
    __m256i a = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], broadcast_dword(x)),
                                 _mm256_maddubs_epi16(w[1], broadcast_dword(x + 4)));
    __m256i b = _mm256_add_epi16(_mm256_maddubs_epi16(w[2], broadcast_dword(x + 8)),
                                 _mm256_maddubs_epi16(w[3], broadcast_dword(x + 12)));
    return _mm256_add_epi16(a, b);
}

/* One group of eight outputs: sum[i] = fma(block scale * unit, twice the dot product, sum[i]). */
INLINE void group_of_half(const int T, const uint8_t *codes, const uint8_t *scale, const struct gemm_tile *t,
                          int g, __m256i table, __m256 *sum)
{
    __m256i w[4];
    nvfp4_bytes(codes, table, w);
    __m256 s = nvfp4_scale_of_8(scale);
    UNROLL
    for (int i = 0; i < T; i++) {
        const int8_t *x = (const int8_t *)t->x[i] + 2 * g * FP4_GROUP;
        const struct i16_group *group = &t->x_unit[i][g];
        __m256i upper = _mm256_madd_epi16(byte_products(w, x), _mm256_set1_epi16(256));
        __m256i lower = _mm256_madd_epi16(byte_products(w, x + FP4_GROUP), _mm256_set1_epi16(1));
        upper = _mm256_add_epi32(upper, _mm256_set1_epi32(group->bias));
        __m256 dot = _mm256_cvtepi32_ps(_mm256_add_epi32(upper, lower));
        sum[i] = _mm256_fmadd_ps(_mm256_mul_ps(s, _mm256_broadcast_ss(&group->unit)), dot, sum[i]);
        KEEP_HERE(sum[i], w[0]);
    }
}

INLINE void i16_tile(const struct gemm_tile *t, int p, const int first_half, const int T, const int HALVES)
{
    const __m256i table = nvfp4_biased_codes();
    __m256 sum[MAX_SUM];
    UNROLL
    for (int i = 0; i < T * HALVES; i++)
        sum[i] = _mm256_setzero_ps();
    const int n_group = t->k / FP4_GROUP;
    for (int g = 0; g < n_group; g += 4) { /* whose scales lie together */
        const uint8_t *codes = t->panel[p] + nvfp4_codes_at(g), *scale = t->panel[p] + nvfp4_scale_at(g);
        const int end = n_group - g < 4 ? n_group : g + 4;
        for (int at = g; at < end; at++, codes += NVFP4_GROUP_BYTES, scale += WEIGHT_PANEL) {
            if (first_half == 0)
                nvfp4_prefetch_group(codes);
            UNROLL
            for (int h = 0; h < HALVES; h++)
                group_of_half(T, codes + 32 * (first_half + h), scale + 8 * (first_half + h), t, at, table,
                              sum + T * h);
        }
    }
    nvfp4_store_tile(t, p, first_half, T, HALVES, sum);
}

/* A group's dot products of one row, all 16 outputs, without what its bias takes away: what is broadcast of x
 * serves both halves. */
INLINE void group_of_row(const uint8_t *codes, __m256i table, const int8_t *x, __m256i *dot)
{
    __m256i upper[2], lower[2];
    UNROLL
    for (int z = 0; z < 2; z++) {
        __m256i w[2][2];
        UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 64 * z + 32 * h));
            w[0][h] = _mm256_shuffle_epi8(table, nvfp4_low_nibbles(c));
            w[1][h] = _mm256_shuffle_epi8(table, nvfp4_high_nibbles(c));
        }
        UNROLL
        for (int i = 0; i < 2; i++) {
            __m256i u = broadcast_dword(x + 8 * z + 4 * i),
                    l = broadcast_dword(x + FP4_GROUP + 8 * z + 4 * i);
            UNROLL
            for (int h = 0; h < 2; h++) {
                __m256i pu = _mm256_maddubs_epi16(w[i][h], u), pl = _mm256_maddubs_epi16(w[i][h], l);
                upper[h] = z + i ? _mm256_add_epi16(upper[h], pu) : pu;
                lower[h] = z + i ? _mm256_add_epi16(lower[h], pl) : pl;
            }
        }
    }
    UNROLL
    for (int h = 0; h < 2; h++)
        dot[h] = _mm256_add_epi32(_mm256_madd_epi16(upper[h], _mm256_set1_epi16(256)),
                                  _mm256_madd_epi16(lower[h], _mm256_set1_epi16(1)));
}

/* One row: memory would be as fast as the shuffles allow, so every operation counts. */
INLINE void one_row(const struct gemm_tile *t, int p)
{
    const __m256i table = nvfp4_biased_codes();
    const int n_group = t->k / FP4_GROUP;
    const int8_t *x = t->x[0];
    const struct i16_group *group = t->x_unit[0];
    const uint8_t *codes = t->panel[p];
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int g = 0; g < n_group; g += 4) { /* whose scales lie together */
        const uint8_t *scale = codes;
        const int end = n_group - g < 4 ? n_group : g + 4;
        codes += 4 * WEIGHT_PANEL;
        for (int at = g; at < end;
             at++, codes += NVFP4_GROUP_BYTES, scale += WEIGHT_PANEL, x += 2 * FP4_GROUP, group++) {
            __m256i dot[2];
            nvfp4_prefetch_group(codes);
            group_of_row(codes, table, x, dot);
            __m256i bias = _mm256_set1_epi32(group->bias);
            __m256 unit = _mm256_broadcast_ss(&group->unit);
            UNROLL
            for (int h = 0; h < 2; h++)
                sum[h] = _mm256_fmadd_ps(_mm256_mul_ps(nvfp4_scale_of_8(scale + 8 * h), unit),
                                         _mm256_cvtepi32_ps(_mm256_add_epi32(dot[h], bias)), sum[h]);
        }
    }
    nvfp4_store_tile(t, p, 0, 1, 2, sum);
}

void gemm_avx2_nvfp4_i16(const struct gemm_tile *t)
{
    for (int p = 0; p < t->n_panel; p++) {
        switch (t->n_row) {
        case 1:
            one_row(t, p);
            break;
        case 2:
            i16_tile(t, p, 0, 2, 2);
            break;
        default:
            i16_tile(t, p, 0, 3, 1);
            i16_tile(t, p, 1, 3, 1);
        }
    }
}
