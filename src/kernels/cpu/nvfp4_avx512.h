/* NVFP4 panels on AVX-512: what the kernels of all operand forms share. */
#ifndef NYB_KERNELS_CPU_NVFP4_AVX512_H
#define NYB_KERNELS_CPU_NVFP4_AVX512_H

#include <immintrin.h>

#include "kernels/cpu/tile_unroll.h"
#include "kernels/weight_layout.h"

INLINE __m512i load_codes(const uint8_t *c)
{
    return _mm512_loadu_si512(c);
}

/* Few sums leave memory's own prefetcher in peace, and the window runs ahead: asking for lines then costs
 * more than it brings. Others ask for every line, scales included: that prefetcher follows misses alone. */
#define ASK_FROM     4 /* sums */
#define BLOCKS_AHEAD 4

INLINE void ask_ahead(const int P, const int T, const uint8_t *line)
{
    if (P * T >= ASK_FROM)
        _mm_prefetch((const char *)line + BLOCKS_AHEAD * NVFP4_BLOCK_BYTES, _MM_HINT_T0);
}

#endif
