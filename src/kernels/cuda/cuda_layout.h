/* How NVFP4 weights lie in a GPU's memory: one layout for small and for large numbers of rows.
 *
 * A unit holds 16 rows x 64 k in 576 bytes: 512 of codes, then 64 of block scales. It is what one warp reads
 * with one 16-byte load a lane and turns into the A operands of four mma.m16n8k16 (or a quarter of wgmma's):
 * lane l has rows g = l/4 and g + 8, and of them the block l % 4 of 16 k. So one scale of each row is all
 * that it needs, and its k lie side by side in a row of x, too: instruction f multiplies four k of each
 * block. A tile is the units of 16 rows, k ascending; a matrix is its tiles. So any run of a matrix is one
 * contiguous copy.
 *
 * Word f of a lane (k 4f to 4f + 3 of its block) holds four pairs of codes: row g, k 0 1; row g + 8, k 0 1;
 * row g, k 2 3; row g + 8, k 2 3. Their bits are spread so that few shifts and masks put a pair where bf16
 * has sign and the low bits of its magnitude: 2^-126 times the value of e2m1. Three pairs of a word are
 * rotations of it; no four rotations tile 32 bits, so the last pairs of two words lie in what both have left.
 * The scale is a code of five bits of exponent and three of mantissa, which `code << 4 | 0x7000` makes the
 * bf16 number scale * 2^107. Their product, value * scale * 2^-19, is exact and normal: e4m3's subnormals are
 * normal numbers here. What has no such number moves into the codes of its block: the sign of a negative
 * scale, and zero. A block whose scale is zero has zero codes, under a scale code of zero that no other scale
 * has (and that kernels take as a scale like any other): so it is known again, and a matrix in this layout is
 * the checkpoint's but for codes under a scale of zero.
 *
 * Rows of gate and up alternate by eight, so that both values of a neuron meet in one lane. */
#ifndef NYB_KERNELS_CUDA_LAYOUT_H
#define NYB_KERNELS_CUDA_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_UNIT_ROWS  16
#define CUDA_UNIT_K     64
#define CUDA_UNIT_CODES 512
#define CUDA_UNIT_BYTES 576
/* The products are this much smaller than the weights: the epilogue multiplies it back. */
#define CUDA_SCALE_BACK 524288.0f /* 2^19 */

struct nyb_err;

/* Bytes of n_row x K; rows are padded to 16 with zeros. K is a multiple of 64. */
size_t cuda_layout_bytes(size_t n_row, size_t K);

/* The code of an e4m3 byte without a sign (0x00 to 0x7f, NaN counting as 480), and back. */
uint8_t cuda_layout_scale(uint8_t e4m3);
uint8_t cuda_layout_scale_back(uint8_t code);

/* codes [n_row][K/2] and scales [n_row][K/16], as in checkpoints, to packed. False: a NaN scale over a code
 * that is not zero, at *bad_row. Row r of the matrix goes to row cuda_layout_row_* of the tiles. */
bool cuda_layout_pack(uint8_t *packed, const uint8_t *codes, const uint8_t *scales, size_t n_row, size_t K,
                      size_t *bad_row);
/* gate and up, [n_row][...] each, n_row a multiple of 8: 2 * n_row rows. */
bool cuda_layout_pack_pair(uint8_t *packed, const uint8_t *gate_codes, const uint8_t *gate_scales,
                           const uint8_t *up_codes, const uint8_t *up_scales, size_t n_row, size_t K,
                           size_t *bad_row);
/* The inverse: n_row rows from the beginning of the tiles at `packed`, in the checkpoint's bytes, but that
 * signs are in the codes and that codes under a scale of zero are zero. K is the tiles'; the rows at `codes`
 * and `scales` are of K_whole, of which these may be a part. */
void cuda_layout_unpack(uint8_t *codes, uint8_t *scales, const uint8_t *packed, size_t n_row, size_t K,
                        size_t K_whole);
/* Of a pair: gate, or up. */
void cuda_layout_unpack_pair(uint8_t *codes, uint8_t *scales, const uint8_t *packed, bool up, size_t n_row,
                             size_t K);

#endif
