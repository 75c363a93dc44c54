/* NVFP4 as the block-scaled matrix units of compute capability 10.0 and later take it, through cuBLASLt:
 * codes in rows, K contiguous, and block scales in tiles of 128 rows x 4 blocks. For the plug-in and the
 * program.
 *
 * Rows of the codes are padded with zeros to a multiple of 32 elements (16 bytes), their number to a multiple
 * of 16. A tile of scales has 512 bytes: that of row r and block c (of 16 elements) of the matrix lies in
 * tile (r / 128, c / 4), the tiles of the same rows one after the other, and there at r % 32 * 16 + r % 128 /
 * 32 * 4
 * + c % 4. Scales of padding are zeros. Signs are the codes': a scale is 0 to 0x7e. */
#ifndef NYB_KERNELS_CUDA_TILED_H
#define NYB_KERNELS_CUDA_TILED_H

#include <stddef.h>

#ifdef __CUDACC__
#define CUDA_TILED_FN static __host__ __device__ inline
#else
#define CUDA_TILED_FN static inline
#endif

#define CUDA_TILE_ROWS   128 /* of scales */
#define CUDA_TILE_BLOCKS 4
#define CUDA_TILE_BYTES  (CUDA_TILE_ROWS * CUDA_TILE_BLOCKS)
#define CUDA_TILED_K     32 /* elements that a row is padded to a multiple of */
#define CUDA_TILED_ROWS  16 /* rows of codes, too */

CUDA_TILED_FN size_t cuda_tiled_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Elements of a row with its padding. */
CUDA_TILED_FN size_t cuda_tiled_row(size_t K)
{
    return cuda_tiled_up(K, CUDA_TILED_K);
}

/* Tiles beside each other. */
CUDA_TILED_FN size_t cuda_tiled_across(size_t K)
{
    return (cuda_tiled_row(K) / 16 + CUDA_TILE_BLOCKS - 1) / CUDA_TILE_BLOCKS;
}

/* Of a matrix of n rows of K. */
CUDA_TILED_FN size_t cuda_tiled_code_bytes(size_t n, size_t K)
{
    return cuda_tiled_up(n, CUDA_TILED_ROWS) * (cuda_tiled_row(K) / 2);
}

CUDA_TILED_FN size_t cuda_tiled_scale_bytes(size_t n, size_t K)
{
    return cuda_tiled_up(n, CUDA_TILE_ROWS) / CUDA_TILE_ROWS * cuda_tiled_across(K) * CUDA_TILE_BYTES;
}

/* Where the scale of a row and a block lies, in a matrix of rows of K. */
CUDA_TILED_FN size_t cuda_tiled_scale_at(size_t row, size_t block, size_t K)
{
    const size_t tile = row / CUDA_TILE_ROWS * cuda_tiled_across(K) + block / CUDA_TILE_BLOCKS;
    return tile * CUDA_TILE_BYTES + row % 32 * 16 + row % CUDA_TILE_ROWS / 32 * 4 + block % CUDA_TILE_BLOCKS;
}

/* The inverse: which row and block has byte `at` of the scales. */
CUDA_TILED_FN void cuda_tiled_scale_of(size_t at, size_t K, size_t *row, size_t *block)
{
    const size_t tile = at / CUDA_TILE_BYTES, in = at % CUDA_TILE_BYTES, across = cuda_tiled_across(K);
    *row = tile / across * CUDA_TILE_ROWS + in % 16 / 4 * 32 + in / 16;
    *block = tile % across * CUDA_TILE_BLOCKS + in % CUDA_TILE_BLOCKS;
}

#endif
