/* BF16, FP8, F16 and F32 weights on AVX-512. Each output is one chain of vdpbf16ps or fma over K. */
#include <immintrin.h>

#include "fp4/fp4.h"
#include "kernels/cpu/tile_avx512.h"
#include "kernels/gemm_kernels.h"

#define MAX_VECTOR 4 /* fp32 vectors from one unit */

/* e4m3 to bf16: the seven magnitude bits index 128 entries of each byte of the result. */
struct fp8_table {
    __m512i low[2], high[2];
};

static struct fp8_table fp8_table(void)
{
    _Alignas(64) uint8_t low[128], high[128];
    struct fp8_table table;
    for (int i = 0; i < 128; i += 16) {
        __m512i bits = _mm512_castps_si512(_mm512_loadu_ps(fp4_e4m3_value + i));
        _mm_store_si128((__m128i *)(low + i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(bits, 16)));
        _mm_store_si128((__m128i *)(high + i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(bits, 24)));
    }
    for (int i = 0; i < 2; i++) {
        table.low[i] = _mm512_load_si512(low + 64 * i);
        table.high[i] = _mm512_load_si512(high + 64 * i);
    }
    return table;
}

/* A unit is what one decoding step takes: this much of K, in this many bytes of a panel. */
INLINE int unit_k(const enum weight_type type)
{
    return type == WEIGHT_FP8 ? 4 : type == WEIGHT_BF16 ? 2 : 1;
}
INLINE int unit_bytes(const enum weight_type type)
{
    return type == WEIGHT_F16 ? 32 : 64;
}

/* One unit to vectors of bf16 pairs, two elements of K each. */
INLINE void unit_to_pairs(const enum weight_type type, const uint8_t *unit, const struct fp8_table *table,
                          __m512i *pair)
{
    __m512i v = _mm512_loadu_si512(unit);
    if (type == WEIGHT_BF16) {
        pair[0] = v;
        return;
    }
    __m512i low = _mm512_permutex2var_epi8(table->low[0], v, table->low[1]);
    __m512i high = _mm512_permutex2var_epi8(table->high[0], v, table->high[1]);
    high = _mm512_ternarylogic_epi64(high, v, _mm512_set1_epi8((char)0x80), 0xf8); /* high | (v & sign) */
    pair[0] = _mm512_unpacklo_epi8(low, high);
    pair[1] = _mm512_unpackhi_epi8(low, high);
}

/* One unit to fp32 vectors, one element of K each, in order. */
INLINE void unit_to_floats(const enum weight_type type, const uint8_t *unit, const struct fp8_table *table,
                           __m512 *w)
{
    if (type == WEIGHT_F32) {
        w[0] = _mm512_loadu_ps(unit);
        return;
    }
    if (type == WEIGHT_F16) {
        w[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)unit));
        return;
    }
    __m512i pair[2];
    unit_to_pairs(type, unit, table, pair);
    UNROLL
    for (int i = 0; i < unit_k(type) / 2; i++) {
        w[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(pair[i], 16));
        w[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(pair[i], _mm512_set1_epi32((int)0xffff0000u)));
    }
}

/* Few rows of BF16 from memory leave so much room that the window itself runs ahead, and asking takes buffers
 * that the memory's own prefetcher needs. With more rows that one falls behind; asked for early enough, lines
 * are in the second cache in time. Those of the last cache come no other way at all. */
#define SECOND_AHEAD 8192 /* bytes */
INLINE void ask_ahead(const enum weight_type type, const int P, const int T, const bool near,
                      const uint8_t *unit)
{
    if (type != WEIGHT_BF16 || near)
        _mm_prefetch((const char *)unit + PREFETCH_AHEAD, _MM_HINT_T0);
    else if (T > 2 * P + 2)
        _mm_prefetch((const char *)unit + SECOND_AHEAD, _MM_HINT_T1);
}

/* sum (P, T) += unit u of each panel times x. */
INLINE void bf16_unit(const int P, const int T, const enum weight_type type, const bool near, int u,
                      const struct fp8_table *table, const uint8_t **unit, const uint8_t *const *x,
                      __m512 *sum)
{
    const int n_pair = unit_k(type) / 2;
    __m512i w[2][2];
    UNROLL
    for (int p = 0; p < P; p++) {
        ask_ahead(type, P, T, near, unit[p]);
        unit_to_pairs(type, unit[p], table, w[p]);
        unit[p] += unit_bytes(type);
    }
    UNROLL
    for (int v = 0; v < n_pair; v++) {
        UNROLL
        for (int i = 0; i < T; i++) {
            const uint8_t *pair = x[i] + 4 * (size_t)(u * n_pair + v);
            __m512bh both = (__m512bh)_mm512_set1_epi32(load_dword(pair)); /* of one or two rows */
            UNROLL
            for (int p = 0; p < P; p++) {
                __m512 *to = &sum[p * T + i];
                *to = T > 2 ? dot_pair(*to, w[p][v], pair) : _mm512_dpbf16_ps(*to, (__m512bh)w[p][v], both);
            }
        }
    }
}

INLINE void bf16_tile(const struct gemm_tile *t, const int P, const int T, const enum weight_type type,
                      const bool near)
{
    struct fp8_table table = {0};
    if (type == WEIGHT_FP8)
        table = fp8_table();
    const int n_unit = (t->k + unit_k(type) - 1) / unit_k(type);
    const uint8_t *unit[2] = {t->panel[0], t->panel[P - 1]}, *x[MAX_SUM];
    __m512 sum[MAX_SUM];
    UNROLL
    for (int i = 0; i < P * T; i++)
        sum[i] = _mm512_setzero_ps();
    UNROLL
    for (int i = 0; i < T; i++)
        x[i] = t->x[i];
    int u = 0;
    for (; P * T == 1 && u + 4 <= n_unit; u += 4) { /* the window reaches further without a loop's counting */
        UNROLL
        for (int i = 0; i < 4; i++)
            bf16_unit(P, T, type, near, u + i, &table, unit, x, sum);
    }
    for (; u < n_unit; u++)
        bf16_unit(P, T, type, near, u, &table, unit, x, sum);
    store_sums(t, P, T, sum, 1.0f);
}

INLINE void f32_tile(const struct gemm_tile *t, const int P, const int T, const enum weight_type type)
{
    struct fp8_table table = {0};
    if (type == WEIGHT_FP8)
        table = fp8_table();
    const int n_unit = (t->k + unit_k(type) - 1) / unit_k(type);
    const uint8_t *unit[2] = {t->panel[0], t->panel[P - 1]}, *x[MAX_SUM];
    __m512 sum[MAX_SUM];
    UNROLL
    for (int i = 0; i < P * T; i++)
        sum[i] = _mm512_setzero_ps();
    UNROLL
    for (int i = 0; i < T; i++)
        x[i] = t->x[i];
    for (int u = 0; u < n_unit; u++) {
        __m512 w[2][MAX_VECTOR];
        UNROLL
        for (int p = 0; p < P; p++) {
            _mm_prefetch((const char *)unit[p] + PREFETCH_AHEAD, _MM_HINT_T0);
            unit_to_floats(type, unit[p], &table, w[p]);
            unit[p] += unit_bytes(type);
        }
        UNROLL
        for (int v = 0; v < unit_k(type); v++) {
            UNROLL
            for (int i = 0; i < T; i++) {
                int32_t bits = load_dword(x[i] + 4 * (size_t)(u * unit_k(type) + v));
                __m512 xv = _mm512_castsi512_ps(_mm512_set1_epi32(bits));
                UNROLL
                for (int p = 0; p < P; p++)
                    sum[p * T + i] = _mm512_fmadd_ps(w[p][v], xv, sum[p * T + i]);
            }
        }
    }
    store_sums(t, P, T, sum, 1.0f);
}

/* Two loops, so that none asks for each line where the panels lie. */
INLINE void bf16_bf16(const struct gemm_tile *t, const int P, const int T)
{
    if (t->near)
        bf16_tile(t, P, T, WEIGHT_BF16, true);
    else
        bf16_tile(t, P, T, WEIGHT_BF16, false);
}

#define BF16_BF16(t, P, T) bf16_bf16(t, P, T)
#define FP8_BF16(t, P, T)  bf16_tile(t, P, T, WEIGHT_FP8, false)
#define BF16_F32(t, P, T)  f32_tile(t, P, T, WEIGHT_BF16)
#define FP8_F32(t, P, T)   f32_tile(t, P, T, WEIGHT_FP8)
#define F16_F32(t, P, T)   f32_tile(t, P, T, WEIGHT_F16)
#define F32_F32(t, P, T)   f32_tile(t, P, T, WEIGHT_F32)

void gemm_avx512_bf16_bf16(const struct gemm_tile *t)
{
    TILE_SWITCH(BF16_BF16, t, 8)
}

void gemm_avx512_fp8_bf16(const struct gemm_tile *t)
{
    TILE_SWITCH(FP8_BF16, t, 6)
}

void gemm_avx512_bf16_f32(const struct gemm_tile *t)
{
    TILE_SWITCH(BF16_F32, t, 6)
}

void gemm_avx512_fp8_f32(const struct gemm_tile *t)
{
    TILE_SWITCH(FP8_F32, t, 6)
}

void gemm_avx512_f16_f32(const struct gemm_tile *t)
{
    TILE_SWITCH(F16_F32, t, 6)
}

void gemm_avx512_f32_f32(const struct gemm_tile *t)
{
    TILE_SWITCH(F32_F32, t, 6)
}
