/* NVFP4 weights against many rows of 16-bit integers on AVX2. Codes of a panel are expanded once for all
 * rows, a stretch of K at a time; what is left for a row is vpmaddwd, 16 products and half of their additions
 * in one operation, where fma does eight. The sums of a group are exact, so the bits are those of
 * gemm_avx2_nvfp4_i16. */
#include <immintrin.h>
#include <assert.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/cpu/nvfp4_avx2.h"
#include "kernels/cpu/tile_avx2.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

#define STEPS     8  /* pairs of k in a group                                                          */
#define STRETCH   32 /* groups expanded at a time: with them and a few rows the first cache is full    */
#define TILE_ROWS 4  /* of x: two sums each, and vectors for x, for weights and for a product           */

/* One group: 512 times the codes' values, rows 0 .. 7 and 8 .. 15, each as a pair of k and k + 1; block
 * scales make up for it. */
struct expanded {
    int16_t w[STEPS][2][16];
    float scale[2][8];
};

struct scratch {
    struct expanded group[STRETCH];
    float sum[GEMM_BLOCK_ROW][2][8];
};
static_assert(sizeof(struct scratch) <= GEMM_BLOCK_WIDE_BYTES, "scratch of the caller");

/* Twice e2m1. */
INLINE __m256i signed_codes(void)
{
    return _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
}

/* The bytes of a lane are k + 0, 4, 1, 5 (low nibbles) and k + 2, 6, 3, 7: either of two pairs in upper
 * bytes. */
static void expand(const uint8_t *codes, const uint8_t *scale, struct expanded *to)
{
    const __m256i table = signed_codes(), upper = _mm256_set1_epi16((short)0xff00u);
    nvfp4_prefetch_group(codes);
    UNROLL
    for (int i = 0; i < 4; i++) {
        int z = i / 2, half = i % 2;
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 64 * z + 32 * half));
        __m256i low = _mm256_shuffle_epi8(table, nvfp4_low_nibbles(c));
        __m256i high = _mm256_shuffle_epi8(table, nvfp4_high_nibbles(c));
        __m256i pair[4] = {_mm256_slli_epi16(low, 8), _mm256_slli_epi16(high, 8),
                           _mm256_and_si256(low, upper), _mm256_and_si256(high, upper)};
        UNROLL
        for (int j = 0; j < 4; j++)
            _mm256_store_si256((__m256i *)(void *)to->w[4 * z + j][half], pair[j]);
    }
    UNROLL
    for (int half = 0; half < 2; half++)
        _mm256_store_ps(to->scale[half],
                        _mm256_mul_ps(nvfp4_scale_of_8(scale + 8 * half), _mm256_set1_ps(0x1p-8f)));
}

/* T rows against n groups; sum (T, 2, 8). */
INLINE void tile(const int T, const struct expanded *group, int n, const int16_t *const *row,
                 const struct i16_group *const *unit, float (*sum)[2][8])
{
    const int16_t *x[TILE_ROWS];
    UNROLL
    for (int i = 0; i < T; i++)
        x[i] = row[i];
    for (int g = 0; g < n; g++, group++) {
        __m256i dot[2 * TILE_ROWS];
        UNROLL
        for (int step = 0; step < STEPS; step++) {
            __m256i a = _mm256_load_si256((const __m256i *)(const void *)group->w[step][0]);
            __m256i b = _mm256_load_si256((const __m256i *)(const void *)group->w[step][1]);
            UNROLL
            for (int i = 0; i < T; i++) {
                __m256i v = broadcast_dword(x[i] + g * FP4_GROUP + 2 * step);
                __m256i va = _mm256_madd_epi16(a, v), vb = _mm256_madd_epi16(b, v);
                dot[2 * i] = step ? _mm256_add_epi32(dot[2 * i], va) : va;
                dot[2 * i + 1] = step ? _mm256_add_epi32(dot[2 * i + 1], vb) : vb;
                KEEP_HERE(dot[2 * i], dot[2 * i + 1]);
            }
        }
        UNROLL
        for (int i = 0; i < T; i++) {
            __m256 u = _mm256_broadcast_ss(&unit[i][g].unit);
            UNROLL
            for (int h = 0; h < 2; h++) {
                __m256 s = _mm256_mul_ps(_mm256_load_ps(group->scale[h]), u);
                __m256 d = _mm256_cvtepi32_ps(dot[2 * i + h]);
                _mm256_store_ps(sum[i][h], _mm256_fmadd_ps(s, d, _mm256_load_ps(sum[i][h])));
            }
        }
    }
}

/* All rows against the groups expanded, which begin with number `group` of a row. */
static void all_rows(const struct gemm_block *b, struct scratch *s, int n_group, int group)
{
    for (int first = 0, n; first < b->n_row; first += n) {
        const int16_t *x[TILE_ROWS];
        const struct i16_group *unit[TILE_ROWS];
        n = b->n_row - first < TILE_ROWS ? b->n_row - first : TILE_ROWS;
        for (int i = 0; i < n; i++) {
            x[i] = (const int16_t *)b->row[first + i] + group * FP4_GROUP;
            unit[i] = (const struct i16_group *)b->group[first + i] + group;
        }
        switch (n) {
        case 1:
            tile(1, s->group, n_group, x, unit, s->sum + first);
            break;
        case 2:
            tile(2, s->group, n_group, x, unit, s->sum + first);
            break;
        case 3:
            tile(3, s->group, n_group, x, unit, s->sum + first);
            break;
        default:
            tile(4, s->group, n_group, x, unit, s->sum + first);
        }
    }
}

void gemm_avx2_nvfp4_i16_many(const struct gemm_block *b)
{
    static_assert(TILE_ROWS == 4, "all_rows");
    struct scratch *s = (struct scratch *)(void *)b->decode;
    const int n_group = b->k / FP4_GROUP;
    for (int p = 0; p < b->n_panel; p++) {
        memset(s->sum, 0, (size_t)b->n_row * sizeof(s->sum[0]));
        for (int g = 0, n; g < n_group; g += n) {
            n = n_group - g < STRETCH ? n_group - g : STRETCH;
            for (int i = 0; i < n; i++)
                expand(b->panel[p] + nvfp4_codes_at(g + i), b->panel[p] + nvfp4_scale_at(g + i),
                       &s->group[i]);
            all_rows(b, s, n, g);
        }
        nvfp4_store_block(b, p, s->sum);
    }
}
