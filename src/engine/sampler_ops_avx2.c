#define SAMPLER_OPS sampler_ops_avx2
#include "engine/sampler_rows.h"
