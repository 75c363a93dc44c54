/* NVFP4 weights on AVX-512, x in int8: sums of 64 k are exact integers.
 *
 * A dot product of 16 codes (12 at most as 2 * e2m1) and 16 of x (127) is 24384 at most, so it fits 16 bits.
 * Two of them lie side by side in a lane, and beside them the block scales of the two groups, as 16-bit
 * integers too: e4m3 is four bits and a power of two; the largest scale that an output has in 64 k goes up to
 * 15 * 2^10, the others are smaller by their powers of two, and each is made smaller again by the power of
 * two that the group's x is finer by. Bits below one are dropped: scales beside one 2^10 times as large lose
 * some. One vpdpwssd then multiplies and adds both: four times 24384 * 15 * 2^10 stays below 2^31. The end of
 * 64 k is sum = fma(scale of x * the scales' power of two, that integer, sum): this order, and nothing else,
 * makes the bits of an output. */
#include <immintrin.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/cpu/nvfp4_avx512.h"
#include "kernels/cpu/tile_avx512.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

#define GROUPS    4        /* of a block, in halves of two                          */
#define QUADS     4        /* of k in a group                                       */
#define TILE_ROWS 8        /* whose sums are held in registers                      */
#define UNIT      0x1p-13f /* of the sums: 2^-20 of the scales, 2^8 of x, 2 * e2m1 */

/* 12 + 2 * e2m1, unsigned for vpdpbusd; vpermb looks at six index bits, two of them the next nibble's. */
static const uint8_t biased_of_code[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* acc += products of w and the four bytes at x, broadcast by the instruction itself: gcc would spend another
 * on that, and these loops have no room for it. Nor does it keep their order unless told to. */
#ifdef __clang__
INLINE __m512i dot_quad(__m512i acc, __m512i w, const int8_t *x)
{
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(load_dword(x)));
}
#else
INLINE __m512i dot_quad(__m512i acc, __m512i w, const int8_t *x)
{
    __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int8_t(*)[4])x));
    return acc;
}
#endif

/* Scales of 16 outputs in 64 k. pair: of two groups, the first in the lower half of a lane; power: of two, at
 * the place of a float's exponent. */
struct scales {
    __m512i pair[GROUPS / 2], power;
};

#define LANE(n) n, 32 + (n), 16 + (n), 48 + (n) /* its groups 0 2 1 3 */
static const uint8_t lane_order[64] = {LANE(0),  LANE(1),  LANE(2),  LANE(3), LANE(4),  LANE(5),
                                       LANE(6),  LANE(7),  LANE(8),  LANE(9), LANE(10), LANE(11),
                                       LANE(12), LANE(13), LANE(14), LANE(15)};

/* e4m3 is mantissa * 2^(exponent - 10), with the exponent of subnormals one and their mantissa below 8. */
INLINE struct scales block_scales(const uint8_t *block)
{
    __m512i e4m3 = _mm512_permutexvar_epi8(_mm512_loadu_si512(lane_order), _mm512_loadu_si512(block));
    __m512i exponent = _mm512_max_epu8(_mm512_and_si512(_mm512_srli_epi32(e4m3, 3), _mm512_set1_epi8(15)),
                                       _mm512_set1_epi8(1));
    __m512i mantissa =
        _mm512_sub_epi8(_mm512_add_epi8(e4m3, _mm512_set1_epi8(8)), _mm512_slli_epi32(exponent, 3));
    __m512i most = _mm512_max_epu8(exponent, _mm512_rol_epi32(exponent, 16));
    most = _mm512_max_epu8(most, _mm512_rol_epi32(most, 8));
    __m512i below = _mm512_sub_epi8(most, exponent);
    struct scales s;
    s.pair[0] =
        _mm512_srlv_epi16(_mm512_slli_epi16(mantissa, 10), _mm512_and_si512(below, _mm512_set1_epi16(0xff)));
    s.pair[1] =
        _mm512_srlv_epi16(_mm512_slli_epi16(_mm512_srli_epi16(mantissa, 8), 10), _mm512_srli_epi16(below, 8));
    s.power = _mm512_and_si512(_mm512_srli_epi32(most, 1), _mm512_set1_epi32(15 << 23));
    return s;
}

/* Two groups' codes to bytes: for each the four quads of k, in the order of x. */
INLINE void decode_half(const uint8_t *codes, __m512i lut, __m512i w[2][QUADS])
{
    UNROLL
    for (int g = 0; g < 2; g++) {
        UNROLL
        for (int z = 0; z < 2; z++) {
            __m512i c = load_codes(codes + NVFP4_GROUP_BYTES * g + 64 * z);
            w[g][2 * z] = _mm512_permutexvar_epi8(c, lut);
            w[g][2 * z + 1] = _mm512_permutexvar_epi8(_mm512_srli_epi16(c, 4), lut);
        }
    }
}

/* part = (part +) the products of half a block for R rows side by side: a chain of four vpdpbusd for each
 * group of each row, and what is left of them behind all. */
INLINE void add_half(const int R, const int half, __m512i w[2][QUADS], __m512i pair,
                     const struct i8_block *const *x, size_t at, __m512i *part)
{
    __m512i dot[2][2];
    UNROLL
    for (int i = 0; i < R; i++) {
        dot[i][0] = _mm512_set1_epi32(x[i][at].bias[2 * half]);
        dot[i][1] = _mm512_set1_epi32(x[i][at].bias[2 * half + 1]);
    }
    UNROLL
    for (int j = 0; j < QUADS; j++) {
        UNROLL
        for (int i = 0; i < R; i++) {
            const int8_t *q = x[i][at].q + 2 * FP4_GROUP * half + 4 * j;
            dot[i][0] = dot_quad(dot[i][0], w[0][j], q);
            dot[i][1] = dot_quad(dot[i][1], w[1][j], q + FP4_GROUP);
        }
    }
    UNROLL
    for (int i = 0; i < R; i++) {
        __m512i both = _mm512_mask_blend_epi16(0x55555555, _mm512_slli_epi32(dot[i][1], 16), dot[i][0]);
        __m512i finer = _mm512_set1_epi32(load_dword(x[i][at].finer + 2 * half));
        __m512i scale = _mm512_srlv_epi16(pair, finer);
        part[i] = half ? _mm512_dpwssd_epi32(part[i], both, scale) : _mm512_madd_epi16(both, scale);
    }
    KEEP_ORDER();
}

/* sum = fma(scale, part, sum). Exponents are added as integers: x's is 239 at most, the other 15. */
INLINE __m512 add_block(const struct i8_block *x, __m512i power, __m512i part, __m512 sum)
{
    __m512i scale = _mm512_add_epi32(power, _mm512_set1_epi32(load_dword(&x->scale)));
    return _mm512_fmadd_ps(_mm512_castsi512_ps(scale), _mm512_cvtepi32_ps(part), sum);
}

/* The panel's block with group g first; if K ends within it, a copy that is filled up with zeros: x is zero
 * there, too, and so are the products. */
INLINE const uint8_t *block_at(const uint8_t *panel, int g, int n_group, uint8_t *last)
{
    const uint8_t *block = panel + nvfp4_scale_at(g);
    if (n_group - g >= GROUPS)
        return block;
    memset(last, 0, NVFP4_BLOCK_BYTES);
    memcpy(last, block, 64 + (size_t)(n_group - g) * NVFP4_GROUP_BYTES);
    return last;
}

/* ---- sums in registers -------------------------------------------------------------------------- */

INLINE void tile_block(const int T, const uint8_t *block, const struct i8_block *const *x, size_t at,
                       __m512i lut, __m512 *sum)
{
    const struct scales s = block_scales(block);
    __m512i w[2][QUADS], part[TILE_ROWS];
    UNROLL
    for (int half = 0; half < 2; half++) {
        decode_half(block + 64 + 2 * NVFP4_GROUP_BYTES * half, lut, w);
        UNROLL
        for (int i = 0; i + 1 < T; i += 2)
            add_half(2, half, w, s.pair[half], x + i, at, part + i);
        if (T % 2)
            add_half(1, half, w, s.pair[half], x + T - 1, at, part + T - 1);
    }
    UNROLL
    for (int i = 0; i < T; i++)
        sum[i] = add_block(&x[i][at], s.power, part[i], sum[i]);
}

INLINE void i8_tile(const struct gemm_tile *t, const int P, const int T)
{
    const __m512i lut = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)biased_of_code));
    const struct i8_block *x[TILE_ROWS];
    const int n_group = t->k / FP4_GROUP;
    _Alignas(64) uint8_t last[NVFP4_BLOCK_BYTES];
    __m512 sum[TILE_ROWS];
    UNROLL
    for (int i = 0; i < P * T; i++)
        sum[i] = _mm512_setzero_ps();
    UNROLL
    for (int i = 0; i < T; i++)
        x[i] = t->x[i];
    for (int g = 0; g < n_group; g += GROUPS) {
        UNROLL
        for (int p = 0; p < P; p++) {
            const uint8_t *block = block_at(t->panel[p], g, n_group, last);
            UNROLL
            for (int line = 0; line < NVFP4_BLOCK_BYTES; line += 64)
                ask_ahead(P, T, block + line);
            tile_block(T, block, x, (size_t)(g / GROUPS), lut, sum + p * T);
        }
    }
    store_sums(t, P, T, sum, UNIT);
}

/* ---- sums in memory: codes are decoded once for all rows ---------------------------------------- */

/* R rows against a block. The next blocks of x are asked for: so many streams are more than the caches
 * follow. */
INLINE void rows_block(const int R, __m512i w[2][2][QUADS], const struct scales *s,
                       const struct i8_block *const *x, size_t at, float *sum)
{
    __m512i part[2];
    UNROLL
    for (int half = 0; half < 2; half++)
        add_half(R, half, w[half], s->pair[half], x, at, part);
    UNROLL
    for (int i = 0; i < R; i++) {
        float *to = sum + i * WEIGHT_PANEL;
        _mm512_store_ps(to, add_block(&x[i][at], s->power, part[i], _mm512_load_ps(to)));
        _mm_prefetch((const char *)&x[i][at + 2], _MM_HINT_T0);
        _mm_prefetch((const char *)&x[i][at + 2] + 64, _MM_HINT_T0);
    }
}

static void many_rows(const struct gemm_tile *t, const uint8_t *panel, float *sum)
{
    const __m512i lut = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)biased_of_code));
    const struct i8_block *const *x = (const struct i8_block *const *)t->x;
    const int n_group = t->k / FP4_GROUP;
    _Alignas(64) uint8_t last[NVFP4_BLOCK_BYTES];
    for (int i = 0; i < t->n_row; i++)
        _mm512_store_ps(sum + i * WEIGHT_PANEL, _mm512_setzero_ps());
    for (int g = 0; g < n_group; g += GROUPS) {
        const uint8_t *block = block_at(panel, g, n_group, last);
        const size_t at = (size_t)(g / GROUPS);
        UNROLL
        for (int line = 0; line < NVFP4_BLOCK_BYTES; line += 64)
            ask_ahead(1, ASK_FROM, block + line);
        const struct scales s = block_scales(block);
        __m512i w[2][2][QUADS];
        decode_half(block + 64, lut, w[0]);
        decode_half(block + 64 + 2 * NVFP4_GROUP_BYTES, lut, w[1]);
        int i = 0;
        for (; i + 1 < t->n_row; i += 2)
            rows_block(2, w, &s, x + i, at, sum + i * WEIGHT_PANEL);
        if (i < t->n_row)
            rows_block(1, w, &s, x + i, at, sum + i * WEIGHT_PANEL);
    }
    for (int i = 0; i < t->n_row; i++) {
        float *to = sum + i * WEIGHT_PANEL;
        _mm512_store_ps(to, _mm512_mul_ps(_mm512_load_ps(to), _mm512_set1_ps(UNIT)));
    }
}

void gemm_avx512_nvfp4_i8(const struct gemm_tile *t)
{
    if (t->n_row > TILE_ROWS) {
        for (int p = 0; p < t->n_panel; p++)
            many_rows(t, t->panel[p], t->sum + (size_t)p * GEMM_TILE_ROW * WEIGHT_PANEL);
        return;
    }
    TILE_SWITCH(i8_tile, t, 4)
}
