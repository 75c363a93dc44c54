/* What the MPI plug-in, a shared library of its own, exports. Only it is linked with libmpi, so that a
 * machine without MPI runs everything else.
 *
 * Plain C types: the plug-in shares no code with the program. */
#ifndef NYB_COMM_MPI_PLUGIN_H
#define NYB_COMM_MPI_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COMM_MPI_ABI    3
#define COMM_MPI_FILE   "libnybble_mpi.so"
#define COMM_MPI_SYMBOL "comm_mpi_plugin"

struct comm_mpi_part {
    const void *data;
    size_t bytes;
};

struct mpi_ranks; /* the plug-in's */

struct comm_mpi_plugin {
    int abi;
    /* Join the ranks that mpirun has started: `channels` independent sequences of exchanges, of at most
     * slot_bytes that a rank sends. NULL: why is in `why`. */
    struct mpi_ranks *(*open)(int channels, size_t slot_bytes, int timeout_ms, char *why, size_t why_bytes);
    int (*rank)(const struct mpi_ranks *m);
    int (*size)(const struct mpi_ranks *m);
    /* part[r] to rank r; copied before it returns. Never waits. */
    void (*start)(struct mpi_ranks *m, int channel, const struct comm_mpi_part *part);
    /* in[r] from every other rank; idle: without a time limit. False: failed. */
    bool (*wait)(struct mpi_ranks *m, int channel, struct comm_mpi_part *in, bool idle);
    bool (*failed)(struct mpi_ranks *m, char *reason, size_t reason_bytes);
    void (*fail)(struct mpi_ranks *m, const char *reason);
    void (*close)(struct mpi_ranks *m);
    /* For benchmarks: x (n) becomes the ranks' sum by MPI_Allreduce, `calls` times over, on all ranks; the
     * nanoseconds that took here, after a barrier. 0: it failed. Nobody watches the other ranks meanwhile. */
    uint64_t (*time_allreduce)(struct mpi_ranks *m, float *x, size_t n, int calls);
};

#endif
