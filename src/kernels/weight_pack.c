#include "kernels/weight_pack.h"

#include "kernels/weight_layout.h"

static weight_pack_fn *const avx2[WEIGHT_TYPE_COUNT] = {
    [WEIGHT_NVFP4] = weight_pack_nvfp4_avx2, [WEIGHT_FP8] = weight_pack_fp8_avx2,
    [WEIGHT_BF16] = weight_pack_bf16_avx2,   [WEIGHT_F16] = weight_pack_f16_avx2,
    [WEIGHT_F32] = weight_pack_f32_avx2,
};

static weight_pack_fn *const avx512[WEIGHT_TYPE_COUNT] = {
    [WEIGHT_NVFP4] = weight_pack_nvfp4_avx512, [WEIGHT_FP8] = weight_pack_fp8_avx512,
    [WEIGHT_BF16] = weight_pack_bf16_avx512,   [WEIGHT_F16] = weight_pack_f16_avx512,
    [WEIGHT_F32] = weight_pack_f32_avx512,
};

weight_pack_fn *weight_pack_for(enum weight_type type, enum cpu_level level)
{
    return level >= CPU_AVX512 ? avx512[type]
           : level >= CPU_AVX2 ? avx2[type]
                               : weight_layout_table[type].pack;
}
