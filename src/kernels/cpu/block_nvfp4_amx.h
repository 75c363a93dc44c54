/* Blocks of NVFP4 on the matrix unit, in terms of TILE_* statements: those of tile_amx.h, or of a test's
 * emulator. Vector instructions are in nvfp4_parts_avx512.c.
 *
 * A tile of products spans one group (8 lines of operand B), so that its block scale is applied to the sums,
 * as everywhere else. Folding the scales into the weights would let tiles span 32 k, but costs one row of x,
 * which takes gemm_nvfp4_chain, a third more operations; and one row must have the bits of many. */
#ifndef NYB_KERNELS_CPU_BLOCK_NVFP4_AMX_H
#define NYB_KERNELS_CPU_BLOCK_NVFP4_AMX_H

#include <string.h>
#include <xmmintrin.h>

#include "fp4/fp4.h"
#include "kernels/cpu/nvfp4_parts.h"
#include "kernels/cpu/tile_config.h"
#include "kernels/gemm_tile.h"
#include "kernels/weight_layout.h"

#define NVFP4_CHAIN_UP_TO 4 /* rows: so many are faster without tiles */

/* Tiles 0 .. 3: dots of the groups of a block of weights; 4, 5: x; 6, 7: codes. */
static inline void nvfp4_configure(struct tile_config *c, int n_row)
{
    *c = (struct tile_config){.palette = 1};
    for (int i = 0; i < 8; i++) {
        c->n_row[i] = (uint8_t)(i < 6 ? n_row : NVFP4_SPREAD_BYTES / TILE_LINE);
        c->line_bytes[i] = i == 4 || i == 5 ? FP4_GROUP * sizeof(uint16_t) : TILE_LINE;
    }
}

#define NVFP4_DOT(group, of_x, of_w)                           \
    do {                                                       \
        TILE_ZERO(group);                                      \
        TILE_LOAD(of_x, x + (group)*FP4_GROUP, stride);        \
        TILE_LOAD(of_w, w + (group)*NVFP4_SPREAD_BYTES, line); \
        TILE_DPBF16(group, of_x, of_w);                        \
    } while (0)

/* Dots of n_group groups into tiles 0 .. n_group - 1. */
static inline void nvfp4_dots(int n_group, const uint16_t *x, size_t stride, const uint8_t *w)
{
    const size_t line = TILE_LINE;
    NVFP4_DOT(0, 4, 6);
    if (n_group > 1)
        NVFP4_DOT(1, 5, 7);
    if (n_group > 2)
        NVFP4_DOT(2, 4, 6);
    if (n_group > 3)
        NVFP4_DOT(3, 5, 7);
}

static inline void nvfp4_store(int n_group, float *dot)
{
    const size_t line = TILE_LINE;
    TILE_STORE(0, dot, line);
    if (n_group > 1)
        TILE_STORE(1, dot + TILE_SUMS, line);
    if (n_group > 2)
        TILE_STORE(2, dot + 2 * TILE_SUMS, line);
    if (n_group > 3)
        TILE_STORE(3, dot + 3 * TILE_SUMS, line);
}

/* Dots on their way into sums. */
struct nvfp4_pending {
    const uint8_t *block; /* NULL: none */
    int n_group, n_row;
    const float *dot;
    float *sum;
};

static inline void nvfp4_settle(const struct nvfp4_pending *p)
{
    if (p->block)
        gemm_nvfp4_fold(p->block, p->n_group, p->n_row, p->dot, p->sum);
}

/* The lines of x that the next dots read, which lie in the second cache. */
static inline void nvfp4_prefetch_rows(const uint16_t *x, size_t stride, int n_row)
{
    for (int i = 0; i < n_row; i++) {
        const char *row = (const char *)x + (size_t)i * stride;
        __builtin_prefetch(row);
        __builtin_prefetch(row + 64);
    }
}

/* Sums of the last tile of rows, which may overlap with the one before, to where its own rows belong. */
static inline void nvfp4_close_gap(float *sum, int n_row, int tile_row)
{
    int whole = (n_row - 1) / tile_row * tile_row, shared = whole + tile_row - n_row;
    memmove(sum + (size_t)whole * WEIGHT_PANEL, sum + (size_t)(whole + shared) * WEIGHT_PANEL,
            (size_t)(n_row - whole) * WEIGHT_PANEL * sizeof(*sum));
}

/* One panel against all rows, in tiles of n_row; the last starts early enough to be whole. Codes are spread a
 * block ahead, and dots are folded a tile behind, while the matrix unit works. */
static inline void nvfp4_panel(const struct gemm_block *b, const uint8_t *panel, int n_row, float *sum)
{
    enum { RING = 2 };
    _Alignas(64) float dot[RING][4 * TILE_SUMS];
    uint8_t *spread[RING] = {b->decode, b->decode + 4 * NVFP4_SPREAD_BYTES};
    struct nvfp4_pending pending = {0};
    const int n_group = b->k / FP4_GROUP, n_step = (n_group + 3) / 4, n_tile = (b->n_row + n_row - 1) / n_row;
    const size_t stride = b->x_stride * sizeof(*b->x);
    memset(sum, 0, (size_t)(n_tile * n_row) * WEIGHT_PANEL * sizeof(*sum));
    gemm_nvfp4_spread(panel, n_group < 4 ? n_group : 4, spread[0]);
    for (int step = 0, turn = 0; step < n_step; step++) {
        const uint8_t *block = panel + (size_t)step * NVFP4_BLOCK_BYTES;
        int n = n_group - 4 * step < 4 ? n_group - 4 * step : 4, after = n_group - 4 * (step + 1);
        if (after > 0)
            gemm_nvfp4_spread(block + NVFP4_BLOCK_BYTES, after < 4 ? after : 4, spread[(step + 1) % RING]);
        for (int tile = 0; tile < n_tile; tile++, turn++) {
            int first = tile + 1 < n_tile ? tile * n_row : b->n_row - n_row;
            const uint16_t *x = b->x + (size_t)first * b->x_stride + (size_t)step * 4 * FP4_GROUP;
            bool more = tile + 1 < n_tile; /* or else the next step's first */
            nvfp4_prefetch_rows(more ? x + (size_t)n_row * b->x_stride
                                     : b->x + (size_t)(step + 1) * 4 * FP4_GROUP,
                                stride, n_row);
            nvfp4_dots(n, x, stride, spread[step % RING]);
            nvfp4_settle(&pending);
            nvfp4_store(n, dot[turn % RING]);
            pending = (struct nvfp4_pending){block, n, n_row, dot[turn % RING],
                                             sum + (size_t)(tile * n_row) * WEIGHT_PANEL};
        }
    }
    nvfp4_settle(&pending);
    nvfp4_close_gap(sum, b->n_row, n_row);
}

/* Few rows, as floats in place of the decoded panels. */
static inline void nvfp4_chains(const struct gemm_block *b)
{
    float *x = (float *)(void *)b->decode;
    for (int i = 0; i < b->n_row; i++)
        gemm_nvfp4_widen(b->x + (size_t)i * b->x_stride, b->k, x + (size_t)i * (size_t)b->k);
    for (int p = 0; p < b->n_panel; p++)
        gemm_nvfp4_chain(b->panel[p], b->k, b->n_row, x, b->k,
                         b->sum + (size_t)p * GEMM_BLOCK_ROW * WEIGHT_PANEL);
}

static inline void block_nvfp4(const struct gemm_block *b)
{
    /* Tiles take and make no subnormals, so the vector work must not either. */
    const unsigned flush_both = 0x8040, before = _mm_getcsr();
    _mm_setcsr(before | flush_both);
    if (b->n_row <= NVFP4_CHAIN_UP_TO) {
        nvfp4_chains(b);
    } else {
        struct tile_config config;
        int n_row = b->n_row < TILE_ROW ? b->n_row : TILE_ROW;
        nvfp4_configure(&config, n_row);
        TILE_CONFIG(&config);
        for (int p = 0; p < b->n_panel; p++)
            nvfp4_panel(b, b->panel[p], n_row, b->sum + (size_t)p * GEMM_BLOCK_ROW * WEIGHT_PANEL);
        TILE_RELEASE();
    }
    _mm_setcsr(before);
}

#endif
