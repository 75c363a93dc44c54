/* The same as pack_avx512.c with 8 rows of 32 bytes at a time. */
#include <immintrin.h>
#include <string.h>

#include "kernels/weight_layout.h"
#include "kernels/weight_pack.h"

#define CHUNK 32 /* bytes of a row at a time */

/* in[row] of 8 dwords to out[column]. */
static inline void transpose(const __m256i in[8], __m256i out[8])
{
    __m256i t[8], r[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(in[i], in[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int b = 0; b < 4; b++) {
        out[b] = _mm256_permute2x128_si256(r[b], r[4 + b], 0x20);
        out[4 + b] = _mm256_permute2x128_si256(r[b], r[4 + b], 0x31);
    }
}

/* Rows first .. first + 7 of n_row: dword column c to column[c], with zeros as in pack_avx512.c. */
static inline void load_columns(const uint8_t *rows, size_t row_bytes, int n_row, int first, size_t at,
                                __m256i column[8])
{
    __m256i row[8];
    size_t left = row_bytes - at < CHUNK ? row_bytes - at : CHUNK;
    for (int r = 0; r < 8; r++) {
        const uint8_t *from = rows + (size_t)(first + r) * row_bytes + at;
        _Alignas(32) uint8_t tail[CHUNK] = {0};
        if (first + r >= n_row) {
            row[r] = _mm256_setzero_si256();
        } else if (left == CHUNK) {
            row[r] = _mm256_loadu_si256((const void *)from);
        } else {
            memcpy(tail, from, left);
            row[r] = _mm256_load_si256((const void *)tail);
        }
    }
    transpose(row, column);
}

static inline void store(uint8_t *to, __m256i x)
{
    _mm256_stream_si256((void *)to, x);
}

static inline int columns_left(size_t row_bytes, size_t at)
{
    size_t left = (row_bytes - at + 3) / 4;
    return left < 8 ? (int)left : 8;
}

static inline __m256i nibbles_deinterleave(__m256i x)
{
    __m256i t = _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, 4)), _mm256_set1_epi32(0x00f000f0));
    x = _mm256_xor_si256(x, _mm256_xor_si256(t, _mm256_slli_epi32(t, 4)));
    t = _mm256_and_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, 8)), _mm256_set1_epi32(0x0000ff00));
    return _mm256_xor_si256(x, _mm256_xor_si256(t, _mm256_slli_epi32(t, 8)));
}

/* Four groups at a time: dwords [row] of four bytes to bytes [group][row]. */
static void pack_scales(uint8_t *panel, int n_group, int n_row, const uint8_t *scales)
{
    const __m128i to_groups = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int g = 0; g < n_group; g += 4) {
        _Alignas(16) uint32_t dword[16] = {0};
        size_t n = n_group - g < 4 ? (size_t)(n_group - g) : 4;
        for (int r = 0; r < n_row; r++) {
            const uint8_t *from = scales + (size_t)r * (size_t)n_group + g;
            memcpy(&dword[r], from, n == 4 ? 4 : n);
        }
        __m128i x[4], *to = (__m128i *)(void *)(panel + nvfp4_scale_at(g));
        for (int i = 0; i < 4; i++)
            x[i] = _mm_shuffle_epi8(_mm_load_si128((const __m128i *)(const void *)dword + i), to_groups);
        __m128i low01 = _mm_unpacklo_epi32(x[0], x[1]), low23 = _mm_unpacklo_epi32(x[2], x[3]);
        __m128i high01 = _mm_unpackhi_epi32(x[0], x[1]), high23 = _mm_unpackhi_epi32(x[2], x[3]);
        _mm_stream_si128(to, _mm_unpacklo_epi64(low01, low23));
        _mm_stream_si128(to + 1, _mm_unpackhi_epi64(low01, low23));
        _mm_stream_si128(to + 2, _mm_unpacklo_epi64(high01, high23));
        _mm_stream_si128(to + 3, _mm_unpackhi_epi64(high01, high23));
    }
}

void weight_pack_nvfp4_avx2(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    size_t row_bytes = (size_t)k / 2;
    int n_group = k / 16;
    __m256i column[8];
    for (int g = 0; g < n_group; g += 4)
        for (int half = 0; half < 2; half++) {
            load_columns(rows, row_bytes, n_row, 8 * half, (size_t)g * 8, column);
            int n = n_group - g < 4 ? n_group - g : 4;
            for (int i = 0; i < n; i++) {
                uint8_t *to = panel + nvfp4_codes_at(g + i) + 32 * half;
                store(to, nibbles_deinterleave(column[2 * i]));
                store(to + 64, nibbles_deinterleave(column[2 * i + 1]));
            }
        }
    pack_scales(panel, n_group, n_row, scales);
    _mm_sfence();
}

/* Column c of eight rows goes to half of a vector of 64 bytes, after `shuffle` within each 16. */
static inline void pack_bytes(uint8_t *panel, size_t row_bytes, int n_row, const uint8_t *rows,
                              const __m256i *shuffle)
{
    __m256i column[8];
    for (size_t at = 0; at < row_bytes; at += CHUNK)
        for (int half = 0; half < 2; half++) {
            load_columns(rows, row_bytes, n_row, 8 * half, at, column);
            int n = columns_left(row_bytes, at);
            for (int c = 0; c < n; c++)
                store(panel + (at / 4 + (size_t)c) * 64 + 32 * half,
                      shuffle ? _mm256_shuffle_epi8(column[c], *shuffle) : column[c]);
        }
    _mm_sfence();
}

void weight_pack_fp8_avx2(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    const __m256i pairs =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    pack_bytes(panel, (size_t)k, n_row, rows, &pairs);
}

void weight_pack_bf16_avx2(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    pack_bytes(panel, (size_t)k * 2, n_row, rows, NULL);
}

void weight_pack_f32_avx2(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    pack_bytes(panel, (size_t)k * 4, n_row, rows, NULL);
}

/* The even halves of eight dwords belong to one k, the odd ones to the next. */
void weight_pack_f16_avx2(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    const __m256i pairs =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    size_t row_bytes = (size_t)k * 2;
    __m256i column[8];
    for (size_t at = 0; at < row_bytes; at += CHUNK)
        for (int half = 0; half < 2; half++) {
            load_columns(rows, row_bytes, n_row, 8 * half, at, column);
            int n = columns_left(row_bytes, at);
            for (int c = 0; c < n; c++) {
                uint8_t *to = panel + (at / 4 + (size_t)c) * 64 + 16 * half;
                __m256i x = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(column[c], pairs), 0xd8);
                _mm_stream_si128((void *)to, _mm256_castsi256_si128(x));
                _mm_stream_si128((void *)(to + 32), _mm256_extracti128_si256(x, 1));
            }
        }
    _mm_sfence();
}
