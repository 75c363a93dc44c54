/* NVFP4 weights against many rows of fp32 on AVX2. Codes of a panel are expanded to floats once for all rows,
 * a stretch of K at a time, so that what is left for a row is its products.
 *
 * The bits are those of gemm_avx2_nvfp4_f32: each row of the panel has a pair of lanes, for even and odd k;
 * a group's products go, in the order 0 4 2 6 8 12 10 14 (and 1 5 ..), to a dot from zero; then
 * sum = fma(block scale, dot, sum), and a last horizontal add joins pairs. */
#include <immintrin.h>
#include <assert.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/cpu/nvfp4_avx2.h"
#include "kernels/cpu/tile_avx2.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

#define STEPS      8  /* of two k, in a group */
#define VECTORS    4  /* that hold a panel's 16 rows, each for a pair of k */
#define STRETCH    16 /* groups expanded at a time: with them and a few rows of x the first cache is full */
#define TILE_ROWS  3  /* of x: with VECTORS sums each, and one vector each for x and w, 16 registers */
#define ROW_FLOATS (VECTORS * 8)

/* One group as floats, in the order in which it is summed. */
struct expanded {
    float w[STEPS][VECTORS][8];
    float scale[VECTORS][8];
};

struct scratch {
    struct expanded group[STRETCH];
    float sum[GEMM_BLOCK_ROW][VECTORS][8]; /* pairs of lanes not joined yet */
};
static_assert(sizeof(struct scratch) <= GEMM_BLOCK_WIDE_BYTES, "scratch of the caller");

static void expand(const uint8_t *codes, const uint8_t *scale, struct expanded *to)
{
    const __m256i low = nvfp4_low_bytes(), high = nvfp4_high_bytes();
    nvfp4_prefetch_group(codes);
    UNROLL
    for (int i = 0; i < 8; i++) { /* z, half of the rows, half of the nibbles */
        int z = i / 4, half = i / 2 % 2, nibbles = i % 2, step = 4 * z + 2 * nibbles;
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(codes + 64 * z + 32 * half));
        __m256 w[4];
        nvfp4_floats(nibbles ? nvfp4_high_nibbles(c) : nvfp4_low_nibbles(c), low, high, w);
        UNROLL
        for (int j = 0; j < 4; j++)
            _mm256_store_ps(to->w[step + j / 2][2 * half + j % 2], w[j]);
    }
    for (int half = 0; half < 2; half++) {
        __m256 s = nvfp4_scale_of_8(scale + 8 * half);
        _mm256_store_ps(to->scale[2 * half], _mm256_unpacklo_ps(s, s));
        _mm256_store_ps(to->scale[2 * half + 1], _mm256_unpackhi_ps(s, s));
    }
}

/* All sums stay in registers of their own: gcc otherwise moves them about and runs out of registers. */
#define KEEP_SUMS_4(d) __asm__ volatile("" : "+x"((d)[0]), "+x"((d)[1]), "+x"((d)[2]), "+x"((d)[3]))
INLINE void keep_sums(const int T, __m256 *dot)
{
    KEEP_SUMS_4(dot);
    if (T > 1)
        KEEP_SUMS_4(dot + 4);
    if (T > 2)
        KEEP_SUMS_4(dot + 8);
}

/* dot[i] += w x for one group of T rows. */
INLINE void products(const int T, const struct expanded *group, const float *const *x, size_t at, __m256 *dot)
{
    UNROLL
    for (int step = 0; step < STEPS; step++) {
        const int k = step / 4 * 8 + step % 2 * 4 + step / 2 % 2 * 2; /* 0 4 2 6 8 12 10 14 */
        __m256 v[TILE_ROWS];
        UNROLL
        for (int i = 0; i < T; i++)
            v[i] = broadcast_pair(x[i] + at + (size_t)k);
        UNROLL
        for (int c = 0; c < VECTORS; c++) {
            __m256 w = _mm256_load_ps(group->w[step][c]);
            UNROLL
            for (int i = 0; i < T; i++)
                dot[i * VECTORS + c] = _mm256_fmadd_ps(w, v[i], dot[i * VECTORS + c]);
            keep_sums(T, dot);
        }
    }
}

/* T rows against n groups from x on; what the next rows will read there is asked for. */
INLINE void tile(const int T, const struct expanded *group, int n, const float *const *row,
                 const float *const *next, float (*sum)[VECTORS][8])
{
    const float *x[TILE_ROWS], *ahead[TILE_ROWS];
    UNROLL
    for (int i = 0; i < T; i++) {
        x[i] = row[i];
        ahead[i] = next[i];
    }
    for (size_t at = 0; at < (size_t)n * FP4_GROUP; at += FP4_GROUP, group++) {
        __m256 dot[TILE_ROWS * VECTORS];
        UNROLL
        for (int i = 0; i < T * VECTORS; i++)
            dot[i] = _mm256_setzero_ps();
        products(T, group, x, at, dot);
        UNROLL
        for (int i = 0; i < T; i++) {
            _mm_prefetch((const char *)(ahead[i] + at), _MM_HINT_T0);
            UNROLL
            for (int c = 0; c < VECTORS; c++) {
                __m256 s = _mm256_load_ps(group->scale[c]), before = _mm256_load_ps(sum[i][c]);
                _mm256_store_ps(sum[i][c], _mm256_fmadd_ps(s, dot[i * VECTORS + c], before));
            }
        }
    }
}

/* All rows against the groups expanded, whose first element is number k of a row. */
static void all_rows(const struct gemm_block *b, struct scratch *s, int n_group, int k)
{
    for (int first = 0, n; first < b->n_row; first += n) {
        const float *x[TILE_ROWS], *next[TILE_ROWS];
        n = b->n_row - first < TILE_ROWS ? b->n_row - first : TILE_ROWS;
        for (int i = 0; i < n; i++) {
            int after = first + n + i < b->n_row ? first + n + i : i;
            x[i] = (const float *)b->row[first + i] + k;
            next[i] = (const float *)b->row[after] + k;
        }
        if (n == 3)
            tile(3, s->group, n_group, x, next, s->sum + first);
        else if (n == 2)
            tile(2, s->group, n_group, x, next, s->sum + first);
        else
            tile(1, s->group, n_group, x, next, s->sum + first);
    }
}

static void join(const struct scratch *s, int n_row, float *sum)
{
    const __m256 unit = _mm256_set1_ps(NVFP4_SCALE_UNIT);
    for (int i = 0; i < 2 * n_row; i++) {
        const float(*pair)[8] = &s->sum[i / 2][i % 2 * 2];
        __m256 rows = _mm256_hadd_ps(_mm256_load_ps(pair[0]), _mm256_load_ps(pair[1]));
        _mm256_store_ps(sum + 8 * i, _mm256_mul_ps(rows, unit));
    }
}

void gemm_avx2_nvfp4_many(const struct gemm_block *b)
{
    static_assert(TILE_ROWS == 3, "all_rows");
    struct scratch *s = (struct scratch *)(void *)b->decode;
    const int n_group = b->k / FP4_GROUP;
    for (int p = 0; p < b->n_panel; p++) {
        memset(s->sum, 0, (size_t)b->n_row * sizeof(s->sum[0]));
        for (int g = 0, n; g < n_group; g += n) {
            n = n_group - g < STRETCH ? n_group - g : STRETCH;
            for (int i = 0; i < n; i++)
                expand(b->panel[p] + nvfp4_codes_at(g + i), b->panel[p] + nvfp4_scale_at(g + i),
                       &s->group[i]);
            all_rows(b, s, n, g * FP4_GROUP);
        }
        join(s, b->n_row, b->sum + (size_t)p * GEMM_BLOCK_ROW * WEIGHT_PANEL);
    }
}
