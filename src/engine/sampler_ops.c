#define SAMPLER_OPS sampler_ops_scalar
#include "engine/sampler_rows.h"

const struct sampler_ops *sampler_ops_at(enum cpu_level level)
{
    return level >= CPU_AVX512 ? &sampler_ops_avx512
           : level == CPU_AVX2 ? &sampler_ops_avx2
                               : &sampler_ops_scalar;
}
