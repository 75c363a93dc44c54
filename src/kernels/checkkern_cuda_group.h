/* Several ranks of one process, for checks and benches of operators of peers: a thread and a stream each, on
 * GPUs of their own or side by side on one. */
#ifndef NYB_KERNELS_CHECKKERN_CUDA_GROUP_H
#define NYB_KERNELS_CHECKKERN_CUDA_GROUP_H

#include <pthread.h>

#include "kernels/checkkern_cuda_case.h"

/* What a rank does; false: it failed. */
typedef bool gpu_rank_fn(void *arg, struct cuda_gpu *gpu, int rank);

struct gpu_group {
    const struct cuda_plugin *plugin;
    int size, n_open, n_thread;
    struct cuda_gpu *gpu[CUDA_PEERS_MAX];
    struct gpu_rank {
        struct gpu_group *group;
        int rank;
        pthread_t thread;
        bool ok;
        char why[256];
    } rank[CUDA_PEERS_MAX];
    pthread_barrier_t begin, end;
    gpu_rank_fn *fn; /* NULL: the threads end */
    void *arg;
    char why[320];
};

struct gpu_group_options {
    int size;
    bool apart;               /* rank r on GPU r, else all on the first */
    size_t bytes, sent_bytes; /* cuda_peer_options */
    int timeout_ms;
};

/* False: `why` says which rank failed how. Closed in any case. */
bool gpu_group_open(struct gpu_group *g, const struct cuda_plugin *plugin, const struct gpu_group_options *o);
void gpu_group_close(struct gpu_group *g);
/* On all ranks at once, each on its thread; false: `why` is the first rank's that failed. */
bool gpu_group_run(struct gpu_group *g, gpu_rank_fn *fn, void *arg);

/* Whether there is a GPU of this number. */
bool gpu_group_has(const struct checkkern_gpu *g, int index);

/* What is checked with a group of so many ranks. */
typedef bool gpu_group_check(const struct checkkern_gpu *g, int size, bool apart,
                             struct checkkern_report *report);
/* With 2 ranks on one GPU, with `more`, and with 2 apart where there are as many GPUs; with 4 and 8 apart
 * only where there are several rounds, since emulated ranks share one CPU's cores. Up to the first that
 * fails. */
bool gpu_group_each(const struct checkkern_gpu *g, int more, gpu_group_check *check,
                    struct checkkern_report *report);

#endif
