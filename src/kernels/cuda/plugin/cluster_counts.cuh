/* How many clusters run at once. */
#pragma once

#include <algorithm>
#include <atomic>

#include "kernels/cuda/plugin/cluster.cuh"
#include "kernels/cuda/plugin/operators.h"

/* Clusters of one kernel's blocks that run at once, of each GPU and size; one more than there are. Asking
 * takes longer than a launch, so it is asked once. */
struct cluster_counts {
    static const int LARGEST = 16;
    std::atomic<int> known[64][LARGEST + 1];
    template <typename... P>
    int at_once(int size, void (*kernel)(P...), int threads, size_t shared, const struct gpu_limits *limits)
    {
        int device = 0;
        if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= 64)
            return 0;
        /* emulated: as many as the lane has SMs for */
        int n = GPU_IS_EMULATED ? -1 : known[device][size].load() - 1;
        if (n < 0) {
            n = gpu_clusters((unsigned)size, kernel, threads, shared, limits->n_sm);
            known[device][size].store(n + 1);
        }
        return std::min(n, limits->n_sm / size);
    }
};
