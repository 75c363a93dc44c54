/* Rows that are on one rank each, with what the ranks' experts make of them: random shapes and numbers for
 * the checks of what takes rows to experts and products back. */
#ifndef NYB_KERNELS_CHECKKERN_CUDA_SPREAD_H
#define NYB_KERNELS_CHECKKERN_CUDA_SPREAD_H

#include "kernels/checkkern_cuda_case.h"
#include "kernels/checkkern_cuda_group.h"

#define SPREAD_MOST    12 /* rows of a rank */
#define SPREAD_ALL     (SPREAD_MOST * CUDA_PEERS_MAX)
#define SPREAD_N       1096 /* more than a warp moves in one go */
#define SPREAD_USED    6
#define SPREAD_EXPERTS (9 * CUDA_PEERS_MAX)
/* What outputs hold before each run. */
#define SPREAD_POISON_16 0x7fc1u
#define SPREAD_POISON_32 0x7fc1a5a5u

/* A rank's arrays: on its GPU, and on the host. */
struct spread_arrays {
    int32_t *count, *place, *expert, *local;
    uint16_t *x, *x_all;
    float *weight, *out;
    uint64_t *load;
    uint8_t *each;
};

struct spread_case {
    struct gpu_group *group;
    struct spread_arrays gpu[CUDA_PEERS_MAX], host[CUDA_PEERS_MAX];
    int32_t first[CUDA_PEERS_MAX + 1];
    int most, n_all, n, n_used;
    bool is_bf16, everywhere; /* all rows to all ranks */
    int n_run;                /* since loads were cleared */
    struct cuda_graph *graph[CUDA_PEERS_MAX];
    uint64_t seed;
};

/* Of all ranks, on their GPUs and in the arena. */
bool spread_take_memory(struct spread_case *c, struct arena *arena);
void spread_drop_memory(struct spread_case *c);
/* What the host has to the GPU, and outputs back. For gpu_group_run. */
gpu_rank_fn spread_write, spread_read_back;

/* Sizes that a graph is made for; then rows of each rank, some none, and their places; then all numbers. */
void spread_choose_shape(struct spread_case *c);
void spread_choose_rows(struct spread_case *c);
void spread_choose_data(struct spread_case *c);

int spread_owner_of(const struct spread_case *c, int expert);
size_t spread_product_bytes(const struct spread_case *c);

#endif
