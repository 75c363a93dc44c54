/* What the CUDA plug-in, a shared library of its own, exports. Only it is linked with CUDA's runtime, so that
 * a machine without CUDA runs everything else.
 *
 * Plain C types: the plug-in shares no code with the program but the layout of weights (cuda_layout.h).
 * Pointers called `device` are a GPU's memory. */
#ifndef NYB_KERNELS_CUDA_PLUGIN_H
#define NYB_KERNELS_CUDA_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_PLUGIN_ABI    1
#define CUDA_PLUGIN_FILE   "libnybble_cuda.so"
#define CUDA_PLUGIN_SYMBOL "cuda_plugin"

#define CUDA_ROWS_MAX    32  /* tokens in a call; in a cuda_moe more, where there is wgmma */
#define CUDA_SLOTS_MAX   256 /* tokens x experts a token, in a call */
#define CUDA_EXPERTS_MAX 512

struct cuda_gpu; /* the plug-in's: a device, a stream, and the last error */

struct cuda_gpu_info {
    char name[256];
    int major, minor; /* compute capability */
    int n_sm;
    size_t memory_bytes, l2_bytes;
};

/* out = x * w^T * scale. All pointers are the device's. */
struct cuda_linear {
    const uint8_t *weight; /* packed, n_out rows of K */
    const float *scale;    /* [1]          */
    const uint16_t *x;     /* bf16 [n_row][K], 16-byte aligned */
    float *out;            /* [n_row][n_out] */
    int n_row, n_out, K;   /* at most 32 rows; K a multiple of 64 */
};

/* out[t] = sum over j of weight[t][j] * down(silu(gate(x[t])) * up(x[t])) of expert id[t][j]; ids below zero
 * are of no expert here. All pointers are the device's. */
struct cuda_moe {
    const uint8_t *gate_up; /* [n_expert] packed pairs: 2 * inner rows of hidden    */
    const uint8_t *down;    /* [n_expert] packed: hidden rows of inner              */
    const float *gate_scale, *up_scale, *down_scale; /* [n_expert] */
    const uint16_t *x;                               /* bf16 [n_row][hidden], 16-byte aligned */
    const int32_t *id;                               /* [n_row][n_used] */
    const float *weight;                             /* [n_row][n_used] */
    float *out;                                      /* [n_row][hidden] */
    int n_row, n_used, n_expert, hidden, inner;      /* the last two multiples of 64 */
};

/* One or the other. */
struct cuda_work {
    const struct cuda_moe *moe;
    const struct cuda_linear *linear;
};

struct cuda_plugin {
    int abi;
    /* NULL: why not is in `why`, one line. */
    struct cuda_gpu *(*open)(int index, char *why, size_t why_bytes);
    void (*close)(struct cuda_gpu *g);
    void (*info)(const struct cuda_gpu *g, struct cuda_gpu_info *info);
    const char *(*error)(const struct cuda_gpu *g); /* of the last call that failed */
    void *(*alloc)(struct cuda_gpu *g, size_t bytes);
    void (*release)(struct cuda_gpu *g, void *device);
    bool (*write)(struct cuda_gpu *g, void *device, const void *host, size_t bytes);
    bool (*read)(struct cuda_gpu *g, void *host, const void *device, size_t bytes); /* waits for all work */
    /* Start works in order; refuses what does not fit with a reason. */
    bool (*start)(struct cuda_gpu *g, const struct cuda_work *work, int n_work);
    /* Median seconds of one work, over `rounds` replays of all of them as one graph. Below zero: failed. */
    double (*time)(struct cuda_gpu *g, const struct cuda_work *work, int n_work, int rounds);
    /* Packed weights at random, for benches: `bytes` is a multiple of a unit's. */
    bool (*randomize)(struct cuda_gpu *g, void *device, size_t bytes, uint64_t seed);
    /* Bytes a second of a kernel that only reads this buffer. Below zero: failed. */
    double (*read_rate)(struct cuda_gpu *g, const void *device, size_t bytes);
};

#endif
