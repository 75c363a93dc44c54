#include "kernels/cpu/nvfp4_fold.h"

#include <immintrin.h>

#include "kernels/cpu/tile_unroll.h"
#include "kernels/weight_layout.h"

/* Upper bytes of e2m1 times 2^12 in fp16, whose lower bytes are zero. Four times over, because the permute
 * looks at two bits of the next nibble as well. */
#define CODES 0x00, 0x68, 0x6c, 0x6e, 0x70, 0x72, 0x74, 0x76, 0x80, 0xe8, 0xec, 0xee, 0xf0, 0xf2, 0xf4, 0xf6
static const _Alignas(64) uint8_t f16_of_code[64] = {CODES, CODES, CODES, CODES};

/* Group g's scales to the upper bytes of both halves of each row's lane, from the 64 of a block. */
INLINE __m512i scale_index(int g)
{
    __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    row = _mm512_add_epi32(row, _mm512_set1_epi32(16 * g));
    return _mm512_or_si512(_mm512_slli_epi32(row, 8), _mm512_slli_epi32(row, 24));
}

/* 2^-8 of the scales: e4m3 is fp16 bits then, subnormals too. */
INLINE __m512h scale_of_group(__m512i scales, int g)
{
    __m512i upper = _mm512_maskz_permutexvar_epi8(0xaaaaaaaaaaaaaaaau, scale_index(g), scales);
    return _mm512_castsi512_ph(_mm512_srli_epi16(upper, 1));
}

/* 2^12 code times 2^-8 scale, at most 43008 and a normal number or zero, to bf16: the exponent field stays as
 * it is and so stands for 2^-112 of that. */
INLINE __m512i fold(__m512i code, __m512h scale)
{
    __m512i f16 = _mm512_castph_si512(_mm512_mul_ph(_mm512_castsi512_ph(code), scale));
    return _mm512_and_si512(_mm512_srai_epi16(f16, 3), _mm512_set1_epi16((short)0x8fff));
}

INLINE void fold_group(const uint8_t *codes, __m512h scale, __m512i table, uint8_t *line)
{
    const __m512i upper = _mm512_set1_epi16((short)0xff00);
    UNROLL
    for (int z = 0; z < 2; z++) {
        __m512i c = _mm512_loadu_si512(codes + 64 * z);
        __m512i even = _mm512_permutexvar_epi8(c, table); /* pairs 0 and 2 of each half */
        __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(c, 4), table); /* 1 and 3 */
        __m512i *to = (__m512i *)(void *)(line + 256 * z);
        _mm512_store_si512(to, fold(_mm512_slli_epi16(even, 8), scale));
        _mm512_store_si512(to + 1, fold(_mm512_slli_epi16(odd, 8), scale));
        _mm512_store_si512(to + 2, fold(_mm512_and_si512(even, upper), scale));
        _mm512_store_si512(to + 3, fold(_mm512_and_si512(odd, upper), scale));
    }
}

void gemm_nvfp4_fold_in(const uint8_t *block, int n_group, uint8_t *line, const uint8_t *ahead)
{
    const __m512i table = _mm512_load_si512(f16_of_code), scales = _mm512_loadu_si512(block);
    for (int i = 0; i < NVFP4_BLOCK_BYTES / 64; i++)
        _mm_prefetch((const char *)ahead + 64 * i, _MM_HINT_T0);
    if (n_group == 4) { /* with all numbers known, so that indexes are constants */
        UNROLL
        for (int g = 0; g < 4; g++)
            fold_group(block + nvfp4_codes_at(g), scale_of_group(scales, g), table, line + 512 * g);
        return;
    }
    for (int g = 0; g < n_group; g++)
        fold_group(block + nvfp4_codes_at(g), scale_of_group(scales, g), table, line + 512 * g);
}

void gemm_nvfp4_raise(uint16_t *to, const uint16_t *x, int n)
{
    const __m512i magnitude = _mm512_set1_epi16(0x7fff), infinite = _mm512_set1_epi16(0x7f80);
    for (int i = 0; i < n; i += 32) {
        __m512i v = _mm512_loadu_si512(x + i), m = _mm512_and_si512(v, magnitude);
        __m512i sign = _mm512_andnot_si512(magnitude, v);
        __mmask32 normal = _mm512_cmpge_epu16_mask(m, _mm512_set1_epi16(0x0080));
        __mmask32 large = _mm512_cmpge_epu16_mask(m, _mm512_set1_epi16(0x5f80)); /* 2^64 */
        __mmask32 nan = _mm512_cmpgt_epu16_mask(m, infinite);
        __m512i raised = _mm512_maskz_add_epi16(normal, m, _mm512_set1_epi16(64 << 7));
        raised = _mm512_mask_mov_epi16(raised, large, infinite);
        raised = _mm512_mask_mov_epi16(raised, nan, m);
        _mm512_storeu_si512(to + i, _mm512_or_si512(raised, sign));
    }
}
