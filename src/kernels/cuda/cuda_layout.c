#include "kernels/cuda/cuda_layout.h"

#include <string.h>

#define GROUP  16
#define N_WORD (CUDA_UNIT_CODES / 4)

/* Where bit 15 (sign) and bits 8 to 6 (magnitude) of each pair's halves come from: the word rotated left by
 * so many bits; the last pair's of an even word and of the odd one behind it from what those two have left
 * (SPARE), put together in one. */
static const int rotation[3] = {0, 4, 10}, rotation_last[2] = {6, 28};
#define SPARE       0x06030603u
#define SPARE_SHIFT 2 /* of the odd word's */

size_t cuda_layout_bytes(size_t n_row, size_t K)
{
    return (n_row + CUDA_UNIT_ROWS - 1) / CUDA_UNIT_ROWS * (K / CUDA_UNIT_K) * CUDA_UNIT_BYTES;
}

/* e4m3 1.m * 2^(e-7), subnormal m * 2^-9; the code 1.m * 2^(E-10), E from 1 (2^-9) to 18 (2^8). */
uint8_t cuda_layout_scale(uint8_t e4m3)
{
    int e = (e4m3 >> 3) & 15, m = e4m3 & 7;
    if (e4m3 == 0)
        return 0;
    if (e > 0)
        return (uint8_t)((e + 3) << 3 | m);
    for (e = 4; m < 8; e--) /* m * 2^-9 = (m / 8) * 2^-6 */
        m <<= 1;
    return (uint8_t)(e << 3 | (m & 7));
}

uint8_t cuda_layout_scale_back(uint8_t code)
{
    int e = code >> 3, m = code & 7;
    if (e > 3)
        return (uint8_t)((e - 3) << 3 | m);
    return (uint8_t)((m | 8) >> (4 - e)); /* zero of code 0 */
}

/* The bit that is bit b (0 to 2 magnitude, 3 sign) of the code of pair p, half h, of an even word or of the
 * odd one behind it: of these two, as one of 64. */
static int place(int odd, int p, int h, int b)
{
    int target = (b == 3 ? 15 : 6 + b) + 16 * h;
    if (p < 3)
        return ((target - rotation[p]) & 31) + 32 * odd;
    int at = (target - rotation_last[odd]) & 31;
    return SPARE >> at & 1 ? at : 32 + at - SPARE_SHIFT;
}

/* Where the two words are in the unit of which one has the code of (row, k). */
static size_t words_at(int row, int k)
{
    int lane = row % 8 * 4 + k / GROUP;
    return (size_t)(16 * lane + 8 * (k % GROUP / 8));
}

static int pair_of(int row, int k)
{
    return k % 4 / 2 * 2 + row / 8;
}

static size_t scale_at(int row, int block)
{
    return (size_t)(CUDA_UNIT_CODES + row % 8 * 8 + block * 2 + row / 8);
}

static void put_code(uint8_t *unit, int row, int k, unsigned code)
{
    uint64_t words;
    memcpy(&words, unit + words_at(row, k), 8);
    for (int b = 0; b < 4; b++)
        words |= (uint64_t)(code >> b & 1) << place(k / 4 % 2, pair_of(row, k), k % 2, b);
    memcpy(unit + words_at(row, k), &words, 8);
}

/* Of one block of 16: codes [8] and its scale into row `row`, block `block` of a unit of zeros. */
static bool put_block(uint8_t *unit, int row, int block, const uint8_t *codes, uint8_t scale)
{
    uint8_t magnitude = scale & 0x7f;
    unsigned sign = scale & 0x80 ? 8 : 0, any = 0;
    for (int i = 0; i < GROUP / 2; i++)
        any |= codes[i] & 0x77u;
    if (magnitude == 0x7f && any)
        return false;
    unit[scale_at(row, block)] = cuda_layout_scale(magnitude);
    for (int i = 0; i < GROUP && magnitude; i++)
        put_code(unit, row, GROUP * block + i, ((unsigned)codes[i / 2] >> i % 2 * 4 & 15u) ^ sign);
    return true;
}

/* Row `row` of the tiles. */
static bool put_row(uint8_t *packed, size_t row, const uint8_t *codes, const uint8_t *scales, size_t K)
{
    uint8_t *tile = packed + row / CUDA_UNIT_ROWS * (K / CUDA_UNIT_K) * CUDA_UNIT_BYTES;
    for (size_t g = 0; g < K / GROUP; g++)
        if (!put_block(tile + g / 4 * CUDA_UNIT_BYTES, (int)(row % CUDA_UNIT_ROWS), (int)(g % 4),
                       codes + 8 * g, scales[g]))
            return false;
    return true;
}

bool cuda_layout_pack(uint8_t *packed, const uint8_t *codes, const uint8_t *scales, size_t n_row, size_t K,
                      size_t *bad_row)
{
    memset(packed, 0, cuda_layout_bytes(n_row, K));
    for (size_t r = 0; r < n_row; r++) {
        *bad_row = r;
        if (!put_row(packed, r, codes + r * (K / 2), scales + r * (K / GROUP), K))
            return false;
    }
    return true;
}

bool cuda_layout_pack_pair(uint8_t *packed, const uint8_t *gate_codes, const uint8_t *gate_scales,
                           const uint8_t *up_codes, const uint8_t *up_scales, size_t n_row, size_t K,
                           size_t *bad_row)
{
    memset(packed, 0, cuda_layout_bytes(2 * n_row, K));
    for (size_t r = 0; r < n_row; r++) {
        size_t at = r / 8 * CUDA_UNIT_ROWS + r % 8;
        *bad_row = r;
        if (!put_row(packed, at, gate_codes + r * (K / 2), gate_scales + r * (K / GROUP), K) ||
            !put_row(packed, at + 8, up_codes + r * (K / 2), up_scales + r * (K / GROUP), K))
            return false;
    }
    return true;
}

/* ---- back ------------------------------------------------------------------------------------------ */

static uint32_t rotate(uint32_t w, int by)
{
    return by ? w << by | w >> (32 - by) : w;
}

/* The byte of two codes whose bits are where bf16 has them in both halves. */
static uint32_t squeeze(uint32_t x)
{
    return (x >> 12 & 8u) | (x >> 6 & 7u) | (x >> 24 & 0x80u) | (x >> 18 & 0x70u);
}

/* Of each word of a unit its four codes of the lane's low row, and above them those of the high one. */
static void gather_codes(uint32_t codes[N_WORD], const uint8_t *unit)
{
    memcpy(codes, unit, CUDA_UNIT_CODES);
    for (int i = 0; i < N_WORD; i += 2) {
        uint32_t spare = (codes[i] & SPARE) | (codes[i + 1] << SPARE_SHIFT & ~SPARE);
        for (int odd = 0; odd < 2; odd++) {
            uint32_t w = codes[i + odd];
            codes[i + odd] = squeeze(rotate(w, rotation[0])) | squeeze(rotate(w, rotation[2])) << 8 |
                             squeeze(rotate(w, rotation[1])) << 16 |
                             squeeze(rotate(spare, rotation_last[odd])) << 24;
        }
    }
}

/* n of the unit's rows, from its first or (high) its ninth on; K is that of the rows at `codes`. */
static void take_rows(uint8_t *codes, uint8_t *scales, const uint32_t from[N_WORD], const uint8_t *unit,
                      bool high, size_t n, size_t K)
{
    const int shift = high ? 16 : 0;
    for (size_t g = 0; g < n; g++)
        for (size_t f = 0; f < 4; f++) {
            const uint32_t *lane = from + 16 * g + 4 * f; /* has a block's 16 codes */
            uint64_t block = 0;
            for (int i = 0; i < 4; i++)
                block |= (uint64_t)(lane[i] >> shift & 0xffffu) << 16 * i;
            memcpy(codes + g * (K / 2) + 8 * f, &block, 8);
            scales[g * (K / GROUP) + f] =
                cuda_layout_scale_back(unit[scale_at((int)g + (high ? 8 : 0), (int)f)]);
        }
}

/* Tiles of K, of which `height` rows are the matrix's: all 16, or the eight low or high ones. */
static void unpack(uint8_t *codes, uint8_t *scales, const uint8_t *packed, size_t height, bool high,
                   size_t n_row, size_t K, size_t K_whole)
{
    uint32_t word[N_WORD];
    for (size_t r = 0; r < n_row; r += height)
        for (size_t u = 0; u < K / CUDA_UNIT_K; u++, packed += CUDA_UNIT_BYTES) {
            size_t left = n_row - r, first = left < 8 ? left : 8;
            uint8_t *c = codes + r * (K_whole / 2) + u * (CUDA_UNIT_K / 2);
            uint8_t *s = scales + r * (K_whole / GROUP) + u * (CUDA_UNIT_K / GROUP);
            gather_codes(word, packed);
            take_rows(c, s, word, packed, high, first, K_whole);
            if (height == CUDA_UNIT_ROWS && left > 8)
                take_rows(c + 8 * (K_whole / 2), s + 8 * (K_whole / GROUP), word, packed, true,
                          left < CUDA_UNIT_ROWS ? left - 8 : 8, K_whole);
        }
}

void cuda_layout_unpack(uint8_t *codes, uint8_t *scales, const uint8_t *packed, size_t n_row, size_t K,
                        size_t K_whole)
{
    unpack(codes, scales, packed, CUDA_UNIT_ROWS, false, n_row, K, K_whole);
}

void cuda_layout_unpack_pair(uint8_t *codes, uint8_t *scales, const uint8_t *packed, bool up, size_t n_row,
                             size_t K)
{
    unpack(codes, scales, packed, CUDA_UNIT_ROWS / 2, up, n_row, K, K);
}
