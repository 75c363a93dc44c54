#include "kernels/cpu/nvfp4_parts.h"

#include <immintrin.h>

#include "fp4/fp4.h"
#include "kernels/cpu/nvfp4_codes.h"
#include "kernels/cpu/tile_avx512.h"
#include "kernels/weight_layout.h"

/* Block scales as they are: fp16 bits give 2^-8 of them. */
INLINE __m512 group_scale(const uint8_t *s)
{
    __m256i half = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)s)), 7);
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(NVFP4_SCALE_UNIT));
}

/* What lies ahead of a block is sent for: n of its nine lines from `line` on. */
INLINE void prefetch_block(const uint8_t *block, const int line, const int n)
{
    UNROLL
    for (int i = 0; i < n; i++)
        _mm_prefetch((const char *)block + PREFETCH_AHEAD + 64 * (line + i), _MM_HINT_T0);
}

void gemm_nvfp4_spread(const uint8_t *block, int n_group, uint8_t *line)
{
    const __m512i lut = _mm512_loadu_si512(nvfp4_bf16_of_code);
    prefetch_block(block, 0, NVFP4_BLOCK_BYTES / 64);
    for (int i = 0; i < 2 * n_group; i++) {
        __m512i c = _mm512_loadu_si512(block + nvfp4_codes_at(0) + 64 * i);
        UNROLL
        for (int j = 0; j < 4; j++) {
            __m512i index = (__m512i)((__v32hu)c >> (unsigned short)(4 * j));
            _mm512_store_si512(line + 256 * i + 64 * j, _mm512_permutexvar_epi16(index, lut));
        }
    }
}

INLINE void fold_rows(const uint8_t *block, int n_group, const int T, const float *dot, float *sum)
{
    __m512 v[16];
    UNROLL
    for (int i = 0; i < T; i++)
        v[i] = _mm512_load_ps(sum + 16 * i);
    for (int g = 0; g < n_group; g++, dot += 256) {
        __m512 s = group_scale(block + nvfp4_scale_at(g));
        UNROLL
        for (int i = 0; i < T; i++)
            v[i] = _mm512_fmadd_ps(s, _mm512_load_ps(dot + 16 * i), v[i]);
    }
    UNROLL
    for (int i = 0; i < T; i++)
        _mm512_store_ps(sum + 16 * i, v[i]);
}

#define FOLD_CASE(n)                            \
    case n:                                     \
        fold_rows(block, n_group, n, dot, sum); \
        break;

void gemm_nvfp4_fold(const uint8_t *block, int n_group, int n_row, const float *dot, float *sum)
{
    switch (n_row) {
        FOLD_CASE(1)
        FOLD_CASE(2)
        FOLD_CASE(3)
        FOLD_CASE(4)
        FOLD_CASE(5)
        FOLD_CASE(6)
        FOLD_CASE(7)
        FOLD_CASE(8)
        FOLD_CASE(9)
        FOLD_CASE(10)
        FOLD_CASE(11)
        FOLD_CASE(12)
        FOLD_CASE(13)
        FOLD_CASE(14)
        FOLD_CASE(15)
        FOLD_CASE(16)
    default:
        __builtin_unreachable();
    }
}

void gemm_nvfp4_widen(const uint16_t *x, int n, float *to)
{
    for (int i = 0; i < n; i += 16) {
        __m512i half = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(x + i)));
        _mm512_storeu_ps(to + i, _mm512_castsi512_ps(_mm512_slli_epi32(half, 16)));
    }
}

/* One group of T rows: eight steps of an even and an odd k. */
INLINE void chain_group(const uint8_t *codes, const uint8_t *scale, const int T, const float *x, int stride,
                        __m512 lut, __m512 *sum)
{
    __m512 even[NVFP4_CHAIN_ROW], odd[NVFP4_CHAIN_ROW];
    UNROLL
    for (int i = 0; i < T; i++)
        even[i] = odd[i] = _mm512_setzero_ps();
    UNROLL
    for (int z = 0; z < 2; z++) {
        __v16su c = (__v16su)_mm512_loadu_si512(codes + 64 * z);
        UNROLL
        for (int j = 0; j < 4; j++) { /* nibbles j and j + 4 */
            __m512 w0 = _mm512_permutexvar_ps((__m512i)(c >> (unsigned)(4 * j)), lut);
            __m512 w1 = _mm512_permutexvar_ps((__m512i)(c >> (unsigned)(4 * j + 16)), lut);
            UNROLL
            for (int i = 0; i < T; i++) {
                const float *v = x + (size_t)i * (size_t)stride + 8 * z + 2 * j;
                even[i] = _mm512_fmadd_ps(w0, _mm512_set1_ps(v[0]), even[i]);
                odd[i] = _mm512_fmadd_ps(w1, _mm512_set1_ps(v[1]), odd[i]);
            }
            KEEP_ORDER();
        }
    }
    __m512 s = group_scale(scale);
    UNROLL
    for (int i = 0; i < T; i++)
        sum[i] = _mm512_fmadd_ps(s, _mm512_add_ps(even[i], odd[i]), sum[i]);
}

INLINE void chain_rows(const uint8_t *panel, int k, const int T, const float *x, int stride, float *to)
{
    const __m512 lut = _mm512_loadu_ps(fp4_e2m1_value);
    __m512 sum[NVFP4_CHAIN_ROW];
    UNROLL
    for (int i = 0; i < T; i++)
        sum[i] = _mm512_setzero_ps();
    for (int g = 0; g < k / FP4_GROUP; g++) {
        const uint8_t *block = panel + (size_t)(g / 4) * NVFP4_BLOCK_BYTES;
        prefetch_block(block, 2 * (g % 4), 2);
        if (g % 4 == 0)
            prefetch_block(block, 8, 1);
        chain_group(panel + nvfp4_codes_at(g), panel + nvfp4_scale_at(g), T, x + FP4_GROUP * g, stride, lut,
                    sum);
    }
    UNROLL
    for (int i = 0; i < T; i++)
        _mm512_store_ps(to + 16 * i, sum[i]);
}

void gemm_nvfp4_chain(const uint8_t *panel, int k, int n_row, const float *x, int stride, float *sum)
{
    switch (n_row) {
    case 1:
        chain_rows(panel, k, 1, x, stride, sum);
        break;
    case 2:
        chain_rows(panel, k, 2, x, stride, sum);
        break;
    case 3:
        chain_rows(panel, k, 3, x, stride, sum);
        break;
    case NVFP4_CHAIN_ROW:
        chain_rows(panel, k, NVFP4_CHAIN_ROW, x, stride, sum);
        break;
    default:
        __builtin_unreachable();
    }
}
