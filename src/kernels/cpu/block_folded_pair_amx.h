/* Two panels of NVFP4 against many rows on the matrix unit: a part of block_folded_amx.h. */
#ifndef NYB_KERNELS_CPU_BLOCK_FOLDED_PAIR_AMX_H
#define NYB_KERNELS_CPU_BLOCK_FOLDED_PAIR_AMX_H

/* Most tiles of rows of a pass: two with both panels, three with one after the other. */
#define FOLDED_PAIR_MOST 3

/* What is expanded after product t of the n that a step has: groups of either panel in turn. */
#define FOLDED_PAIR_SHARE(t, n)                                           \
    do {                                                                  \
        UNROLL                                                            \
        for (int e = 0; e < 2 * FOLDED_GROUPS; e++)                       \
            if (e * (n) / (2 * FOLDED_GROUPS) == (t))                     \
                folded_group(&w[e % 2], step + FOLDED_AHEAD_MANY, e / 2); \
    } while (0)

/* Tile h, number z of its step. Tiles 0 .. 3: sums (row tile, panel); 4: x; 6, 7: weights. */
#define FOLDED_PAIR_TURN(h, z)                     \
    do {                                           \
        TILE_LOAD(6, folded_tile(&w[0], h), line); \
        FOLDED_LOAD_X(0, h);                       \
        TILE_LOAD(7, folded_tile(&w[1], h), line); \
        TILE_DPBF16(0, 4, 6);                      \
        FOLDED_PAIR_SHARE(4 * (z), 8);             \
        TILE_DPBF16(1, 4, 7);                      \
        TILE_ZERO(4);                              \
        FOLDED_PAIR_SHARE(4 * (z) + 1, 8);         \
        FOLDED_LOAD_X(1, h);                       \
        TILE_DPBF16(2, 4, 6);                      \
        TILE_ZERO(6);                              \
        FOLDED_PAIR_SHARE(4 * (z) + 2, 8);         \
        TILE_DPBF16(3, 4, 7);                      \
        TILE_ZERO(4);                              \
        TILE_ZERO(7);                              \
        FOLDED_PAIR_SHARE(4 * (z) + 3, 8);         \
    } while (0)

/* Both panels against two tiles of rows from number `first` on; again: more rows come. */
INLINE void folded_pair(const struct gemm_block *b, struct folded_rings *r, int first, bool again)
{
    const int n_tile = folded_tiles(b);
    const size_t line = TILE_LINE, other = (size_t)GEMM_BLOCK_ROW * WEIGHT_PANEL;
    const struct folded w[2] = {
        folded_open(b, r, 0, TILE_ROW * first, 2 * TILE_ROW, again, FOLDED_AHEAD_MANY),
        folded_open(b, r, 1, TILE_ROW * first, 2 * TILE_ROW, again, FOLDED_AHEAD_MANY)};
    const uint16_t *x[2];
    float *sum[2];
    for (int i = 0; i < 2; i++) {
        size_t row = (size_t)TILE_ROW * (size_t)(first + i);
        x[i] = b->x + row * b->x_stride;
        sum[i] = b->sum + row * WEIGHT_PANEL;
    }
    walk_open(2, 2);
    for (int p = 0; p < 2; p++)
        folded_first(&w[p], r, p, FOLDED_AHEAD_MANY);
    for (int h = 0, step = 0; h < n_tile; h += 2, step++) {
        FOLDED_PAIR_TURN(h, 0);
        if (h + 1 < n_tile)
            FOLDED_PAIR_TURN(h + 1, 1);
    }
    TILE_STORE(0, sum[0], line);
    TILE_STORE(1, sum[0] + other, line);
    TILE_STORE(2, sum[1], line);
    TILE_STORE(3, sum[1] + other, line);
    for (int p = 0; p < 2; p++)
        folded_close(&w[p], r, p);
}

/* All rows, two or three tiles a pass. */
static inline void folded_pairs(const struct gemm_block *b, struct folded_rings *r)
{
    const int n_tile = (b->n_row + TILE_ROW - 1) / TILE_ROW;
    const int n_pass = (n_tile + FOLDED_PAIR_MOST - 1) / FOLDED_PAIR_MOST;
    for (int pass = 0, first = 0, n; pass < n_pass; pass++, first += n) {
        n = (n_tile - first + n_pass - pass - 1) / (n_pass - pass);
        if (n == 3) {
            folded_pass(b, r, 0, first, pass + 1 < n_pass, 3);
            folded_pass(b, r, 1, first, pass + 1 < n_pass, 3);
        } else {
            folded_pair(b, r, first, pass + 1 < n_pass);
        }
    }
}

#endif
