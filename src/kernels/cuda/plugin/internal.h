/* Between the files of the plug-in. */
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/cuda_plugin.h"

struct gpu_limits {
    int n_sm;
    size_t shared_bytes; /* a block may have */
};

/* The parts of dynamic shared memory of the kernels over packed weights, in this order. */
struct shared_plan {
    int n_stage;
    size_t x_bytes, head_bytes, bytes;
};
/* For rows of at most K, 8 * nt at once. False: does not fit. */
bool plan_shared(struct shared_plan *plan, const struct gpu_limits *limits, int K, int nt);

/* Memory between the phases of a call, the device's. */
struct moe_scratch {
    uint16_t *h; /* bf16 [slot][inner] */
    float *y;    /* [slot][hidden]     */
    uint32_t *barrier;
};

/* Start on the stream. NULL, or why not. */
const char *linear_start(const struct cuda_linear *work, const struct gpu_limits *limits,
                         cudaStream_t stream);
const char *moe_start(const struct cuda_moe *work, const struct moe_scratch *scratch,
                      const struct gpu_limits *limits, cudaStream_t stream);

const char *randomize_start(void *device, size_t bytes, uint64_t seed, cudaStream_t stream);
const char *read_all_start(const void *device, size_t bytes, uint32_t *sink, int n_sm, cudaStream_t stream);
