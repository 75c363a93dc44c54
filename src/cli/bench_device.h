/* `nybble bench model` on a GPU. */
#ifndef NYB_CLI_BENCH_DEVICE_H
#define NYB_CLI_BENCH_DEVICE_H

#include "cli/bench_profile.h"
#include "model/model.h"

struct bench_device {
    struct model *model;
    const char *name; /* of the model, as it was asked for */
    const int *prompt, *batch, *depth;
    int n_prompt, n_batch, n_depth;
    int gen, repeat, chunk;
    uint64_t seed;
    bool profile, json;
    struct bench_profile *trace; /* open: one more run of each point is in it; or NULL */
};

/* Every point, printed as it is measured; with json one object at the end. */
enum nyb_code bench_device_run(const struct bench_device *b, struct nyb_err *err) NYB_MUST_CHECK;

#endif
