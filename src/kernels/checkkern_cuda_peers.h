/* What the checks of operators that several GPUs run together share: arrays on each rank's GPU and on the
 * host, the same random inputs for every check, running them with ranks that come at different times. */
#ifndef NYB_KERNELS_CHECKKERN_CUDA_PEERS_H
#define NYB_KERNELS_CHECKKERN_CUDA_PEERS_H

#include "kernels/checkkern_cuda_case.h"
#include "kernels/checkkern_cuda_group.h"

#define PEERS_ROWS   40
#define PEERS_N      1300
#define PEERS_FLOATS ((size_t)PEERS_ROWS * PEERS_N)
#define PEERS_OPS    64 /* at most, one after another */

/* A rank's arrays, the GPU's. */
struct peers_arrays {
    float *residual, *delta[2], *weight, *y_float, *sum;
    uint16_t *y;
    int32_t *row, *count;
};

/* Of the host: inputs, and what came out on each rank. */
struct peers_case {
    struct gpu_group group;
    struct peers_arrays at[CUDA_PEERS_MAX];
    float *residual, *weight, *delta[CUDA_PEERS_MAX][2];
    float *after[CUDA_PEERS_MAX], *y_float[CUDA_PEERS_MAX], *sum[CUDA_PEERS_MAX];
    uint16_t *y[CUDA_PEERS_MAX];
    int32_t row[PEERS_ROWS], count;
    struct cuda_op op[CUDA_PEERS_MAX][PEERS_OPS];
    int n_op, replays; /* of a graph */
    uint64_t seed;
};

/* Ranks on one GPU, or each on one of its own, with small buffers, so that operators are cut up. NULL: the
 * report says why. Closed by peers_case_close in any case. */
struct peers_case *peers_case_open(const struct checkkern_gpu *g, int size, bool apart, uint64_t seed,
                                   struct checkkern_report *report);
void peers_case_close(struct peers_case *c, struct arena *arena);

/* Other numbers in all inputs. */
void peers_randomize(struct peers_case *c);
/* Inputs to the GPUs; op[0] to op[n_op - 1]; outputs back. False: the report says why. */
bool peers_run(struct peers_case *c, struct checkkern_report *report);
/* The same with the operators as a graph behind, `replays` times. */
bool peers_run_and_replay(struct peers_case *c, struct checkkern_report *report);

/* One random sum, checked: for others' checks, between whose launches it comes. */
bool peers_check_sum(struct peers_case *c, bool only_sum, struct checkkern_report *report);

#endif
