/* Blocks of NVFP4 on the matrix unit, in terms of TILE_* statements and of struct fold, fold_open, fold_ask
 * and fold_group: the machine's (nvfp4_fold.h), or a test's emulator.
 *
 * Block scales are folded into the weights, which is exact in bf16 (two bits of code times four of scale), so
 * that a tile spans 32 k and its sums stay in the unit. Panels are expanded again for each 48 rows (64 where
 * one stands alone), so that they stay in the first cache, a step or two ahead of the products and a group at
 * a time between them: side by side in the program, as the processor does not look far enough ahead to put
 * them so itself. One row goes the same way as many: expanding takes less vector work than the products of
 * one row would. Each output is one chain: for each 32 k, the products of even k and those of odd k in two
 * chains of fma from zero; then sum += even + odd.
 *
 * Tiles are zeroed as soon as nobody reads them any more. A core that runs a second thread has so few tiles
 * besides the architecture's eight that a load waits for products before it to retire where all eight hold
 * something; a tile that is zeroed holds nothing. So there are few in use at any time: sums, one of x and one
 * or two of weights.
 *
 * What is expanded is 2^-108 of the weight (folding is done in fp16 and its exponent is taken over as it is),
 * and rows of x come times 2^64, so that products stay clear of subnormals, which the unit drops. */
#ifndef NYB_KERNELS_CPU_BLOCK_FOLDED_AMX_H
#define NYB_KERNELS_CPU_BLOCK_FOLDED_AMX_H

#include "fp4/fp4.h"
#include "kernels/cpu/block_bf16_amx.h"
#include "kernels/weight_layout.h"

#define FOLDED_UNIT   0x1p44f /* of the sums of both */
#define FOLDED_STEP   64      /* of K, expanded at a time: a block of weights, two tiles */
#define FOLDED_GROUPS (FOLDED_STEP / FP4_GROUP)
#define FOLDED_BYTES  ((size_t)FOLDED_STEP / TILE_K * TILE_BYTES)
#define FOLDED_RING   4 /* steps of a panel that are kept */
#define FOLDED_FETCH  8 /* steps ahead of the expanding that weights are sent for: 4.5 KB */

_Static_assert(2 * FOLDED_RING * FOLDED_BYTES <= GEMM_BLOCK_BF16_BYTES, "memory of the caller");
_Static_assert(TILE_K == GEMM_BLOCK_STEP && TILE_ROW == GEMM_BLOCK_TILE, "rows in tiles");

static inline int folded_tiles(const struct gemm_block *b)
{
    return (b->k + TILE_K - 1) / TILE_K;
}

/* A panel on its way through the unit. */
struct folded {
    const uint8_t *panel, *follow; /* follow: the panel that comes next, less the bytes of this one */
    uint8_t *ring;                 /* of FOLDED_RING steps */
    int n_group, n_step;
    struct fold fold;
};

INLINE struct folded folded_open(const struct gemm_block *b, int p)
{
    struct folded w = {.panel = b->panel[p],
                       .ring = b->decode + (size_t)p * FOLDED_RING * FOLDED_BYTES,
                       .n_group = b->k / FP4_GROUP,
                       .n_step = (b->k + FOLDED_STEP - 1) / FOLDED_STEP,
                       .fold = fold_open()};
    w.follow = b->panel[p] + b->next - (size_t)w.n_step * NVFP4_BLOCK_BYTES;
    return w;
}

/* Where tile h is once it is expanded. */
INLINE uint8_t *folded_tile(const struct folded *w, int h)
{
    return w->ring + (size_t)(h % (2 * FOLDED_RING)) * TILE_BYTES;
}

/* Steps that expanding is ahead of the products. With few rows there are few products to wait for: loads of
 * tiles then come too soon after the stores that they read. */
#define FOLDED_AHEAD_FEW  2
#define FOLDED_AHEAD_MANY 1
_Static_assert(FOLDED_AHEAD_FEW + 2 <= FOLDED_RING, "a step in use and the loads of the next");

/* Group g (literal) of a step, if there is one; a last tile of one group is filled up with zeros. */
INLINE void folded_group(const struct folded *w, int step, const int g)
{
    const int group = FOLDED_GROUPS * step + g, then = step + FOLDED_FETCH;
    uint8_t *to = folded_tile(w, 2 * step) + (size_t)g * (TILE_BYTES / 2);
    if (group < w->n_group) {
        fold_ask((then < w->n_step ? w->panel : w->follow) + (size_t)then * NVFP4_BLOCK_BYTES, g);
        fold_group(&w->fold, w->panel + (size_t)step * NVFP4_BLOCK_BYTES, g, to);
    } else if (group == w->n_group && g % 2) {
        memset(to, 0, TILE_BYTES / 2);
    }
}

/* The first n steps. */
INLINE void folded_first(const struct folded *w, const int n)
{
    for (int step = 0; step < n; step++) {
        UNROLL
        for (int g = 0; g < FOLDED_GROUPS; g++)
            folded_group(w, step, g);
    }
}

/* What is expanded after product t of the n that a step has. */
INLINE void folded_share(const struct folded *w, int step, const int t, const int n)
{
    UNROLL
    for (int g = 0; g < FOLDED_GROUPS; g++)
        if (g * n / FOLDED_GROUPS == t)
            folded_group(w, step, g);
}

/* ---- up to 16 rows: both panels together ------------------------------------------------------- */

/* Tile h, number z of its step, with both panels; half of a step to come is expanded between the products.
 * Tiles 0, 1: sums; 4: x; 6, 7: weights. */
#define FOLDED_FEW_TURN(h, z)                                          \
    do {                                                               \
        TILE_LOAD(4, x + (size_t)(h)*x_step, x_line);                  \
        TILE_LOAD(6, folded_tile(&w[0], h), line);                     \
        TILE_DPBF16(0, 4, 6);                                          \
        folded_group(&w[0], step + FOLDED_AHEAD_FEW, 2 * (z));         \
        folded_group(&w[0], step + FOLDED_AHEAD_FEW, 2 * (z) + 1);     \
        if (P == 2) {                                                  \
            TILE_LOAD(7, folded_tile(&w[1], h), line);                 \
            TILE_DPBF16(1, 4, 7);                                      \
            folded_group(&w[1], step + FOLDED_AHEAD_FEW, 2 * (z));     \
            folded_group(&w[1], step + FOLDED_AHEAD_FEW, 2 * (z) + 1); \
        }                                                              \
    } while (0)

INLINE void folded_few(const struct gemm_block *b, const int P)
{
    const int n_tile = folded_tiles(b);
    const size_t line = TILE_LINE, x_line = b->x_tiled ? TILE_LINE : b->x_stride * sizeof(*b->x);
    const size_t x_step = b->x_tiled ? TILE_ROW * TILE_K : TILE_K;
    const struct folded w[2] = {folded_open(b, 0), folded_open(b, P - 1)};
    const uint16_t *x = b->x;
    walk_open(1, P);
    for (int p = 0; p < P; p++)
        folded_first(&w[p], FOLDED_AHEAD_FEW);
    for (int h = 0, step = 0; h < n_tile; h += 2, step++) {
        FOLDED_FEW_TURN(h, 0);
        if (h + 1 < n_tile)
            FOLDED_FEW_TURN(h + 1, 1);
    }
    walk_close(b->sum, 1, P);
}

/* ---- more rows ----------------------------------------------------------------------------------- */

/* Tiles 0 .. 3: sums; 4: x; 6, 7: weights. */
static inline void folded_configure(struct tile_config *c)
{
    *c = (struct tile_config){.palette = 1};
    for (int i = 0; i < 8; i++) {
        c->n_row[i] = TILE_ROW;
        c->line_bytes[i] = TILE_LINE;
    }
}

#define FOLDED_LOAD_X(i, h) TILE_LOAD(4, x[i] + (size_t)(h) * (TILE_ROW * TILE_K), line)

/* Row tile i of the panel, whose tile h, number z of its step, is in 6. */
#define FOLDED_ROW(i, h, z)                                             \
    do {                                                                \
        FOLDED_LOAD_X(i, h);                                            \
        TILE_DPBF16(i, 4, 6);                                           \
        TILE_ZERO(4);                                                   \
        if ((i) + 1 == H)                                               \
            TILE_ZERO(6);                                               \
        folded_share(&w, step + FOLDED_AHEAD_MANY, (z)*H + (i), 2 * H); \
    } while (0)

#define FOLDED_TURN(h, z)                       \
    do {                                        \
        TILE_LOAD(6, folded_tile(&w, h), line); \
        FOLDED_ROW(0, h, z);                    \
        FOLDED_ROW(1, h, z);                    \
        if (H > 2)                              \
            FOLDED_ROW(2, h, z);                \
        if (H > 3)                              \
            FOLDED_ROW(3, h, z);                \
    } while (0)

/* Panel p against H tiles of rows from number `first` on; 2 <= H <= 4. */
INLINE void folded_pass(const struct gemm_block *b, int p, int first, const int H)
{
    const int n_tile = folded_tiles(b);
    const size_t line = TILE_LINE;
    const struct folded w = folded_open(b, p);
    const uint16_t *x[4];
    float *sum[4];
    for (int i = 0; i < H; i++) {
        size_t row = (size_t)TILE_ROW * (size_t)(first + i);
        x[i] = b->x + row * b->x_stride;
        sum[i] = b->sum + ((size_t)p * GEMM_BLOCK_ROW + row) * WEIGHT_PANEL;
    }
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (H > 2)
        TILE_ZERO(2);
    if (H > 3)
        TILE_ZERO(3);
    folded_first(&w, FOLDED_AHEAD_MANY);
    for (int h = 0, step = 0; h < n_tile; h += 2, step++) {
        FOLDED_TURN(h, 0);
        if (h + 1 < n_tile)
            FOLDED_TURN(h + 1, 1);
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

#include "kernels/cpu/block_folded_pair_amx.h" /* in terms of the above */

static inline void block_folded(const struct gemm_block *b)
{
    struct tile_config config;
    if (b->n_row <= TILE_ROW)
        bf16_configure(&config, b->n_row);
    else
        folded_configure(&config);
    TILE_CONFIG(&config);
    if (b->n_row > TILE_ROW && b->n_panel == 2)
        folded_pairs(b);
    else if (b->n_row > TILE_ROW)
        folded_panel(b, 0);
    else if (b->n_panel == 2)
        folded_few(b, 2);
    else
        folded_few(b, 1);
    TILE_RELEASE();
}

#endif
