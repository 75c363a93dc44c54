/* Blocks of NVFP4 on the matrix unit, in terms of TILE_* and EXPAND statements: the machine's, or a test's
 * emulator.
 *
 * Block scales are folded into the weights, which is exact in bf16 (two bits of code times four of scale), so
 * that a tile spans 32 k and its sums stay in the unit. A panel is expanded a step ahead of the products,
 * again for each 64 rows, so that it stays in the first cache. One row goes the same way as many: expanding
 * takes less vector work than the products of one row would. Each output is one chain: for each 32 k, the
 * products of even k and those of odd k in two chains of fma from zero; then sum += even + odd.
 *
 * What is expanded is 2^-108 of the weight (folding is done in fp16 and its exponent is taken over as it is),
 * and rows of x come times 2^64, so that products stay clear of subnormals, which the unit drops. */
#ifndef NYB_KERNELS_CPU_BLOCK_FOLDED_AMX_H
#define NYB_KERNELS_CPU_BLOCK_FOLDED_AMX_H

#include "fp4/fp4.h"
#include "kernels/cpu/block_bf16_amx.h"
#include "kernels/weight_layout.h"

#define FOLDED_STEP  64 /* of K, expanded at a time: a block of weights, two tiles */
#define FOLDED_BYTES (FOLDED_STEP / TILE_K * TILE_BYTES)
#define FOLDED_RING  2 /* steps of a panel that are kept */
#define FOLDED_FETCH 8 /* steps ahead of the expanding that weights are sent for: 4.5 KB */

static inline int folded_steps(const struct gemm_block *b)
{
    return (b->k + FOLDED_STEP - 1) / FOLDED_STEP;
}

static inline int folded_tiles(const struct gemm_block *b)
{
    return (b->k + TILE_K - 1) / TILE_K;
}

/* Where tile h of panel p is once it is expanded. */
INLINE uint8_t *folded_tile(const struct gemm_block *b, int p, int h)
{
    return b->decode + (size_t)p * FOLDED_RING * FOLDED_BYTES + (size_t)(h % (2 * FOLDED_RING)) * TILE_BYTES;
}

/* The weights of a step; past the end, in the panel that comes next. */
INLINE const uint8_t *folded_block(const struct gemm_block *b, int p, int step)
{
    const uint8_t *panel = b->panel[p];
    const int n = folded_steps(b);
    if (step >= n) {
        panel += b->next;
        step = step - n < n ? step - n : n - 1;
    }
    return panel + (size_t)step * NVFP4_BLOCK_BYTES;
}

/* A step of panel p, if there is one; a last tile of one group is filled up with zeros. */
INLINE void folded_expand(const struct gemm_block *b, int p, int step)
{
    const int left = b->k / FP4_GROUP - step * (FOLDED_STEP / FP4_GROUP), n = left < 4 ? left : 4;
    if (n <= 0)
        return;
    uint8_t *to = folded_tile(b, p, 2 * step);
    EXPAND(folded_block(b, p, step), n, to, folded_block(b, p, step + FOLDED_FETCH));
    if (n % 2)
        memset(to + n * (TILE_BYTES / 2), 0, TILE_BYTES / 2);
}

_Static_assert(2 * FOLDED_RING * FOLDED_BYTES <= GEMM_BLOCK_BF16_BYTES, "memory of the caller");

/* ---- up to 16 rows: both panels together ------------------------------------------------------- */

INLINE void folded_few(const struct gemm_block *b, const int P)
{
    const int n_tile = folded_tiles(b);
    const size_t stride = b->x_stride * sizeof(*b->x);
    walk_open(1, P);
    for (int p = 0; p < P; p++)
        folded_expand(b, p, 0);
    for (int h = 0; h < n_tile; h++) {
        for (int p = 0; h % 2 == 0 && p < P; p++)
            folded_expand(b, p, h / 2 + 1);
        const struct tile_feed feed = {.base = {folded_tile(b, 0, h), folded_tile(b, 1, h)}, .n_whole = 1};
        multiply(&feed, 1, P, b->x + (size_t)h * TILE_K, stride, 0);
    }
    walk_close(b->sum, 1, P);
}

/* ---- more rows: a panel at a time -------------------------------------------------------------- */

/* Tiles 0 .. 3: sums of up to 64 rows; 4, 5: x, of two times 16 rows in turn; 6, 7: the panel, in turn. The
 * last 16 rows may overlap with those before, to the same bits. */
static inline void folded_configure(struct tile_config *c)
{
    *c = (struct tile_config){.palette = 1};
    for (int i = 0; i < 8; i++) {
        c->n_row[i] = TILE_ROW;
        c->line_bytes[i] = TILE_LINE;
    }
}

#define FOLDED_LOAD_X(tile, i, h) TILE_LOAD(tile, x[i] + (size_t)(h)*TILE_K, stride)
#define FOLDED_LOAD_W(tile, h)    TILE_LOAD(tile, folded_tile(b, p, h), line)

/* Tile h, whose weights are in `now` and whose first x are in 4 and 5; what h + 1 begins with is loaded. */
#define FOLDED_TURN(h, now, then)         \
    do {                                  \
        TILE_DPBF16(0, 4, now);           \
        TILE_DPBF16(1, 5, now);           \
        if (H > 2) {                      \
            FOLDED_LOAD_X(4, 2, h);       \
            TILE_DPBF16(2, 4, now);       \
        }                                 \
        if (H > 3) {                      \
            FOLDED_LOAD_X(5, 3, h);       \
            TILE_DPBF16(3, 5, now);       \
        }                                 \
        if ((h) + 1 < n_tile) {           \
            FOLDED_LOAD_X(4, 0, (h) + 1); \
            FOLDED_LOAD_X(5, 1, (h) + 1); \
            FOLDED_LOAD_W(then, (h) + 1); \
        }                                 \
    } while (0)

/* Panel p against H times 16 rows from number 16 first on; 2 <= H <= 4. */
INLINE void folded_pass(const struct gemm_block *b, int p, int first, const int H)
{
    const int n_tile = folded_tiles(b);
    const size_t stride = b->x_stride * sizeof(*b->x), line = TILE_LINE;
    const uint16_t *x[4];
    float *sum[4];
    for (int i = 0; i < H; i++) {
        int row = TILE_ROW * (first + i), last = b->n_row - TILE_ROW;
        row = row < last ? row : last;
        x[i] = b->x + (size_t)row * b->x_stride;
        sum[i] = b->sum + (size_t)(p * GEMM_BLOCK_ROW + row) * WEIGHT_PANEL;
    }
    walk_open(2, 2);
    folded_expand(b, p, 0);
    FOLDED_LOAD_X(4, 0, 0);
    FOLDED_LOAD_X(5, 1, 0);
    FOLDED_LOAD_W(6, 0);
    for (int h = 0; h < n_tile; h += 2) {
        FOLDED_TURN(h, 6, 7);
        folded_expand(b, p, h / 2 + 1);
        if (h + 1 < n_tile)
            FOLDED_TURN(h + 1, 7, 6);
    }
    TILE_STORE(0, sum[0], line);
    TILE_STORE(1, sum[1], line);
    if (H > 2)
        TILE_STORE(2, sum[2], line);
    if (H > 3)
        TILE_STORE(3, sum[3], line);
}

/* All rows, in passes of nearly as many tiles each. */
static inline void folded_panel(const struct gemm_block *b, int p)
{
    const int n_tile = (b->n_row + TILE_ROW - 1) / TILE_ROW, n_pass = (n_tile + 3) / 4;
    for (int pass = 0, first = 0, n; pass < n_pass; pass++, first += n) {
        n = (n_tile - first + n_pass - pass - 1) / (n_pass - pass);
        if (n == 4)
            folded_pass(b, p, first, 4);
        else if (n == 3)
            folded_pass(b, p, first, 3);
        else
            folded_pass(b, p, first, 2);
    }
}

static inline void block_folded(const struct gemm_block *b)
{
    struct tile_config config;
    if (b->n_row <= TILE_ROW)
        bf16_configure(&config, b->n_row);
    else
        folded_configure(&config);
    TILE_CONFIG(&config);
    if (b->n_row > TILE_ROW)
        for (int p = 0; p < b->n_panel; p++)
            folded_panel(b, p);
    else if (b->n_panel == 2)
        folded_few(b, 2);
    else
        folded_few(b, 1);
    TILE_RELEASE();
}

#endif
