/* Faster packers than those of weight_layout_table, byte for byte the same. */
#ifndef NYB_KERNELS_WEIGHT_PACK_H
#define NYB_KERNELS_WEIGHT_PACK_H

#include "base/cpu.h"
#include "kernels/weight.h"

/* As weight_layout.pack: n_row logical rows to one panel, 64-byte aligned, all of whose bytes are written. */
typedef void weight_pack_fn(uint8_t *panel, int k, int n_row, const uint8_t *rows, const uint8_t *scales);

/* The fastest for that level. */
weight_pack_fn *weight_pack_for(enum weight_type type, enum cpu_level level);

weight_pack_fn weight_pack_nvfp4_avx2, weight_pack_fp8_avx2, weight_pack_bf16_avx2, weight_pack_f16_avx2,
    weight_pack_f32_avx2;
weight_pack_fn weight_pack_nvfp4_avx512, weight_pack_fp8_avx512, weight_pack_bf16_avx512,
    weight_pack_f16_avx512, weight_pack_f32_avx512;

#endif
