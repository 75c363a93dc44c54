#include "kernels/ops.h"

static const struct kernels table[CPU_LEVEL_COUNT] = {
#define OPS_ROW(level, norm_, qkv_, head_, attention_, router_, combine_) \
    [level] = {#level, level == CPU_AVX512, norm_, qkv_, head_, attention_, router_, combine_},
    OPS_TABLE(OPS_ROW)
#undef OPS_ROW
};

const struct kernels *kernels_at(enum cpu_level level)
{
    return &table[level];
}

const struct kernels *kernels_cpu(void)
{
    return kernels_at(cpu_level());
}

enum kv_type kv_kept(const struct kernels *kernels, enum kv_type type)
{
    return type == KV_BF16 && kernels->integer_keys ? KV_I16 : type;
}
