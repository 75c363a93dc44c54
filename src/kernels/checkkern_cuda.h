/* checkkern for a GPU: the plug-in's kernels against float64 on the host, and against the rate at which that
 * GPU reads its memory. */
#ifndef NYB_KERNELS_CHECKKERN_CUDA_H
#define NYB_KERNELS_CHECKKERN_CUDA_H

#include "base/err.h"
#include "kernels/checkkern.h"
#include "kernels/cuda/cuda_plugin.h"

struct checkkern_gpu {
    const struct cuda_plugin *plugin;
    struct cuda_gpu *gpu;
    struct cuda_gpu_info info;
    struct arena *arena; /* reset after each row */
    uint64_t seed;
    int rounds;
};

struct checkkern_cuda_row {
    const char *name;
    bool (*check)(const struct checkkern_gpu *g, struct checkkern_report *report);
};

/* The first GPU. Not OK: no plug-in, no driver, no GPU, or one too old; err says which. */
enum nyb_code checkkern_cuda_open(struct checkkern_gpu *g, struct nyb_err *err);
void checkkern_cuda_close(struct checkkern_gpu *g);

int checkkern_cuda_n_row(void);
const struct checkkern_cuda_row *checkkern_cuda_row(int i);

/* Lines for the layers of real models; roof->read_gbs is measured first. False: err says what failed. */
bool checkkern_cuda_bench(const struct checkkern_gpu *g, const char *filter, struct checkkern_bench *out,
                          struct checkkern_roof *roof, struct nyb_err *err);
/* The part of it that is not the experts' (checkkern_cuda_bench_ops.c). False: a bench failed. */
bool checkkern_cuda_bench_ops(const struct checkkern_gpu *g, const char *filter, struct checkkern_bench *out);

#endif
