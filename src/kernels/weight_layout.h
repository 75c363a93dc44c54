/* How each weight type is interleaved: one row a type, read by the packer, the unpacker and every kernel.
 *
 * A panel holds WEIGHT_PANEL rows. "Lane" below is the 32-bit lane of row r in a vector of 16.
 *
 *   NVFP4  per four groups of 16 k: 64 B of block scales, group-major, [group][row]; then each group's codes,
 *          128 B = two vectors. Vector z of a group holds k = 8z .. 8z + 7; lane r has eight nibbles of row
 * r, lowest first: k = 8z + 0, 2, 4, 6, 1, 3, 5, 7. So a 16-bit half shifted right by 0, 4, 8, 12 indexes a
 * table of bf16 whose results are (even k, odd k) pairs; the lane shifted by 4i indexes a table of floats;
 * and the low (high) nibbles of the four bytes are the quad k = 0, 4, 1, 5 (2, 6, 3, 7). FP8    per four k:
 * 64 B; each 16-byte piece q holds rows 4q .. 4q + 3: first (k, k + 1) of the four, then (k + 2, k + 3).
 * Interleaving with another byte gives 16-bit pairs in lane order. BF16   per two k: 64 B, lane r = (k, k +
 * 1). F16    per k: 32 B, row r at r. F32    per k: 64 B, row r at r.
 *
 * The end of K is padded with zeros to a whole unit, a panel to a multiple of 64 bytes. */
#ifndef NYB_KERNELS_WEIGHT_LAYOUT_H
#define NYB_KERNELS_WEIGHT_LAYOUT_H

#include "kernels/weight.h"

#define NVFP4_BLOCK_BYTES 576 /* four whole groups: 64 B of scales, 4 * 128 B of codes */
#define NVFP4_GROUP_BYTES 128
/* Kernels read a block scale as fp16 bits (byte << 7), which is its value times 2^-8. */
#define NVFP4_SCALE_UNIT 256.0f

struct weight_layout {
    const char *name;
    size_t (*row_bytes)(int k);   /* one logical row     */
    size_t (*panel_bytes)(int k); /* multiple of 64      */
    /* n_row logical rows, row_bytes apart (scales k/16 apart) to one panel, all of whose bytes are written.
     */
    void (*pack)(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales);
    void (*unpack)(const uint8_t *panel, int k, int row, uint8_t *elements, uint8_t *scales);
};

extern const struct weight_layout weight_layout_table[WEIGHT_TYPE_COUNT];

static inline size_t weight_panel_bytes(const struct weight *w)
{
    return weight_layout_table[w->type].panel_bytes(w->k);
}
static inline int weight_n_panel(const struct weight *w)
{
    return (w->n + WEIGHT_PANEL - 1) / WEIGHT_PANEL;
}

/* Byte offsets in an NVFP4 panel of k elements, for group g. The last block may hold fewer than four groups.
 */
static inline size_t nvfp4_scale_at(int g)
{
    return (size_t)(g >> 2) * NVFP4_BLOCK_BYTES + (size_t)(g & 3) * WEIGHT_PANEL;
}
static inline size_t nvfp4_codes_at(int g)
{
    return (size_t)(g >> 2) * NVFP4_BLOCK_BYTES + 64 + (size_t)(g & 3) * NVFP4_GROUP_BYTES;
}

#endif
