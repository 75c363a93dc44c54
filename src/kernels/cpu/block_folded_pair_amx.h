/* Two panels of NVFP4 against many rows on the matrix unit: a part of block_folded_amx.h. */
#ifndef NYB_KERNELS_CPU_BLOCK_FOLDED_PAIR_AMX_H
#define NYB_KERNELS_CPU_BLOCK_FOLDED_PAIR_AMX_H

/* ---- more rows: two panels at a time ----------------------------------------------------------- */

/* Tiles of rows of a pass: their sums with both panels leave two tiles to load. */
#define FOLDED_PAIR_MOST 3

/* What is expanded after product t of the n that a step has: groups of either panel in turn. */
#define FOLDED_PAIR_SHARE(t, n)                                           \
    do {                                                                  \
        UNROLL                                                            \
        for (int e = 0; e < 2 * FOLDED_GROUPS; e++)                       \
            if (e * (n) / (2 * FOLDED_GROUPS) == (t))                     \
                folded_group(&w[e % 2], step + FOLDED_AHEAD_MANY, e / 2); \
    } while (0)
#define FOLDED_PAIR_W(tile, p, h) TILE_LOAD(tile, folded_tile(&w[p], h), line)

/* Tile h, number z of its step. Tiles 0 .. 3: sums (row tile, panel); 4, 5: x; 6, 7: weights. Loads come
 * first, all together: on a core with two busy threads a load behind a product seems to wait for it. */
#define FOLDED_PAIR_TURN_2(h, z)           \
    do {                                   \
        FOLDED_PAIR_W(6, 0, h);            \
        FOLDED_LOAD_X(4, 0, h);            \
        FOLDED_PAIR_W(7, 1, h);            \
        FOLDED_LOAD_X(5, 1, h);            \
        TILE_DPBF16(0, 4, 6);              \
        FOLDED_PAIR_SHARE(4 * (z), 8);     \
        TILE_DPBF16(1, 4, 7);              \
        FOLDED_PAIR_SHARE(4 * (z) + 1, 8); \
        TILE_DPBF16(2, 5, 6);              \
        FOLDED_PAIR_SHARE(4 * (z) + 2, 8); \
        TILE_DPBF16(3, 5, 7);              \
        FOLDED_PAIR_SHARE(4 * (z) + 3, 8); \
    } while (0)

/* Tiles 0 .. 5: sums (row tile, panel); 6: x; 7: weights. Two of three tiles of x are loaded twice: from the
 * first cache the second time. */
#define FOLDED_PAIR_TURN_3(h, z)            \
    do {                                    \
        FOLDED_PAIR_W(7, 0, h);             \
        FOLDED_LOAD_X(6, 0, h);             \
        TILE_DPBF16(0, 6, 7);               \
        FOLDED_PAIR_SHARE(6 * (z), 12);     \
        FOLDED_LOAD_X(6, 1, h);             \
        TILE_DPBF16(2, 6, 7);               \
        FOLDED_PAIR_SHARE(6 * (z) + 1, 12); \
        FOLDED_LOAD_X(6, 2, h);             \
        TILE_DPBF16(4, 6, 7);               \
        FOLDED_PAIR_SHARE(6 * (z) + 2, 12); \
        FOLDED_PAIR_W(7, 1, h);             \
        TILE_DPBF16(5, 6, 7);               \
        FOLDED_PAIR_SHARE(6 * (z) + 3, 12); \
        FOLDED_LOAD_X(6, 1, h);             \
        TILE_DPBF16(3, 6, 7);               \
        FOLDED_PAIR_SHARE(6 * (z) + 4, 12); \
        FOLDED_LOAD_X(6, 0, h);             \
        TILE_DPBF16(1, 6, 7);               \
        FOLDED_PAIR_SHARE(6 * (z) + 5, 12); \
    } while (0)

/* Both panels against H tiles of rows from number `first` on; H: 2 or 3. */
INLINE void folded_pair(const struct gemm_block *b, int first, const int H)
{
    const int n_tile = folded_tiles(b);
    const size_t line = TILE_LINE, other = (size_t)GEMM_BLOCK_ROW * WEIGHT_PANEL;
    const struct folded w[2] = {folded_open(b, 0), folded_open(b, 1)};
    const uint16_t *x[FOLDED_PAIR_MOST];
    float *sum[FOLDED_PAIR_MOST];
    for (int i = 0; i < H; i++) {
        size_t row = (size_t)TILE_ROW * (size_t)(first + i);
        x[i] = b->x + row * b->x_stride;
        sum[i] = b->sum + row * WEIGHT_PANEL;
    }
    walk_open(2, 2);
    if (H == 3) {
        TILE_ZERO(4);
        TILE_ZERO(5);
    }
    folded_first(&w[0], FOLDED_AHEAD_MANY);
    folded_first(&w[1], FOLDED_AHEAD_MANY);
    for (int h = 0, step = 0; h < n_tile; h += 2, step++) {
        if (H == 2) {
            FOLDED_PAIR_TURN_2(h, 0);
            if (h + 1 < n_tile)
                FOLDED_PAIR_TURN_2(h + 1, 1);
        } else {
            FOLDED_PAIR_TURN_3(h, 0);
            if (h + 1 < n_tile)
                FOLDED_PAIR_TURN_3(h + 1, 1);
        }
    }
    TILE_STORE(0, sum[0], line);
    TILE_STORE(1, sum[0] + other, line);
    TILE_STORE(2, sum[1], line);
    TILE_STORE(3, sum[1] + other, line);
    if (H == 3) {
        TILE_STORE(4, sum[2], line);
        TILE_STORE(5, sum[2] + other, line);
    }
}

/* All rows, two or three tiles a pass. */
static inline void folded_pairs(const struct gemm_block *b)
{
    const int n_tile = (b->n_row + TILE_ROW - 1) / TILE_ROW;
    const int n_pass = (n_tile + FOLDED_PAIR_MOST - 1) / FOLDED_PAIR_MOST;
    for (int pass = 0, first = 0, n; pass < n_pass; pass++, first += n) {
        n = (n_tile - first + n_pass - pass - 1) / (n_pass - pass);
        if (n == 3)
            folded_pair(b, first, 3);
        else
            folded_pair(b, first, 2);
    }
}

#endif
