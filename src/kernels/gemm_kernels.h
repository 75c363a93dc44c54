/* Prototypes of every tile, from its row in gemm_kernels.def. */
#ifndef NYB_KERNELS_GEMM_KERNELS_H
#define NYB_KERNELS_GEMM_KERNELS_H

#include "kernels/gemm_tile.h"

#define GEMM_TILE(level, type, form, fn, one, two) gemm_tile_fn fn;
#define GEMM_BLOCK(level, type, fn)                gemm_block_fn fn;
#define GEMM_FINISH(level, fn)                     gemm_finish_fn fn;
#define GEMM_ROW(level, fn)                        gemm_row_fn fn;
#include "kernels/gemm_kernels.def"
#undef GEMM_TILE
#undef GEMM_BLOCK
#undef GEMM_FINISH
#undef GEMM_ROW

#endif
