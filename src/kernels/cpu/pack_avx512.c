/* Packing rows into panels: 16 rows of 64 bytes are 16 vectors of dwords, whose transpose is what every
 * layout needs, up to a shuffle within each vector. What is packed is not read again soon: stores pass the
 * caches. */
#include <immintrin.h>
#include <string.h>

#include "kernels/weight_layout.h"
#include "kernels/weight_pack.h"

#define CHUNK 64 /* bytes of a row at a time */

/* What is inlined stays in registers: 16 vectors in and 16 out would otherwise go through memory. */
#define INLINE static inline __attribute__((always_inline))

/* in[row] of 16 dwords to out[column]. */
INLINE void transpose(const __m512i in[16], __m512i out[16])
{
    __m512i t[16], r[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* lane l of r[i + b]: column 4l + b of rows i .. i + 3 */
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int b = 0; b < 4; b++) {
        __m512i even0 = _mm512_shuffle_i32x4(r[b], r[4 + b], 0x88);
        __m512i odd0 = _mm512_shuffle_i32x4(r[b], r[4 + b], 0xdd);
        __m512i even1 = _mm512_shuffle_i32x4(r[8 + b], r[12 + b], 0x88);
        __m512i odd1 = _mm512_shuffle_i32x4(r[8 + b], r[12 + b], 0xdd);
        out[b] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        out[8 + b] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
        out[4 + b] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        out[12 + b] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
    }
}

/* A chunk of rows that end in it, or of fewer than 16: with zeros for what is not there. */
static __attribute__((noinline)) void pad_chunk(const uint8_t *from, size_t row_bytes, int n_row, size_t left,
                                                uint8_t chunk[16 * CHUNK])
{
    size_t n = left < CHUNK ? left : CHUNK;
    memset(chunk, 0, 16 * CHUNK);
    for (int r = 0; r < n_row; r++)
        memcpy(chunk + r * CHUNK, from + (size_t)r * row_bytes, n);
}

/* Dword column c of n_row rows to column[c], zeros where there is no row and beyond the row's end. */
INLINE void load_columns(const uint8_t *rows, size_t row_bytes, int n_row, size_t at, __m512i column[16])
{
    _Alignas(64) uint8_t chunk[16 * CHUNK];
    const uint8_t *from = rows + at;
    size_t step = row_bytes;
    if (n_row < 16 || row_bytes - at < CHUNK) {
        pad_chunk(from, row_bytes, n_row, row_bytes - at, chunk);
        from = chunk;
        step = CHUNK;
    }
    __m512i row[16];
    for (int r = 0; r < 16; r++)
        row[r] = _mm512_loadu_si512(from + (size_t)r * step);
    transpose(row, column);
}

static inline void store(uint8_t *to, __m512i x)
{
    _mm512_stream_si512((void *)to, x);
}

/* Dwords of a row that a chunk at `at` holds, begun ones included. */
static inline int columns_left(size_t row_bytes, size_t at)
{
    size_t left = (row_bytes - at + 3) / 4;
    return left < 16 ? (int)left : 16;
}

/* (x ^ x >> by) & mask, and that to both places it came from: fields that are `by` apart change places. */
INLINE __m512i swap_fields(__m512i x, int by, __m512i mask)
{
    __m512i t = _mm512_ternarylogic_epi32(x, _mm512_srli_epi32(x, (unsigned)by), mask, 0x28);
    return _mm512_ternarylogic_epi32(x, t, _mm512_slli_epi32(t, (unsigned)by), 0x96);
}

/* Of each dword, nibbles 0 .. 7 to 0, 2, 4, 6, 1, 3, 5, 7 (Hacker's Delight's unshuffle). */
INLINE __m512i nibbles_deinterleave(__m512i x)
{
    x = swap_fields(x, 4, _mm512_set1_epi32(0x00f000f0));
    return swap_fields(x, 8, _mm512_set1_epi32(0x0000ff00));
}

/* The scales of all groups: dwords [row] of four bytes to bytes [group][row]. */
static void pack_scales(uint8_t *panel, int n_group, int n_row, const uint8_t *scales)
{
    _Alignas(64) static const uint8_t to_groups[64] = {
        0,  4,  8,  12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 1,  5,  9,  13, 17, 21,
        25, 29, 33, 37, 41, 45, 49, 53, 57, 61, 2,  6,  10, 14, 18, 22, 26, 30, 34, 38, 42, 46,
        50, 54, 58, 62, 3,  7,  11, 15, 19, 23, 27, 31, 35, 39, 43, 47, 51, 55, 59, 63};
    const __m512i groups = _mm512_load_si512(to_groups);
    __m512i column[16];
    for (int g = 0; g < n_group; g += CHUNK) {
        load_columns(scales, (size_t)n_group, n_row, (size_t)g, column);
        int n = columns_left((size_t)n_group, (size_t)g);
        for (int i = 0; i < n; i++)
            store(panel + nvfp4_scale_at(g + 4 * i), _mm512_permutexvar_epi8(groups, column[i]));
    }
}

void weight_pack_nvfp4_avx512(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    size_t row_bytes = (size_t)k / 2;
    int n_group = k / 16;
    __m512i column[16];
    pack_scales(panel, n_group, n_row, scales);
    for (int g = 0; g < n_group; g += 8) {
        load_columns(rows, row_bytes, n_row, (size_t)g * 8, column);
        int n = n_group - g < 8 ? n_group - g : 8;
        for (int i = 0; i < n; i++) {
            store(panel + nvfp4_codes_at(g + i), nibbles_deinterleave(column[2 * i]));
            store(panel + nvfp4_codes_at(g + i) + 64, nibbles_deinterleave(column[2 * i + 1]));
        }
    }
    _mm_sfence();
}

void weight_pack_fp8_avx512(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    const __m512i pairs =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    size_t row_bytes = (size_t)k;
    __m512i column[16];
    for (size_t at = 0; at < row_bytes; at += CHUNK) {
        load_columns(rows, row_bytes, n_row, at, column);
        int n = columns_left(row_bytes, at);
        for (int c = 0; c < n; c++)
            store(panel + (at / 4 + (size_t)c) * 64, _mm512_shuffle_epi8(column[c], pairs));
    }
    _mm_sfence();
}

/* Dword columns as they are: BF16, two k each, and F32. */
static void pack_dwords(uint8_t *panel, size_t row_bytes, int n_row, const uint8_t *rows)
{
    __m512i column[16];
    for (size_t at = 0; at < row_bytes; at += CHUNK) {
        load_columns(rows, row_bytes, n_row, at, column);
        int n = columns_left(row_bytes, at);
        for (int c = 0; c < n; c++)
            store(panel + (at / 4 + (size_t)c) * 64, column[c]);
    }
    _mm_sfence();
}

void weight_pack_bf16_avx512(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    pack_dwords(panel, (size_t)k * 2, n_row, rows);
}

void weight_pack_f32_avx512(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    pack_dwords(panel, (size_t)k * 4, n_row, rows);
}

/* The even halves of 16 dwords, then the odd ones: two k. */
void weight_pack_f16_avx512(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales)
{
    (void)scales;
    const __m512i even_odd = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30,
                                              28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    size_t row_bytes = (size_t)k * 2;
    __m512i column[16];
    for (size_t at = 0; at < row_bytes; at += CHUNK) {
        load_columns(rows, row_bytes, n_row, at, column);
        int n = columns_left(row_bytes, at);
        for (int c = 0; c < n; c++)
            store(panel + (at / 4 + (size_t)c) * 64, _mm512_permutexvar_epi16(even_odd, column[c]));
    }
    _mm_sfence();
}
