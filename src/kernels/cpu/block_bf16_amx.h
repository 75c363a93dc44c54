/* Blocks of BF16 weights on the matrix unit, in terms of TILE_* statements: those of tile_amx.h, or of a
 * test's emulator.
 *
 * x is operand A as it lies in memory, 16 rows of 32 k. Weights are operand B as they lie in memory: 16 lines
 * of 64 bytes, a line holding a pair of k of all 16 rows of the panel. Each output is one chain: for each 32
 * k, the products of even k and those of odd k in two chains of fma from zero; then sum += even + odd. */
#ifndef NYB_KERNELS_CPU_BLOCK_BF16_AMX_H
#define NYB_KERNELS_CPU_BLOCK_BF16_AMX_H

#include <string.h>

#include "kernels/cpu/tile_config.h"
#include "kernels/cpu/tile_unroll.h"
#include "kernels/gemm_tile.h"

#define TILE_K 32 /* of K a tile */

/* Where tiles of B are: tile h of panel p at base[p] + h TILE_BYTES if h < n_whole, else at tail[p]. */
struct tile_feed {
    const uint8_t *base[2];
    int n_whole;
    const uint8_t *tail[2];
    size_t ahead; /* bytes that the walk asks for ahead, or 0 where they are in the first cache */
};

INLINE const uint8_t *tile_at(const struct tile_feed *f, int p, int h)
{
    return h < f->n_whole ? f->base[p] + (size_t)h * TILE_BYTES : f->tail[p];
}

/* Sums of n_row rows (1 .. 32) with both panels. Tiles 0, 1: of the first 16 rows with either panel; 2, 3: of
 * the next 16; 4, 5: x; 6, 7: weights. */
static inline void bf16_configure(struct tile_config *c, int n_row)
{
    *c = (struct tile_config){.palette = 1};
    for (int i = 0; i < 8; i++) {
        int second = i < 4 ? i / 2 : i - 4, row = second ? n_row - TILE_ROW : n_row;
        c->n_row[i] = (uint8_t)(i >= 6 || row > TILE_ROW ? TILE_ROW : row > 0 ? row : 0);
        c->line_bytes[i] = c->n_row[i] ? TILE_LINE : 0;
    }
}

INLINE void multiply(const struct tile_feed *f, const int H, const int P, const uint16_t *x, size_t stride,
                     int h)
{
    const uint16_t *a = x + (size_t)h * TILE_K;
    const size_t line = TILE_LINE;
    const uint8_t *b0 = tile_at(f, 0, h), *b1 = tile_at(f, P - 1, h);
    for (int i = 0; f->ahead && i < TILE_ROW; i++) {
        __builtin_prefetch(b0 + f->ahead + i * TILE_LINE);
        if (P == 2)
            __builtin_prefetch(b1 + f->ahead + i * TILE_LINE);
    }
    for (int i = 0; H == 2 && i < H * TILE_ROW; i++)
        __builtin_prefetch((const char *)(a + 2 * TILE_K) + (size_t)i * stride);
    TILE_LOAD(4, a, stride);
    TILE_LOAD(6, b0, line);
    TILE_DPBF16(0, 4, 6);
    if (P == 2) {
        TILE_LOAD(7, b1, line);
        TILE_DPBF16(1, 4, 7);
    }
    TILE_ZERO(4); /* as soon as nobody reads it any more: see block_folded_amx.h */
    if (H == 2) {
        TILE_LOAD(5, a + TILE_ROW * stride / sizeof(*a), stride);
        TILE_DPBF16(2, 5, 6);
    }
    TILE_ZERO(6);
    if (H == 2 && P == 2)
        TILE_DPBF16(3, 5, 7);
    if (H == 2)
        TILE_ZERO(5);
    if (P == 2)
        TILE_ZERO(7);
}

INLINE void walk_open(const int H, const int P)
{
    TILE_ZERO(0);
    if (P == 2)
        TILE_ZERO(1);
    if (H == 2)
        TILE_ZERO(2);
    if (H == 2 && P == 2)
        TILE_ZERO(3);
}

INLINE void walk_close(float *sum, const int H, const int P)
{
    const size_t line = TILE_LINE;
    TILE_STORE(0, sum, line);
    if (P == 2)
        TILE_STORE(1, sum + GEMM_BLOCK_ROW * WEIGHT_PANEL, line);
    if (H == 2)
        TILE_STORE(2, sum + TILE_ROW * WEIGHT_PANEL, line);
    if (H == 2 && P == 2)
        TILE_STORE(3, sum + (GEMM_BLOCK_ROW + TILE_ROW) * WEIGHT_PANEL, line);
}

/* Up to 16 H rows from `first` on. */
INLINE void walk(const struct gemm_block *b, const struct tile_feed *f, int first, const int H, const int P)
{
    const int n_tile = (b->k + TILE_K - 1) / TILE_K;
    const size_t stride = b->x_stride * sizeof(*b->x);
    const uint16_t *x = b->x + (size_t)first * b->x_stride;
    walk_open(H, P);
    for (int h = 0; h < n_tile; h++)
        multiply(f, H, P, x, stride, h);
    walk_close(b->sum + (size_t)first * WEIGHT_PANEL, H, P);
}

/* The rows from `first` on, 32 at a time; `next` feeds all but these first ones. The unit is configured for
 * blocks of `configured` rows, or not at all (0); afterwards it is not. */
static inline void walk_rows(const struct gemm_block *b, const struct tile_feed *f,
                             const struct tile_feed *next, int first, int configured)
{
    for (int n; first < b->n_row; first += n, f = next) {
        n = b->n_row - first < 2 * TILE_ROW ? b->n_row - first : 2 * TILE_ROW;
        if (n != configured) {
            struct tile_config config;
            bf16_configure(&config, n);
            TILE_CONFIG(&config);
            configured = n;
        }
        if (b->n_panel == 2 && n > TILE_ROW)
            walk(b, f, first, 2, 2);
        else if (b->n_panel == 2)
            walk(b, f, first, 1, 2);
        else if (n > TILE_ROW)
            walk(b, f, first, 2, 1);
        else
            walk(b, f, first, 1, 1);
    }
    TILE_RELEASE();
}

static inline void block_bf16(const struct gemm_block *b)
{
    _Alignas(64) uint8_t tail[2][TILE_BYTES];
    struct tile_feed next = {.base = {b->panel[0], b->panel[1]}, .n_whole = b->k / TILE_K};
    size_t at = (size_t)next.n_whole * TILE_BYTES;
    size_t bytes = (size_t)((b->k % TILE_K + 1) / 2) * TILE_LINE;
    for (int p = 0; bytes && p < b->n_panel; p++) {
        memset(tail[p], 0, sizeof(tail[p]));
        memcpy(tail[p], b->panel[p] + at, bytes);
        next.tail[p] = tail[p];
    }
    struct tile_feed first = next;
    first.ahead = PREFETCH_AHEAD;
    next.ahead = 2 * TILE_BYTES; /* from the second cache by then */
    walk_rows(b, &first, &next, 0, 0);
}

#endif
