#define SAMPLER_OPS sampler_ops_avx512
#include "engine/sampler_rows.h"
