/* What the parts of nybble bench gpus share. */
#ifndef NYB_CLI_BENCH_GPUS_H
#define NYB_CLI_BENCH_GPUS_H

#include "base/err.h"
#include "kernels/cuda/cuda_plugin.h"

struct gpus_bench {
    int ranks, hidden, rounds, calls;
    int n_expert, top_k, max_rows; /* of each rank */
    bool one_gpu, json;
};

/* A line for each number of rows; false: err says what failed. */
bool bench_gpus_experts(const struct gpus_bench *o, const struct cuda_plugin *plugin, struct nyb_err *err);

#endif
