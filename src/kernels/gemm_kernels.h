/* Prototypes of every tile, from its row in gemm_kernels.def. */
#ifndef NYB_KERNELS_GEMM_KERNELS_H
#define NYB_KERNELS_GEMM_KERNELS_H

#include "kernels/gemm_tile.h"

#define GEMM_TILE(level, type, form, fn, one, two)   gemm_tile_fn fn;
#define GEMM_BLOCK(level, type, form, fn, least)     gemm_block_fn fn;
#define GEMM_BLOCK_COPY(level, type, form, fn, unit) gemm_copy_fn fn;
#define GEMM_BLOCK_STREAM(level, type, form)
#define GEMM_NO_BLOCK(level, type, form)
#define GEMM_FINISH(level, fn) gemm_finish_fn fn;
#define GEMM_ROW(level, fn)    gemm_row_fn fn;
#include "kernels/gemm_kernels.def"
#undef GEMM_TILE
#undef GEMM_BLOCK
#undef GEMM_BLOCK_COPY
#undef GEMM_BLOCK_STREAM
#undef GEMM_NO_BLOCK
#undef GEMM_FINISH
#undef GEMM_ROW

#endif
