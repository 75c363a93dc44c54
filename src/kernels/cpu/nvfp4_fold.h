/* NVFP4 weights with their block scales folded in, for the matrix unit: vector work of AVX512-FP16. */
#ifndef NYB_KERNELS_CPU_NVFP4_FOLD_H
#define NYB_KERNELS_CPU_NVFP4_FOLD_H

#include <immintrin.h>

#include "kernels/cpu/tile_unroll.h"
#include "kernels/weight_layout.h"

/* Upper bytes of e2m1 times 2^12 in fp16, whose lower bytes are zero. Four times over, because the permute
 * looks at two bits of the next nibble as well. */
#define CODES 0x00, 0x68, 0x6c, 0x6e, 0x70, 0x72, 0x74, 0x76, 0x80, 0xe8, 0xec, 0xee, 0xf0, 0xf2, 0xf4, 0xf6
static const _Alignas(64) uint8_t f16_of_code[64] = {CODES, CODES, CODES, CODES};

/* What is the same for every group. It is made once a panel: the statements of the matrix unit between two
 * groups keep the compiler from remembering it by itself. */
struct fold {
    __m512i table, upper, keep;
    __m512i
        scales[4]; /* by group of a block: its scales to the upper bytes of both halves of each row's lane */
};

INLINE __m512i fold_scale_index(int g)
{
    __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    row = _mm512_add_epi32(row, _mm512_set1_epi32(16 * g));
    return _mm512_or_si512(_mm512_slli_epi32(row, 8), _mm512_slli_epi32(row, 24));
}

INLINE struct fold fold_open(void)
{
    struct fold f = {
        .table = _mm512_load_si512(f16_of_code),
        .upper = _mm512_set1_epi16((short)0xff00),
        .keep = _mm512_set1_epi16((short)0x8fff),
        .scales = {fold_scale_index(0), fold_scale_index(1), fold_scale_index(2), fold_scale_index(3)},
    };
    __asm__("" : "+v"(f.table), "+v"(f.upper), "+v"(f.keep));
    __asm__("" : "+v"(f.scales[0]), "+v"(f.scales[1]), "+v"(f.scales[2]), "+v"(f.scales[3]));
    return f;
}

/* 2^12 code times 2^-8 scale, at most 43008 and a normal number or zero, to bf16: the exponent field stays as
 * it is and so stands for 2^-112 of that. */
INLINE __m512i fold_product(const struct fold *f, __m512i code, __m512h scale)
{
    __m512i f16 = _mm512_castph_si512(_mm512_mul_ph(_mm512_castsi512_ph(code), scale));
    return _mm512_and_si512(_mm512_srai_epi16(f16, 3), f->keep);
}

/* A fourth of the block at `ahead` is sent for, to the second cache: the first one's few places for lines on
 * their way are wanted for rows of x. */
INLINE void fold_ask(const uint8_t *ahead, const int g)
{
    _mm_prefetch((const char *)ahead + 128 * g, _MM_HINT_T1);
    _mm_prefetch((const char *)ahead + 128 * g + 64, _MM_HINT_T1);
    if (g == 3)
        _mm_prefetch((const char *)ahead + 512, _MM_HINT_T1);
}

/* A line that will be written. */
INLINE void fold_ask_out(const uint8_t *line)
{
    __asm__ volatile("prefetchw %0" : : "m"(*line));
}

/* Group g (literal, 0 .. 3) of the block to operand B, 8 lines of 64 bytes: a line holds a pair of k of all
 * 16 rows of the panel, as bf16 that are 2^-108 of the weights, exactly; 64-byte aligned. */
INLINE void fold_group(const struct fold *f, const uint8_t *block, const int g, uint8_t *line)
{
    /* 2^-8 of the scales: e4m3 is fp16 bits then, subnormals too. */
    const __mmask64 upper = 0xaaaaaaaaaaaaaaaau;
    __m512i scales = _mm512_maskz_permutexvar_epi8(upper, f->scales[g], _mm512_loadu_si512(block));
    const __m512h scale = _mm512_castsi512_ph(_mm512_srli_epi16(scales, 1));
    UNROLL
    for (int z = 0; z < 2; z++) {
        __m512i c = _mm512_loadu_si512(block + nvfp4_codes_at(g) + 64 * z);
        __m512i even = _mm512_permutexvar_epi8(c, f->table); /* pairs 0 and 2 of each half */
        __m512i odd = _mm512_permutexvar_epi8(_mm512_srli_epi16(c, 4), f->table); /* 1 and 3 */
        __m512i *to = (__m512i *)(void *)(line + 256 * z);
        _mm512_store_si512(to, fold_product(f, _mm512_slli_epi16(even, 8), scale));
        _mm512_store_si512(to + 1, fold_product(f, _mm512_slli_epi16(odd, 8), scale));
        _mm512_store_si512(to + 2, fold_product(f, _mm512_and_si512(even, f->upper), scale));
        _mm512_store_si512(to + 3, fold_product(f, _mm512_and_si512(odd, f->upper), scale));
    }
}

#endif
