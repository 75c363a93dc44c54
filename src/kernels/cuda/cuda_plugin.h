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

#include "kernels/cuda/cuda_ops.h"

#define CUDA_PLUGIN_ABI    9
#define CUDA_PLUGIN_FILE   "libnybble_cuda.so"
#define CUDA_PLUGIN_SYMBOL "cuda_plugin"

struct cuda_gpu;   /* the plug-in's: a device, a stream, and the last error */
struct cuda_graph; /* the plug-in's: recorded operators                     */

struct cuda_gpu_info {
    char name[256];
    int major, minor; /* compute capability; 0.0: not a GPU but its emulation on the CPU */
    int n_sm;
    size_t memory_bytes, l2_bytes;
    size_t free_bytes; /* now */
};

/* ---- peers ----
 *
 * GPUs of one machine, each of a process of its own (or, in tests, several streams of one GPU and one
 * process), that compute steps together. Each has buffers that the others write to; where its own part of an
 * exchange has not come yet, a kernel waits. A peer that never comes ends the wait: after the timeout, or
 * when peers_stop is called. From then on steps fail (sync, read), and error() names the rank that was waited
 * for.
 */

/* How others open a rank's buffers. Plain bytes: they travel between processes. */
struct cuda_peer_handle {
    uint64_t process, address, sent_address;
    int32_t device, size;
    uint64_t bytes, sent_bytes;
    uint8_t ipc[64], sent_ipc[64];
};

struct cuda_peer_options {
    int rank, size;
    int n_sharing; /* of the ranks that share this GPU: 1 but in tests. Their launches run side by side */
    size_t bytes;  /* of a buffer: most that all parts of one launch take together; longer operators are cut
                      up. Six times that are taken */
    size_t sent_bytes; /* most that one rank's part of a cuda_send takes; 0: there are none. CUDA_SEND_SLOTS
                          times (size - 1) times that are taken */
    int timeout_ms;    /* that a peer may be late */
};

#define CUDA_LIBRARY_ID_BYTES 128 /* what NCCL calls a unique id */

/* When an operator ran, in seconds since the call began. */
struct cuda_span {
    float begin, end;
};

/* Functions that return bool or a pointer: false or NULL is a failure that error() describes in one line. A
 * call may come from any thread; one at a time, except write, pack and zero, of which several may run at
 * once, peek and peers_stop. */
struct cuda_plugin {
    int abi;
    /* NULL: why not is in `why`, one line. */
    struct cuda_gpu *(*open)(int index, char *why, size_t why_bytes);
    void (*close)(struct cuda_gpu *g);
    void (*info)(const struct cuda_gpu *g, struct cuda_gpu_info *info);
    const char *(*error)(const struct cuda_gpu *g); /* of the thread's last call that failed */

    /* ---- memory ---- */
    void *(*alloc)(struct cuda_gpu *g, size_t bytes); /* 256-byte aligned */
    void (*release)(struct cuda_gpu *g, void *device);
    /* That operators can write, and upload reads at full speed. */
    void *(*alloc_host)(struct cuda_gpu *g, size_t bytes);
    void (*release_host)(struct cuda_gpu *g, void *host);
    /* After they return, host memory is the caller's again. */
    bool (*write)(struct cuda_gpu *g, void *device, const void *host, size_t bytes);
    bool (*zero)(struct cuda_gpu *g, void *device, size_t bytes);
    bool (*pack)(struct cuda_gpu *g, const struct cuda_pack *p);
    /* In order with run: host memory, of alloc_host, is read until the next read, copy or sync. */
    bool (*upload)(struct cuda_gpu *g, void *device, const void *host, size_t bytes);
    bool (*read)(struct cuda_gpu *g, void *host, const void *device, size_t bytes); /* waits for all work */
    /* The same for memory that no work in progress writes, or only counts in: waits for none, and may run
     * beside any other call, several at once. */
    bool (*peek)(struct cuda_gpu *g, void *host, const void *device, size_t bytes);
    bool (*sync)(struct cuda_gpu *g);

    /* ---- operators ---- */
    /* Memory that these need between their kernels; what is in it no longer matters after each of them.
     * False: one of them is refused. */
    bool (*scratch)(struct cuda_gpu *g, const struct cuda_op *op, int n_op, size_t *bytes);
    /* That much of it for all operators from now on. Graphs made before must not be run again. */
    bool (*reserve)(struct cuda_gpu *g, size_t bytes);
    /* Start them in order. False where one does not fit what its kernels take, or the scratch; the ones
     * before it may have been started. */
    bool (*run)(struct cuda_gpu *g, const struct cuda_op *op, int n_op);
    struct cuda_graph *(*graph_make)(struct cuda_gpu *g, const struct cuda_op *op, int n_op);
    bool (*graph_run)(struct cuda_gpu *g, struct cuda_graph *graph); /* starts it */
    void (*graph_free)(struct cuda_gpu *g, struct cuda_graph *graph);

    /* ---- measuring ---- */
    /* Median seconds of one operator, over `rounds` replays of all of them as one graph. Below zero: failed.
     */
    double (*time)(struct cuda_gpu *g, const struct cuda_op *op, int n_op, int rounds);
    /* Run them one by one with an event between any two: seconds[n_op] of each. */
    bool (*profile)(struct cuda_gpu *g, const struct cuda_op *op, int n_op, float *seconds);
    /* Packed weights at random, for benches: `bytes` is a multiple of a unit's. */
    bool (*randomize)(struct cuda_gpu *g, void *device, size_t bytes, uint64_t seed);
    /* Bytes a second of a kernel that only reads this buffer. Below zero: failed. */
    double (*read_rate)(struct cuda_gpu *g, const void *device, size_t bytes);

    /* ---- peers ---- */
    /* This rank's buffers. Once in a gpu's life. */
    bool (*peers_open)(struct cuda_gpu *g, const struct cuda_peer_options *o, struct cuda_peer_handle *own);
    /* The others', all[size] in rank order. Operators of peers may run when it has returned on all ranks. */
    bool (*peers_connect)(struct cuda_gpu *g, const struct cuda_peer_handle *all);
    /* Whoever waits for a peer gives up. Any thread, beside any other call. */
    void (*peers_stop)(struct cuda_gpu *g);
    /* From how many bytes of one rank's part on CUDA_REDUCE_AUTO is two-shot; the same on all ranks. */
    void (*peers_set_two_shot)(struct cuda_gpu *g, size_t bytes);
    /* Give back what is for parts of cuda_send, which there are none of from then on: first, with `others`,
     * what this rank has opened; when that has returned on all ranks, without, its own. No work is in
     * progress. */
    bool (*peers_drop_sent)(struct cuda_gpu *g, bool others);
    /* Bytes a second that this GPU writes to the next rank's memory while all do so: the limit of the link.
     * All ranks call it at once. Below zero: failed. */
    double (*peers_rate)(struct cuda_gpu *g);
    /* Seconds from a word's leaving this GPU for the next rank's to an answer's coming back, while all ranks
     * do so: no exchange takes less. All call it at once. Below zero: failed. */
    double (*peers_round_trip)(struct cuda_gpu *g);
    /* NCCL, where it is found: a new group's id, for rank 0 to hand out (NULL: only whether it is found);
     * joining it, which waits until all ranks do. After peers_open. */
    bool (*library_id)(struct cuda_gpu *g, uint8_t id[CUDA_LIBRARY_ID_BYTES]);
    bool (*library_open)(struct cuda_gpu *g, const uint8_t id[CUDA_LIBRARY_ID_BYTES]);

    /* ---- cuBLASLt ---- */
    /* Load it, for CUDA_NVFP4_TILED; once is enough. False: this GPU or this machine cannot. */
    bool (*use_cublaslt)(struct cuda_gpu *g);

    /* ---- two lanes ---- */
    /* SMs that are the side's alone while both lanes are in use: at least 1, at most half of them. */
    bool (*peers_reserve)(struct cuda_gpu *g, int n_sm);
    /* Run them in their lanes, and wait: span[n_op]. */
    bool (*trace)(struct cuda_gpu *g, const struct cuda_op *op, int n_op, struct cuda_span *span);
};

#endif
