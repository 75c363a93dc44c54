/* Rows of x for NVFP4 weights on the matrix unit, whose folded weights are tiny. */
#include <immintrin.h>

#include "kernels/gemm_kernels.h"

/* Times 2^64; what leaves the range becomes infinite, subnormals become zero. */
void gemm_nvfp4_raise(uint16_t *to, const uint16_t *x, int n, size_t step)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), infinite = _mm512_set1_epi16(0x7f80);
    for (int i = 0; i < n; i += GEMM_BLOCK_STEP, to += step) {
        __m512i v = _mm512_loadu_si512(x + i), m = _mm512_and_si512(v, magnitude);
        __m512i sign = _mm512_andnot_si512(magnitude, v);
        __mmask32 normal = _mm512_cmpge_epu16_mask(m, _mm512_set1_epi16(0x0080));
        __mmask32 large = _mm512_cmpge_epu16_mask(m, _mm512_set1_epi16(0x5f80)); /* 2^64 */
        __mmask32 nan = _mm512_cmpgt_epu16_mask(m, infinite);
        __m512i raised = _mm512_maskz_add_epi16(normal, m, _mm512_set1_epi16(64 << 7));
        raised = _mm512_mask_mov_epi16(raised, large, infinite);
        raised = _mm512_mask_mov_epi16(raised, nan, m);
        _mm512_storeu_si512(to, _mm512_or_si512(raised, sign));
    }
}
