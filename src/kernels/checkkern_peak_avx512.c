#include <immintrin.h>

#include "kernels/checkkern_peak.h"
#include "kernels/cpu/tile_unroll.h"

#define CHAINS 16 /* more than latency times issue rate */

double checkkern_peak_f32_avx512(long rounds, float *sink)
{
    __m512 sum[CHAINS], x = _mm512_set1_ps(*sink), y = _mm512_set1_ps(*sink);
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i); /* all different, or they are one to the compiler */
    for (long r = 0; r < rounds; r++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_fmadd_ps(x, y, sum[i]);
    }
    UNROLL
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    *sink = _mm512_reduce_add_ps(sum[0]);
    return (double)rounds * CHAINS * 32;
}

double checkkern_peak_bf16_avx512(long rounds, float *sink)
{
    __m512 sum[CHAINS];
    __m512i x = _mm512_castps_si512(_mm512_set1_ps(*sink));
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_ps((float)i); /* all different, or they are one to the compiler */
    for (long r = 0; r < rounds; r++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)x, (__m512bh)x);
    }
    UNROLL
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    *sink = _mm512_reduce_add_ps(sum[0]);
    return (double)rounds * CHAINS * 64;
}

double checkkern_peak_i8_avx512(long rounds, float *sink)
{
    __m512i sum[CHAINS], x = _mm512_castps_si512(_mm512_set1_ps(*sink));
    UNROLL
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_epi32(i);
    for (long r = 0; r < rounds; r++) {
        UNROLL
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], x, x);
    }
    UNROLL
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    *sink = (float)_mm512_reduce_add_epi32(_mm512_srai_epi32(sum[0], 5)); /* 16 lanes cannot overflow */
    return (double)rounds * CHAINS * 128;
}
