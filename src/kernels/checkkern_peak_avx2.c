#include <immintrin.h>

#include "kernels/checkkern_peak.h"
#include "kernels/cpu/tile_unroll.h"

#define CHAINS 12 /* more than latency times issue rate; 16 registers */

double checkkern_peak_f32_avx2(long rounds, float *sink)
{
    __m256 sum[CHAINS], x = _mm256_set1_ps(*sink), y = _mm256_set1_ps(*sink);
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_ps((float)i); /* all different, or they are one to the compiler */
    for (long r = 0; r < rounds; r++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm256_fmadd_ps(x, y, sum[i]);
    }
    UNROLL
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    float out[8];
    _mm256_storeu_ps(out, sum[0]);
    *sink = out[0] + out[1] + out[2] + out[3] + out[4] + out[5] + out[6] + out[7];
    return (double)rounds * CHAINS * 16;
}

#define INTEGER_CHAINS 8 /* additions take one clock; the products need registers, too */

/* One factor is new to the compiler each time, or the product would be taken out of the loop; sums stay where
 * they are, or gcc moves them about. */
#define INTEGER_PEAK(name, multiply, add, operations)                          \
    double name(long rounds, float *sink)                                      \
    {                                                                          \
        __m256i sum[INTEGER_CHAINS], x = _mm256_set1_epi32((int)*sink), y = x; \
        UNROLL                                                                 \
        for (int i = 0; i < INTEGER_CHAINS; i++)                               \
            sum[i] = _mm256_set1_epi32(i);                                     \
        for (long r = 0; r < rounds; r++) {                                    \
            UNROLL                                                             \
            for (int i = 0; i < INTEGER_CHAINS; i++) {                         \
                sum[i] = add(sum[i], multiply(x, y));                          \
                __asm__ volatile("" : "+x"(x), "+x"(sum[i]));                  \
            }                                                                  \
        }                                                                      \
        UNROLL                                                                 \
        for (int i = 1; i < INTEGER_CHAINS; i++)                               \
            sum[0] = _mm256_xor_si256(sum[0], sum[i]);                         \
        *sink = (float)_mm256_extract_epi32(sum[0], 0);                        \
        return (double)rounds * INTEGER_CHAINS * (operations);                 \
    }
INTEGER_PEAK(checkkern_peak_i16_avx2, _mm256_madd_epi16, _mm256_add_epi32, 32)
INTEGER_PEAK(checkkern_peak_i8_avx2, _mm256_maddubs_epi16, _mm256_add_epi16, 64)

static inline __attribute__((always_inline)) uint64_t read_all(const uint64_t *data, size_t n, const bool ask)
{
    __m256i sum[8];
    UNROLL
    for (int i = 0; i < 8; i++)
        sum[i] = _mm256_setzero_si256();
    for (size_t at = 0; at < n; at += 32) {
        UNROLL
        for (int i = 0; i < 8; i++) {
            if (ask && i % 2 == 0)
                _mm_prefetch((const char *)(data + at + 4 * i) + PREFETCH_AHEAD, _MM_HINT_T0);
            sum[i] = _mm256_add_epi64(sum[i], _mm256_loadu_si256((const __m256i *)(data + at + 4 * i)));
        }
    }
    UNROLL
    for (int i = 1; i < 8; i++)
        sum[0] = _mm256_xor_si256(sum[0], sum[i]);
    uint64_t out[4];
    _mm256_storeu_si256((__m256i *)out, sum[0]);
    return out[0] ^ out[1] ^ out[2] ^ out[3];
}

uint64_t checkkern_read_avx2(const uint64_t *data, size_t n)
{
    return read_all(data, n, true);
}

uint64_t checkkern_read_avx2_alone(const uint64_t *data, size_t n)
{
    return read_all(data, n, false);
}
