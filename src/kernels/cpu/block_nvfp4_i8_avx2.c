/* NVFP4 weights against many rows of int8 on AVX2: codes become bytes once for all rows, a stretch of K at a
 * time. The bits are those of gemm_avx2_nvfp4_i8: a group's dot product is exact, part = fma(block scale, dot
 * << shift, part) over 64 elements from zero, and sum = fma(x's scale, part, sum). */
#include <immintrin.h>
#include <assert.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/cpu/nvfp4_avx2.h"
#include "kernels/cpu/tile_avx2.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

#define QUADS     4  /* of k in a group                                                          */
#define GROUPS    4  /* that share a scale of x                                                  */
#define STRETCH   32 /* groups expanded at a time: with them and a few rows the first cache is full */
#define TILE_ROWS 3  /* of x: two parts and two sums of pairs each, and vectors for x and weights     */
static_assert(GROUPS * FP4_GROUP == I8_BLOCK && STRETCH % GROUPS == 0, "whole blocks of x in a stretch");

/* One group: codes as 12 + 2 * e2m1, rows 0 .. 7 and 8 .. 15, a quad of k a lane. */
struct expanded {
    uint8_t w[QUADS][2][32];
    float scale[2][8];
};

struct scratch {
    struct expanded group[STRETCH];
    float sum[GEMM_BLOCK_ROW][2][8];
};
static_assert(sizeof(struct scratch) <= GEMM_BLOCK_WIDE_BYTES, "scratch of the caller");

static void expand(const uint8_t *codes, const uint8_t *scale, struct expanded *to)
{
    const __m256i table = nvfp4_biased_codes();
    nvfp4_prefetch_group(codes);
    UNROLL
    for (int half = 0; half < 2; half++) {
        __m256i quad[QUADS];
        nvfp4_bytes(codes + 32 * half, table, quad);
        UNROLL
        for (int q = 0; q < QUADS; q++)
            _mm256_store_si256((__m256i *)(void *)to->w[q][half], quad[q]);
        _mm256_store_ps(to->scale[half], nvfp4_scale_of_8(scale + 8 * half));
    }
}

/* Rows of x from the first group expanded on. */
struct rows {
    const int8_t *x[TILE_ROWS];
    const struct i8_group *group[TILE_ROWS];
    const float *scale[TILE_ROWS];
};

/* part[2 i, 2 i + 1] += T rows against one group, number g of those expanded. */
INLINE void group_products(const int T, const struct expanded *w, const struct rows *r, int g, __m256 *part)
{
    __m256i pairs[2 * TILE_ROWS];
    UNROLL
    for (int q = 0; q < QUADS; q++) {
        __m256i a = _mm256_load_si256((const __m256i *)(const void *)w->w[q][0]);
        __m256i b = _mm256_load_si256((const __m256i *)(const void *)w->w[q][1]);
        UNROLL
        for (int i = 0; i < T; i++) {
            __m256i v = broadcast_dword(r->x[i] + g * FP4_GROUP + 4 * q);
            __m256i va = _mm256_maddubs_epi16(a, v), vb = _mm256_maddubs_epi16(b, v);
            pairs[2 * i] = q ? _mm256_add_epi16(pairs[2 * i], va) : va;
            pairs[2 * i + 1] = q ? _mm256_add_epi16(pairs[2 * i + 1], vb) : vb;
            KEEP_HERE(pairs[2 * i], pairs[2 * i + 1]);
        }
    }
    UNROLL
    for (int i = 0; i < T; i++) {
        __m256i bias = _mm256_set1_epi32(r->group[i][g].bias),
                shift = _mm256_set1_epi32(r->group[i][g].shift);
        UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i dot = _mm256_madd_epi16(pairs[2 * i + h], _mm256_set1_epi16(1));
            dot = _mm256_sllv_epi32(_mm256_add_epi32(dot, bias), shift);
            part[2 * i + h] =
                _mm256_fmadd_ps(_mm256_load_ps(w->scale[h]), _mm256_cvtepi32_ps(dot), part[2 * i + h]);
        }
        KEEP_HERE(part[2 * i], part[2 * i + 1]);
    }
}

/* T rows against n groups; sum (T, 2, 8). */
INLINE void tile(const int T, const struct expanded *w, int n, const struct rows *r, float (*sum)[2][8])
{
    for (int block = 0; block < n; block += GROUPS) {
        __m256 part[2 * TILE_ROWS];
        UNROLL
        for (int i = 0; i < 2 * T; i++)
            part[i] = _mm256_setzero_ps();
        for (int g = block; g < n && g < block + GROUPS; g++)
            group_products(T, w + g, r, g, part);
        UNROLL
        for (int i = 0; i < 2 * T; i++) {
            __m256 scale = _mm256_broadcast_ss(r->scale[i / 2] + block / GROUPS);
            _mm256_store_ps(sum[i / 2][i % 2],
                            _mm256_fmadd_ps(scale, part[i], _mm256_load_ps(sum[i / 2][i % 2])));
        }
    }
}

/* All rows against the groups expanded, which begin with number `group` of a row. */
static void all_rows(const struct gemm_block *b, struct scratch *s, int n_group, int group)
{
    for (int first = 0, n; first < b->n_row; first += n) {
        struct rows r;
        n = b->n_row - first < TILE_ROWS ? b->n_row - first : TILE_ROWS;
        for (int i = 0; i < n; i++) {
            r.x[i] = (const int8_t *)b->row[first + i] + group * FP4_GROUP;
            r.group[i] = (const struct i8_group *)b->group[first + i] + group;
            r.scale[i] = b->scale[first + i] + group / GROUPS;
        }
        if (n == 3)
            tile(3, s->group, n_group, &r, s->sum + first);
        else if (n == 2)
            tile(2, s->group, n_group, &r, s->sum + first);
        else
            tile(1, s->group, n_group, &r, s->sum + first);
    }
}

void gemm_avx2_nvfp4_i8_many(const struct gemm_block *b)
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
            all_rows(b, s, n, g);
        }
        nvfp4_store_block(b, p, s->sum);
    }
}
