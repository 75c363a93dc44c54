/* FP8 caches to bf16. */
#ifndef NYB_KERNELS_CPU_FP8_AVX512_H
#define NYB_KERNELS_CPU_FP8_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

/* The bf16 of each e4m3 magnitude, exact: high and low bytes. Exponent e and mantissa m of e4m3 are
 * (e + 120) << 7 | m << 4 in bf16; e = 0 holds the subnormals m * 2^-9, and 0x7f is NaN. */
#define HIGH_8(e)                                                                                         \
    ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2, ((e) + 120) / 2, \
        ((e) + 120) / 2, ((e) + 120) / 2
#define LOW(e, m) (((e) + 120) % 2 * 128 + (m)*16)
#define LOW_8(e)  LOW(e, 0), LOW(e, 1), LOW(e, 2), LOW(e, 3), LOW(e, 4), LOW(e, 5), LOW(e, 6), LOW(e, 7)

static const _Alignas(64) uint8_t bf16_high[128] = {
    0,         0x3b,       0x3b,       0x3b,       0x3c,       0x3c,       0x3c,      0x3c,
    HIGH_8(1), HIGH_8(2),  HIGH_8(3),  HIGH_8(4),  HIGH_8(5),  HIGH_8(6),  HIGH_8(7), HIGH_8(8),
    HIGH_8(9), HIGH_8(10), HIGH_8(11), HIGH_8(12), HIGH_8(13), HIGH_8(14), 0x43,      0x43,
    0x43,      0x43,       0x43,       0x43,       0x43,       0x7f,
};
static const _Alignas(64) uint8_t bf16_low[128] = {
    0,          0x00,       0x80,       0xc0,       0x00,       0x20,      0x40,       0x60,
    LOW_8(1),   LOW_8(2),   LOW_8(3),   LOW_8(4),   LOW_8(5),   LOW_8(6),  LOW_8(7),   LOW_8(8),
    LOW_8(9),   LOW_8(10),  LOW_8(11),  LOW_8(12),  LOW_8(13),  LOW_8(14), LOW(15, 0), LOW(15, 1),
    LOW(15, 2), LOW(15, 3), LOW(15, 4), LOW(15, 5), LOW(15, 6), 0xc0,
};

/* n groups of 64 e4m3 bytes to 64 bf16 each, in the order of kv.h; `next` is prefetched. */
static void fp8_decode(uint8_t *dst, const uint8_t *src, size_t n, const uint8_t *next)
{
    const __m512i high_a = _mm512_load_si512(bf16_high), high_b = _mm512_load_si512(bf16_high + 64);
    const __m512i low_a = _mm512_load_si512(bf16_low), low_b = _mm512_load_si512(bf16_low + 64);
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    for (size_t i = 0; i < n; i++) {
        __builtin_prefetch(next + 64 * i, 0, 2);
        __m512i code = _mm512_loadu_si512(src + 64 * i); /* the permutes ignore bit 7 */
        __m512i high = _mm512_permutex2var_epi8(high_a, code, high_b);
        __m512i low = _mm512_permutex2var_epi8(low_a, code, low_b);
        high = _mm512_ternarylogic_epi32(high, code, sign, 0xf8); /* high | (code & sign) */
        _mm512_storeu_si512(dst + 128 * i, _mm512_unpacklo_epi8(low, high));
        _mm512_storeu_si512(dst + 128 * i + 64, _mm512_unpackhi_epi8(low, high));
    }
}

#endif
