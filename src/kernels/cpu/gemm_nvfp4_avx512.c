/* NVFP4 weights on AVX-512: bf16 and fp32 operands. One lane is one row of the panel; x is broadcast.
 * The order of operations for an output is written once, in the innermost function of each form, and is the
 * same for any number of panels P and rows T. */
#include <immintrin.h>

#include "fp4/fp4.h"
#include "kernels/cpu/nvfp4_avx512.h"
#include "kernels/cpu/nvfp4_codes.h"
#include "kernels/cpu/tile_avx512.h"
#include "kernels/gemm_kernels.h"
#include "kernels/weight_layout.h"

INLINE __m512 block_scale(const uint8_t *s)
{
    __m256i half = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)s)), 7);
    return _mm512_cvtph_ps(half);
}

/* Vector operators rather than intrinsics, which want a literal count even where nothing is optimized. */
INLINE __m512i shift_halves(__m512i v, const int bits)
{
    return (__m512i)((__v32hu)v >> (unsigned short)bits);
}
INLINE __m512i shift_lanes(__m512i v, const int bits)
{
    return (__m512i)((__v16su)v >> (unsigned)bits);
}

/* Group q of a block in each panel; what lies ahead of it is sent for. */
INLINE void find_group(const uint8_t *const *block, const int P, int q, const uint8_t **codes,
                       const uint8_t **scale)
{
    codes[0] = block[0] + 64 + NVFP4_GROUP_BYTES * q;
    scale[0] = block[0] + WEIGHT_PANEL * q;
    _mm_prefetch((const char *)codes[0] + PREFETCH_AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)codes[0] + PREFETCH_AHEAD + 64, _MM_HINT_T0);
    if (P == 1)
        return;
    codes[1] = block[1] + 64 + NVFP4_GROUP_BYTES * q;
    scale[1] = block[1] + WEIGHT_PANEL * q;
    _mm_prefetch((const char *)codes[1] + PREFETCH_AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)codes[1] + PREFETCH_AHEAD + 64, _MM_HINT_T0);
}

/* For each group g of t: its codes and scale in each of P panels. */
#define EACH_GROUP(t, P, body)                                        \
    do {                                                              \
        const uint8_t *block[2] = {(t)->panel[0], (t)->panel[(P)-1]}; \
        const int n_group = (t)->k / FP4_GROUP;                       \
        for (int g0 = 0; g0 < n_group; g0 += 4) {                     \
            const int n_here = n_group - g0 < 4 ? n_group - g0 : 4;   \
            for (int q = 0; q < n_here; q++) {                        \
                const int g = g0 + q;                                 \
                const uint8_t *codes[2], *scale[2];                   \
                find_group(block, P, q, codes, scale);                \
                body;                                                 \
            }                                                         \
            block[0] += NVFP4_BLOCK_BYTES;                            \
            block[1] += NVFP4_BLOCK_BYTES;                            \
        }                                                             \
    } while (0)

/* sum = fma(block scale, dot, sum): the end of every group. */
INLINE void add_scaled(const int P, const int T, const __m512 s0, const __m512 s1, const __m512 *dot,
                       __m512 *sum)
{
    UNROLL
    for (int i = 0; i < T; i++) {
        sum[i] = _mm512_fmadd_ps(s0, dot[i], sum[i]);
        if (P == 2)
            sum[T + i] = _mm512_fmadd_ps(s1, dot[T + i], sum[T + i]);
    }
}

/* ---- bf16 -------------------------------------------------------------------------------------- */

/* The bits of e4m3, where a float has those of its exponent's end and its mantissa's beginning, are the scale
 * times 2^-120, small ones too: two operations where going through fp16 takes more. So that sums stay normal
 * numbers codes are decoded as 2^60 times what they are. Both are powers of two: no result is another, as
 * long as no dot product of codes reaches 2^68, and no sum of them with their block scales, which is held as
 * 2^-60 of what it is, comes below 2^-66: bits are lost then. */
#define CODE_EXPONENT 60
#define RAISED_UNIT   0x1p60f /* of sums */

INLINE __m512 raised_scale(const uint8_t *s)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)s)), 20));
}

INLINE __m512i raised_codes(void)
{
    __m512i code = _mm512_loadu_si512(nvfp4_bf16_of_code);
    __mmask32 some = _mm512_test_epi16_mask(code, _mm512_set1_epi16(0x7fff));
    return _mm512_mask_add_epi16(code, some, code, _mm512_set1_epi16(CODE_EXPONENT << 7));
}

/* Groups worked on at once. A dot product is a chain of eight vdpbf16ps, so that one chain alone waits for
 * itself; several groups of a block run side by side, each in the order it always has, as far as registers
 * last. */
INLINE int bf16_groups(const int P, const int T)
{
    return T <= 4 ? (P * T == 8 ? 1 : 4 / P) : 2;
}

/* A group is eight steps of two k. So many steps before its products one is decoded: with few rows the queues
 * fill up with products that wait for it. */
INLINE int bf16_steps_ahead(const int T)
{
    return T <= 2 ? 2 : 0;
}
#define STEPS       8
#define STEPS_AHEAD 2 /* at most */

/* Step number `step` of G groups from number q of a block on: their codes (G, P), if they begin here, and
 * weights (G, P). */
INLINE void bf16_decode(const int P, const int T, const int G, const int step, const uint8_t *const *block,
                        int q, __m512i lut, __m512i *codes, __m512i *w)
{
    UNROLL
    for (int i = 0; i < G * P; i++) {
        if (step % 4 == 0) {
            const uint8_t *from = block[i % P] + 64 + NVFP4_GROUP_BYTES * (q + i / P) + 16 * step;
            ask_ahead(P, T, from);
            codes[i] = load_codes(from);
        }
        w[i] = _mm512_permutexvar_epi16(shift_halves(codes[i], 4 * (step % 4)), lut);
    }
}

/* dot (G, P, T) += w (G, P) times the pairs of that step. x_at: byte of the first group's x. */
INLINE void bf16_multiply(const int P, const int T, const int G, const int step, const __m512i *w,
                          const uint8_t *const *x, size_t x_at, __m512 *dot)
{
    UNROLL
    for (int e = 0; e < G * P; e++) {
        UNROLL
        for (int i = 0; i < T; i++)
            dot[e * T + i] = dot_pair(dot[e * T + i], w[e], x[i] + x_at + (size_t)(32 * (e / P) + 4 * step));
    }
}

/* dot (G, P, T) += the pairs of G groups from number q of a block on. */
INLINE void bf16_dots(const int P, const int T, const int G, const uint8_t *const *block, int q,
                      const uint8_t *const *x, size_t x_at, __m512i lut, __m512 *dot)
{
    const int ahead = bf16_steps_ahead(T);
    __m512i codes[4], w[STEPS_AHEAD + 1][4];
    UNROLL
    for (int step = 0; step < STEPS + ahead; step++) {
        if (step < STEPS)
            bf16_decode(P, T, G, step, block, q, lut, codes, w[step % (ahead + 1)]);
        if (step >= ahead)
            bf16_multiply(P, T, G, step - ahead, w[(step - ahead) % (ahead + 1)], x, x_at, dot);
        KEEP_ORDER();
    }
}

/* G groups from number q of a block on: their dot products, then sum += scale * dot, in the order of K. */
INLINE void bf16_groups_at(const int P, const int T, const int G, const uint8_t *const *block, int q,
                           const uint8_t *const *x, size_t x_at, __m512i lut, __m512 *sum)
{
    __m512 dot[MAX_SUM];
    UNROLL
    for (int i = 0; i < G * P * T; i++)
        dot[i] = _mm512_setzero_ps();
    bf16_dots(P, T, G, block, q, x, x_at, lut, dot);
    UNROLL
    for (int e = 0; e < G; e++) {
        __m512 s0 = raised_scale(block[0] + WEIGHT_PANEL * (q + e));
        __m512 s1 = raised_scale(block[P - 1] + WEIGHT_PANEL * (q + e));
        add_scaled(P, T, s0, s1, dot + e * P * T, sum);
    }
}

INLINE void bf16_tile(const struct gemm_tile *t, const int P, const int T)
{
    const __m512i lut = raised_codes();
    const uint8_t *block[2] = {t->panel[0], t->panel[P - 1]}, *x[MAX_SUM];
    const int n_group = t->k / FP4_GROUP;
    const int G = bf16_groups(P, T);
    __m512 sum[MAX_SUM];
    UNROLL
    for (int i = 0; i < P * T; i++)
        sum[i] = _mm512_setzero_ps();
    UNROLL
    for (int i = 0; i < T; i++)
        x[i] = t->x[i];
    int g = 0;
    for (; g + 4 <= n_group; g += 4) {
        UNROLL
        for (int p = 0; p < P; p++)
            ask_ahead(P, T, block[p]);
        UNROLL
        for (int q = 0; q < 4; q += G)
            bf16_groups_at(P, T, G, block, q, x, (size_t)(g + q) * 32, lut, sum);
        block[0] += NVFP4_BLOCK_BYTES;
        block[1] += NVFP4_BLOCK_BYTES;
    }
    for (int q = 0; g + q < n_group; q++)
        bf16_groups_at(P, T, 1, block, q, x, (size_t)(g + q) * 32, lut, sum);
    store_sums(t, P, T, sum, RAISED_UNIT);
}

void gemm_avx512_nvfp4_bf16(const struct gemm_tile *t){TILE_SWITCH(bf16_tile, t, 4)}

/* ---- fp32 -------------------------------------------------------------------------------------- */

INLINE void f32_group(const int P, const int T, const uint8_t *const *codes, const uint8_t *const *scale,
                      const uint8_t *const *x, size_t x_at, __m512 lut, __m512 *sum)
{
    __m512 dot[MAX_SUM];
    UNROLL
    for (int i = 0; i < P * T; i++)
        dot[i] = _mm512_setzero_ps();
    UNROLL
    for (int z = 0; z < 2; z++) {
        __m512i c0 = load_codes(codes[0] + 64 * z), c1 = load_codes(codes[P - 1] + 64 * z);
        UNROLL
        for (int j = 0; j < 8; j++) { /* nibble j holds k = 2 j, or 2 j - 7 from the fifth on */
            size_t k = (size_t)(8 * z + (j < 4 ? 2 * j : 2 * j - 7));
            __m512 w0 = _mm512_permutexvar_ps(shift_lanes(c0, 4 * j), lut);
            __m512 w1 = _mm512_permutexvar_ps(shift_lanes(c1, 4 * j), lut);
            UNROLL
            for (int i = 0; i < T; i++) {
                __m512 v = _mm512_castsi512_ps(_mm512_set1_epi32(load_dword(x[i] + x_at + 4 * k)));
                dot[i] = _mm512_fmadd_ps(w0, v, dot[i]);
                if (P == 2)
                    dot[T + i] = _mm512_fmadd_ps(w1, v, dot[T + i]);
            }
            KEEP_ORDER();
        }
    }
    add_scaled(P, T, block_scale(scale[0]), block_scale(scale[P - 1]), dot, sum);
}

INLINE void f32_tile(const struct gemm_tile *t, const int P, const int T)
{
    const __m512 lut = _mm512_loadu_ps(fp4_e2m1_value);
    const uint8_t *x[MAX_SUM];
    __m512 sum[MAX_SUM];
    UNROLL
    for (int i = 0; i < P * T; i++)
        sum[i] = _mm512_setzero_ps();
    UNROLL
    for (int i = 0; i < T; i++)
        x[i] = t->x[i];
    EACH_GROUP(t, P, f32_group(P, T, codes, scale, x, (size_t)g * 64, lut, sum));
    store_sums(t, P, T, sum, NVFP4_SCALE_UNIT);
}

void gemm_avx512_nvfp4_f32(const struct gemm_tile *t)
{
    TILE_SWITCH(f32_tile, t, 4)
}
