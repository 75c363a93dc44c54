/* What the grouped product is built from: tiles of one or two panels and a few rows, one table a CPU level.
 *
 * A tile function computes raw sums, without global scale, of its panels against the rows of x. Every output
 * is one chain of operations over K whose order depends on the weight type and operand form alone: this is
 * where the contract of gemm.h (the same bits for any m) is kept. Within NVFP4 that order is, for each group
 * of 16: a dot product of codes and x from zero, then sum = fma(block scale, dot, sum); in int8, such sums of
 * 64 elements from zero, each dot shifted left first, and then sum = fma(x's scale, sum of 64, sum). In int8
 * of blocks sums of 64 are exact integers (cpu/gemm_nvfp4_i8_avx512.c). With x of 16-bit integers a dot is
 * exact, and sum = fma(block scale * x's unit, dot, sum). */
#ifndef NYB_KERNELS_GEMM_TILE_H
#define NYB_KERNELS_GEMM_TILE_H

#include "base/cpu.h"
#include "kernels/gemm.h"

#define GEMM_TILE_ROW 32 /* at most, of x */

/* Of x. I8B: int8 in blocks of 64. */
enum gemm_form { GEMM_F32, GEMM_BF16, GEMM_I8, GEMM_I8B, GEMM_I16, GEMM_FORM_COUNT };

struct gemm_tile {
    const uint8_t *panel[2]; /* second: gate's partner, or the next panel         */
    int n_panel;             /* 1 or 2                                            */
    bool near;               /* the panels lie in the last cache, not in memory   */
    int k;
    int n_row;                                     /* 1 .. max_row of the table                         */
    const void *x[GEMM_TILE_ROW];                  /* rows in the form of the kernel; I16: their bytes */
    const float *x_scale[GEMM_TILE_ROW];           /* I8 only: one for each 64 of k       */
    const struct i8_group *x_group[GEMM_TILE_ROW]; /* I8 only: (k / 16)          */
    const struct i16_group *x_unit[GEMM_TILE_ROW]; /* I16 only: (k / 16)         */
    float *sum; /* (n_panel, GEMM_TILE_ROW, WEIGHT_PANEL), 64-byte aligned */
};
typedef void gemm_tile_fn(const struct gemm_tile *t);

/* Where decoding costs more than a few rows can hide, one or two panels go against many rows of x at once
 * instead, and each panel is decoded once for all of them. With a matrix unit weights are multiplied by
 * their block scales first, which is exact in bf16, and products of even and of odd k are summed apart within
 * each 32 k, for any number of rows. */
#define GEMM_BLOCK_ROW 256 /* at most, of x */

struct gemm_block {
    const uint8_t *panel[2];        /* as in a tile                                            */
    size_t next;                    /* bytes from each to the panel that comes after it        */
    int n_more;                     /* so many more follow, for kernels that stream            */
    void (*done)(void *own, int i); /* told when the sums of panels i, from 0 on, are there; before those of
                                     * the next; NULL: nobody asks */
    void *own;
    /* NULL; or where the sums' results go, for n_out panels of each time, out_panel bytes apart, and in rows
     * out_row bytes apart: the lines may be asked for beforehand. */
    const uint8_t *out;
    size_t out_row, out_panel;
    int n_out;
    int n_panel, k;
    const uint16_t *x;         /* BF16: (n_row, x_stride), zero from k on up to a multiple of 32      */
    size_t x_stride;           /* a multiple of 32                                                    */
    bool x_tiled;              /* the same in tiles: see gemm_copy_fn                                 */
    const void *const *row;    /* others: (n_row) rows                                      */
    const void *const *group;  /* I8: (n_row) rows of struct i8_group, I16: of i16_group    */
    const float *const *scale; /* I8: (n_row) rows of one for each 64 of k                  */
    int n_row;                 /* 1 .. GEMM_BLOCK_ROW                                           */
    uint8_t *decode;           /* of the caller's: gemm_block_decode_bytes, 64-byte aligned             */
    float *sum;                /* (n_panel, GEMM_BLOCK_ROW, WEIGHT_PANEL), 64-byte aligned              */
};
typedef void gemm_block_fn(const struct gemm_block *b);

/* One row of bf16 as a block wants it, GEMM_BLOCK_STEP elements every `step` elements; n: a multiple of
 * GEMM_BLOCK_STEP. More than GEMM_BLOCK_TILE rows go into tiles, so that what a step of K takes of 16 rows is
 * in one piece: (rows / 16, x_stride / 32, 16, 32), the last rows filled up with zeros. */
#define GEMM_BLOCK_STEP 32
#define GEMM_BLOCK_TILE 16
typedef void gemm_copy_fn(uint16_t *to, const uint16_t *x, int n, size_t step);

/* Blocks of one weight type and form of x, in place of tiles from least_row rows on. */
struct gemm_blocks {
    gemm_block_fn *fn; /* NULL: none                                                 */
    int least_row;
    gemm_copy_fn *copy; /* NULL: rows of bf16 go as they are                          */
    float unit;         /* of its sums, a power of two                                */
    bool stream;        /* takes panels after panels in one call (gemm_block.n_more)  */
};

/* Of BF16: four blocks of 64 k of both panels, expanded. Of others: a stretch of K, and unfinished sums. */
#define GEMM_BLOCK_BF16_BYTES (16 * 1024)
#define GEMM_BLOCK_WIDE_BYTES (50 * 1024)
static inline size_t gemm_block_decode_bytes(enum gemm_form form)
{
    return form == GEMM_BF16 ? GEMM_BLOCK_BF16_BYTES : GEMM_BLOCK_WIDE_BYTES;
}

/* From raw sums to y: one panel of a tile or block. */
struct gemm_finish {
    const float *sum, *sum_up; /* (n_row, WEIGHT_PANEL); sum_up only if gated */
    float scale, scale_up;     /* global scales                               */
    const float *bias;         /* NULL or (n)                                 */
    float *y;                  /* (n_row, ldy)                                */
    uint16_t *rounded;         /* NULL; or (n_row, ldy) of bf16 instead of y, at levels that have it */
    int n_row, n, ldy;         /* n: 1 .. WEIGHT_PANEL                        */
    bool gated, accumulate;
};
typedef void gemm_finish_fn(const struct gemm_finish *f);

/* One row of x to its forms. Outputs that are not wanted are NULL. */
struct gemm_row {
    const float *x; /* (k) */
    int k, k_pad;
    float *f32;
    uint16_t *bf16;
    int8_t *i8;
    float *i8_scale; /* both as in struct operand */
    struct i8_group *i8_group;
    struct i8_block *i8_block;
    int16_t *i16;
    int8_t *i16_bytes;
    struct i16_group *i16_group;
};
typedef void gemm_row_fn(const struct gemm_row *r);

/* int8 operands: blocks of 64 share a scale amax / 127 * 2^-8, and a group of 16 whose own amax is smaller by
 * a factor of 2^e (rounded down, 8 at most) is finer by as much: its shift is 8 - e. Blocks whose amax is
 * below I8_LEAST are zero. Those above I8_MOST are, too, or, of I8B,
 * make what they meet infinite or NaN, with exceptions that docs/NUMERICS.md names. */
#define I8_BLOCK     64
#define I8_SHIFT_MAX 8
#define I8_LEAST     1e-30f
#define I8_MOST      3e38f
#define I8_SCALE     (1.0f / 127.0f / (1 << I8_SHIFT_MAX)) /* of amax */

struct gemm_table {
    /* NULL: this level has no such form; a mode then takes the next one of gemm_form_for. */
    gemm_tile_fn *tile[WEIGHT_TYPE_COUNT][GEMM_FORM_COUNT];
    int max_row[WEIGHT_TYPE_COUNT][GEMM_FORM_COUNT][3];           /* [..][n_panel] rows a tile     */
    struct gemm_blocks block[WEIGHT_TYPE_COUNT][GEMM_FORM_COUNT]; /* of x in any form */
    gemm_finish_fn *finish;
    gemm_row_fn *row;
};

/* Rows of gemm_kernels.def up to `level`, later ones over earlier ones. */
const struct gemm_table *gemm_table_for(enum cpu_level level);
enum gemm_form gemm_form_for(const struct gemm_table *t, enum weight_type type, enum compute mode);
void gemm_run_with(const struct gemm_table *table, struct pool *pool, struct arena *scratch,
                   enum compute mode, const struct gemm_job *job, int n_job);
bool gemm_operand_open_with(const struct gemm_table *table, struct arena *arena, enum compute mode, int m,
                            int k, struct operand *out);
void gemm_prepare_with(const struct gemm_table *table, struct pool *pool, struct arena *arena,
                       enum compute mode, const float *x, int m, int k, struct operand *out);

#endif
