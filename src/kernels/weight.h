/* A weight matrix in the layout that the kernels read.
 *
 * Rows are output features, grouped 16 at a time into panels; a panel's elements are interleaved so that one
 * vector lane owns one row and no sum ever crosses lanes. Each type has one layout, that all CPU levels read:
 * a row of weight_layout_table (weight_layout.h), with its packing and unpacking beside it. Slots are written
 * in place by weight_write, row by row in any order and from several threads (different panels); reading back
 * gives the logical values, whatever the layout. */
#ifndef NYB_KERNELS_WEIGHT_H
#define NYB_KERNELS_WEIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum weight_type { WEIGHT_NVFP4, WEIGHT_FP8, WEIGHT_BF16, WEIGHT_F16, WEIGHT_F32, WEIGHT_TYPE_COUNT };

#define WEIGHT_PANEL 16 /* rows a panel */

struct weight {
    enum weight_type type;
    int n, k;           /* out, in features                                        */
    uint8_t *data;      /* packed elements, 64-byte aligned, weight_data_bytes()   */
    float global_scale; /* multiplies every output; kept per matrix to the end     */
    float input_scale;  /* of the checkpoint, for w4a4; 0: none                    */
    bool near;          /* with the rest of its model it stays in the last cache   */
};

const char *weight_type_name(enum weight_type t);
size_t weight_data_bytes(enum weight_type t, int n, int k); /* whole, with padding; multiple of 64 */
size_t weight_row_bytes(enum weight_type t, int k);         /* one logical row of elements (NVFP4: k/2) */

/* Rows [row, row + n_row) from their logical, row-major form. scales: NVFP4 only, (n_row, k/16) e4m3.
 * row must be a multiple of WEIGHT_PANEL; n_row too, unless it reaches n. Padding rows are zeroed. Block
 * scales must not be negative (0x80 set); NaN (0x7f) is taken as 480, so that a group of zero codes stays
 * zero. */
void weight_write(struct weight *w, int row, int n_row, const uint8_t *rows, const uint8_t *scales);
/* The inverse, for one row: the same bytes that were written. */
void weight_read(const struct weight *w, int row, uint8_t *elements, uint8_t *scales);
/* One row as floats, global scale included. */
void weight_row_to_float(const struct weight *w, int row, float *dst);

#endif
