/* BF16 weights against more rows of fp32 than a tile holds, on AVX2. A panel goes past in stretches of K that
 * stay in the first cache while tiles of rows take turns, and the stretch to come is sent for meanwhile:
 * memory and arithmetic are busy at the same time, where a tile at a time reads the panel first and
 * multiplies afterwards.
 *
 * The bits are those of gemm_avx2_bf16_f32: each output is one chain of fma. */
#include <immintrin.h>
#include <assert.h>
#include <string.h>

#include "kernels/cpu/fma_avx2.h"
#include "kernels/cpu/tile_avx2.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

#define LINE      64 /* bytes of a pair of k of all 16 rows */
#define STRETCH   64 /* lines at a time                                                              */
#define TILE_ROWS 6  /* of x: two sums each, and vectors for x and weights                           */

/* T rows against the lines from `line` on; sum (T, WEIGHT_PANEL). The bytes at `ahead` are sent for, `ask` of
 * them with each line. */
INLINE void tile(const int T, const uint8_t *line, int n_line, const float *const *row, const uint8_t *ahead,
                 size_t ask, float *sum)
{
    const __m256i odd = _mm256_set1_epi32((int)0xffff0000u);
    const float *x[TILE_ROWS];
    __m256 s[2 * TILE_ROWS];
    UNROLL
    for (int i = 0; i < T; i++)
        x[i] = row[i];
    UNROLL
    for (int i = 0; i < 2 * T; i++)
        s[i] = _mm256_load_ps(sum + 8 * i);
    for (int l = 0; l < n_line; l++, line += LINE, ahead += ask) {
        _mm_prefetch((const char *)ahead, _MM_HINT_T0);
        UNROLL
        for (int j = 0; j < 2; j++) {
            __m256i a = _mm256_load_si256((const __m256i *)(const void *)line);
            __m256i b = _mm256_load_si256((const __m256i *)(const void *)(line + LINE / 2));
            __m256 w[2];
            w[0] = _mm256_castsi256_ps(j ? _mm256_and_si256(a, odd) : _mm256_slli_epi32(a, 16));
            w[1] = _mm256_castsi256_ps(j ? _mm256_and_si256(b, odd) : _mm256_slli_epi32(b, 16));
            UNROLL
            for (int i = 0; i < T; i++)
                fma_row(s + 2 * i, x[i] + 2 * l + j, w, 2);
        }
    }
    UNROLL
    for (int i = 0; i < 2 * T; i++)
        _mm256_store_ps(sum + 8 * i, s[i]);
}

/* All rows against one stretch, in tiles of nearly equal height; its first element is number k of a row. */
static void all_rows(const struct gemm_block *b, const uint8_t *line, int n_line, int k, const uint8_t *next,
                     float *sum)
{
    const int n_tile = (b->n_row + TILE_ROWS - 1) / TILE_ROWS;
    const size_t ask = n_tile < LINE ? (size_t)(LINE / n_tile) : 1;
    for (int t = 0, first = 0, n; t < n_tile; t++, first += n) {
        const float *x[TILE_ROWS];
        n = (b->n_row - first + n_tile - t - 1) / (n_tile - t);
        for (int i = 0; i < n; i++)
            x[i] = (const float *)b->row[first + i] + k;
        const uint8_t *ahead = next + (size_t)t * ask * STRETCH;
        float *to = sum + first * WEIGHT_PANEL;
        switch (n) {
        case 1:
            tile(1, line, n_line, x, ahead, ask, to);
            break;
        case 2:
            tile(2, line, n_line, x, ahead, ask, to);
            break;
        case 3:
            tile(3, line, n_line, x, ahead, ask, to);
            break;
        case 4:
            tile(4, line, n_line, x, ahead, ask, to);
            break;
        case 5:
            tile(5, line, n_line, x, ahead, ask, to);
            break;
        default:
            tile(6, line, n_line, x, ahead, ask, to);
        }
    }
}

void gemm_avx2_bf16_many(const struct gemm_block *b)
{
    static_assert(TILE_ROWS == 6, "all_rows");
    const int n_line = (b->k + 1) / 2;
    for (int p = 0; p < b->n_panel; p++) {
        float *sum = b->sum + (size_t)p * GEMM_BLOCK_ROW * WEIGHT_PANEL;
        memset(sum, 0, (size_t)b->n_row * WEIGHT_PANEL * sizeof(*sum));
        for (int l = 0; l < n_line; l += STRETCH) {
            const uint8_t *line = b->panel[p] + (size_t)l * LINE;
            bool last = l + STRETCH >= n_line;
            const uint8_t *next = !last                ? line + STRETCH * LINE
                                  : p + 1 < b->n_panel ? b->panel[p + 1]
                                                       : b->panel[0] + b->next;
            all_rows(b, line, last ? n_line - l : STRETCH, 2 * l, next, sum);
        }
    }
}
