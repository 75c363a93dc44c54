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

/* What the rings of both panels hold between two walks over them. */
struct folded_rings {
    int at[2];     /* the place of the step to come                 */
    bool ready[2]; /* the first steps of the walk to come are there */
};

/* A panel on its way through the unit. */
struct folded {
    const uint8_t *panel, *follow; /* follow: the panel that comes next, less the bytes of this one */
    const uint8_t *then;           /* the panel that the ring has next, or NULL: its first steps are expanded
                                    * between the last products of this one */
    uint8_t *ring;                 /* of FOLDED_RING steps */
    int at;                        /* where the first step is in it */
    int n_group, n_step;
    const uint8_t *out; /* lines that results go to, out_row bytes apart: one is asked for with each group */
    size_t out_row;
    int n_out, ahead;
    struct fold fold;
};

/* Steps that expanding is ahead of the products. With few rows there are few products to wait for: loads of
 * tiles then come too soon after the stores that they read. */
#define FOLDED_AHEAD_FEW  2
#define FOLDED_AHEAD_MANY 1
_Static_assert(FOLDED_AHEAD_FEW + 2 <= FOLDED_RING, "a step in use and the loads of the next");

/* For n rows from row `first` on; again: the panel is walked over once more after this. */
INLINE struct folded folded_open(const struct gemm_block *b, const struct folded_rings *r, int p, int first,
                                 int n, bool again, const int ahead)
{
    struct folded w = {.panel = b->panel[p],
                       .ring = b->decode + (size_t)p * FOLDED_RING * FOLDED_BYTES,
                       .at = r->at[p],
                       .n_group = b->k / FP4_GROUP,
                       .n_step = (b->k + FOLDED_STEP - 1) / FOLDED_STEP,
                       .fold = fold_open()};
    w.follow = b->panel[p] + b->next - (size_t)w.n_step * NVFP4_BLOCK_BYTES;
    if (folded_tiles(b) % 2 == 0 && w.n_step >= ahead && (again || b->n_more > 0))
        w.then = b->panel[p] + (again ? 0 : b->next);
    if (b->out && p < b->n_out) {
        w.out = b->out + (size_t)p * b->out_panel + (size_t)first * b->out_row;
        w.n_out = n < b->n_row - first ? n : b->n_row - first;
        w.out_row = b->out_row;
    }
    w.ahead = ahead;
    return w;
}

INLINE void folded_close(const struct folded *w, struct folded_rings *r, int p)
{
    r->at[p] = (w->at + w->n_step) % FOLDED_RING;
    r->ready[p] = w->then != NULL;
}

/* Where tile h is once it is expanded. */
INLINE uint8_t *folded_tile(const struct folded *w, int h)
{
    return w->ring + (size_t)((2 * w->at + h) % (2 * FOLDED_RING)) * TILE_BYTES;
}

/* Group g (literal) of a step, if there is one, and after the last step of the panel to come; a last tile of
 * one group is filled up with zeros. */
INLINE void folded_group(const struct folded *w, int step, const int g)
{
    const int ask = step + FOLDED_FETCH, over = step - w->n_step;
    const int group = FOLDED_GROUPS * (over < 0 ? step : over) + g;
    const uint8_t *from =
        over < 0 ? w->panel + (size_t)step * NVFP4_BLOCK_BYTES : w->then + (size_t)over * NVFP4_BLOCK_BYTES;
    uint8_t *to = folded_tile(w, 2 * step) + (size_t)g * (TILE_BYTES / 2);
    const int out = FOLDED_GROUPS * (step - w->ahead) + g;
    if (out >= 0 && out < w->n_out)
        fold_ask_out(w->out + (size_t)out * w->out_row);
    if (over >= 0 && !w->then)
        return;
    if (group < w->n_group) {
        fold_ask((ask < w->n_step ? w->panel : w->follow) + (size_t)ask * NVFP4_BLOCK_BYTES, g);
        fold_group(&w->fold, from, g, to);
    } else if (group == w->n_group && g % 2) {
        memset(to, 0, TILE_BYTES / 2);
    }
}

/* The first n steps, unless they are there. */
INLINE void folded_first(const struct folded *w, const struct folded_rings *r, int p, const int n)
{
    for (int step = 0; step < n && !r->ready[p]; step++) {
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

INLINE void folded_few(const struct gemm_block *b, struct folded_rings *r, const int P)
{
    const int n_tile = folded_tiles(b);
    const size_t line = TILE_LINE, x_line = b->x_tiled ? TILE_LINE : b->x_stride * sizeof(*b->x);
    const size_t x_step = b->x_tiled ? TILE_ROW * TILE_K : TILE_K;
    const struct folded w[2] = {folded_open(b, r, 0, 0, 0, false, FOLDED_AHEAD_FEW),
                                folded_open(b, r, P - 1, 0, 0, false, FOLDED_AHEAD_FEW)};
    const uint16_t *x = b->x;
    walk_open(1, P);
    for (int p = 0; p < P; p++)
        folded_first(&w[p], r, p, FOLDED_AHEAD_FEW);
    for (int h = 0, step = 0; h < n_tile; h += 2, step++) {
        FOLDED_FEW_TURN(h, 0);
        if (h + 1 < n_tile)
            FOLDED_FEW_TURN(h + 1, 1);
    }
    walk_close(b->sum, 1, P);
    for (int p = 0; p < P; p++)
        folded_close(&w[p], r, p);
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

/* Panel p against H tiles of rows from number `first` on; 2 <= H <= 4; again: more rows come. */
INLINE void folded_pass(const struct gemm_block *b, struct folded_rings *r, int p, int first, bool again,
                        const int H)
{
    const int n_tile = folded_tiles(b);
    const size_t line = TILE_LINE;
    const struct folded w = folded_open(b, r, p, TILE_ROW * first, TILE_ROW * H, again, FOLDED_AHEAD_MANY);
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
    folded_first(&w, r, p, FOLDED_AHEAD_MANY);
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
    folded_close(&w, r, p);
}

/* All rows, in passes of nearly as many tiles each. */
static inline void folded_panel(const struct gemm_block *b, struct folded_rings *r, int p)
{
    const int n_tile = (b->n_row + TILE_ROW - 1) / TILE_ROW, n_pass = (n_tile + 3) / 4;
    for (int pass = 0, first = 0, n; pass < n_pass; pass++, first += n) {
        n = (n_tile - first + n_pass - pass - 1) / (n_pass - pass);
        if (n == 4)
            folded_pass(b, r, p, first, pass + 1 < n_pass, 4);
        else if (n == 3)
            folded_pass(b, r, p, first, pass + 1 < n_pass, 3);
        else
            folded_pass(b, r, p, first, pass + 1 < n_pass, 2);
    }
}

#include "kernels/cpu/block_folded_pair_amx.h" /* in terms of the above */

static inline void folded_rows(const struct gemm_block *b, struct folded_rings *r)
{
    if (b->n_row > TILE_ROW && b->n_panel == 2)
        folded_pairs(b, r);
    else if (b->n_row > TILE_ROW)
        folded_panel(b, r, 0);
    else if (b->n_panel == 2)
        folded_few(b, r, 2);
    else
        folded_few(b, r, 1);
}

/* Panels after panels: the unit is configured once, and between the last products with some the first steps
 * of the next are expanded. */
static inline void block_folded(const struct gemm_block *b)
{
    struct gemm_block now = *b;
    struct folded_rings rings = {0};
    struct tile_config config;
    if (b->n_row <= TILE_ROW)
        bf16_configure(&config, b->n_row);
    else
        folded_configure(&config);
    TILE_CONFIG(&config);
    for (int i = 0; now.n_more >= 0; i++, now.n_more--) {
        folded_rows(&now, &rings);
        if (b->done)
            b->done(b->own, i);
        now.panel[0] += b->next;
        now.panel[1] += b->next;
        if (b->out)
            now.out += (size_t)b->n_out * b->out_panel;
    }
    TILE_RELEASE();
}

#endif
