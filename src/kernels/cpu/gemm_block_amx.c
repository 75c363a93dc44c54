/* NVFP4 and BF16 weights on AMX: blocks of rows, with bf16 operands. */
#include "kernels/cpu/tile_amx.h"

#include "kernels/cpu/nvfp4_fold.h"

#include "kernels/cpu/block_bf16_amx.h" /* in terms of the above */
#include "kernels/cpu/block_folded_amx.h"
#include "kernels/gemm_kernels.h"

void gemm_amx_nvfp4(const struct gemm_block *b)
{
    block_folded(b);
}

void gemm_amx_bf16(const struct gemm_block *b)
{
    block_bf16(b);
}
