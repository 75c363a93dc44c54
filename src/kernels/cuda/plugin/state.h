/* What the plug-in knows of one device, for its host code. */
#pragma once

#include <mutex>
#include <vector>

#include "kernels/cuda/plugin/operators.h"

struct cuda_gpu {
    int index;
    cudaDeviceProp properties;
    struct gpu_limits limits;
    cudaStream_t stream;
    cudaStream_t aside; /* for copies beside it */
    cudaStream_t side;  /* lanes.cu */
    std::vector<cudaEvent_t> lane_event;
    bool alone; /* this process has the GPU for itself, and this is the first of its structures on it */
    int n_side; /* SMs of the side while both lanes are in use */
    uint32_t *barrier;
    void *scratch; /* of whichever operator runs */
    size_t scratch_bytes;
    uint8_t *staging; /* rows on their way to packed form, or NULL */
    std::mutex staging_lock;
    uint32_t *sink;
    struct lt *lt;           /* cublaslt.h, or NULL */
    struct gpu_peers *peers; /* peers.h, or NULL    */
};

/* This thread's error from now on; false. */
bool gpu_fail(struct cuda_gpu *g, const char *what, const char *why);
/* Whether the call went well. */
bool gpu_check(struct cuda_gpu *g, const char *what, cudaError_t e);
/* The runtime's calls of this thread go to this device: first in whatever the plug-in exports. */
bool gpu_enter(struct cuda_gpu *g);
static inline size_t gpu_align(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* ---- entries of the plug-in's table (cuda_plugin.h), by file --------------------------------------- */

bool gpu_sync(struct cuda_gpu *g);                                 /* device.cu */
bool gpu_pack_rows(struct cuda_gpu *g, const struct cuda_pack *p); /* staging.cu */
bool gpu_use_cublaslt(struct cuda_gpu *g);                         /* cublaslt.cu */

/* work.cu */
bool gpu_scratch(struct cuda_gpu *g, const struct cuda_op *op, int n_op, size_t *bytes);
bool gpu_reserve(struct cuda_gpu *g, size_t bytes);
bool gpu_start_on(struct cuda_gpu *g, const struct cuda_op *op, const struct gpu_limits *limits,
                  cudaStream_t stream);
bool gpu_start_one(struct cuda_gpu *g, const struct cuda_op *op);
/* The operators of the array from the i-th on as one kernel on the main stream, where there is such a kernel:
 * how many, 0 if there is none, -1 if it failed. Those before it are on that stream. */
int gpu_start_joined(struct cuda_gpu *g, const struct cuda_op *op, int i, int n_op);
bool gpu_run(struct cuda_gpu *g, const struct cuda_op *op, int n_op);
bool gpu_record(struct cuda_gpu *g, const struct cuda_op *op, int n_op, cudaGraphExec_t *out);
struct cuda_graph *gpu_graph_make(struct cuda_gpu *g, const struct cuda_op *op, int n_op);
bool gpu_graph_run(struct cuda_gpu *g, struct cuda_graph *graph);
void gpu_graph_free(struct cuda_gpu *g, struct cuda_graph *graph);

/* lanes.cu */
bool gpu_lanes_open(struct cuda_gpu *g);
void gpu_lanes_close(struct cuda_gpu *g);
bool gpu_start_all(struct cuda_gpu *g, const struct cuda_op *op, int n_op);
bool gpu_peers_reserve(struct cuda_gpu *g, int n_sm);
bool gpu_trace(struct cuda_gpu *g, const struct cuda_op *op, int n_op, struct cuda_span *span);

/* measure.cu */
double gpu_time(struct cuda_gpu *g, const struct cuda_op *op, int n_op, int rounds);
bool gpu_profile(struct cuda_gpu *g, const struct cuda_op *op, int n_op, float *seconds);
bool gpu_randomize(struct cuda_gpu *g, void *device, size_t bytes, uint64_t seed);
double gpu_read_rate(struct cuda_gpu *g, const void *device, size_t bytes);
double gpu_peers_rate(struct cuda_gpu *g);

/* echo.cu */
double gpu_peers_round_trip(struct cuda_gpu *g);

/* peers.cu */
bool gpu_peers_open(struct cuda_gpu *g, const struct cuda_peer_options *o, struct cuda_peer_handle *own);
bool gpu_peers_connect(struct cuda_gpu *g, const struct cuda_peer_handle *all);
void gpu_peers_stop(struct cuda_gpu *g);
void gpu_peers_set_two_shot(struct cuda_gpu *g, size_t bytes);
bool gpu_peers_drop_sent(struct cuda_gpu *g, bool others);
bool gpu_library_id(struct cuda_gpu *g, uint8_t id[CUDA_LIBRARY_ID_BYTES]);
bool gpu_library_open(struct cuda_gpu *g, const uint8_t id[CUDA_LIBRARY_ID_BYTES]);
/* Whether all have come whenever they were waited for; none are missing where there are none. */
bool gpu_peers_are_there(struct cuda_gpu *g);
void gpu_peers_close(struct cuda_gpu *g);
