/* MPI's own all-reduce beside ours: nybble bench comm, started once more under mpirun. Private to it. */
#ifndef NYB_CLI_BENCH_COMM_MPI_H
#define NYB_CLI_BENCH_COMM_MPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_comm_mpi {
    int64_t ranks, hidden, rounds;
    uint64_t max_bytes;
};

struct bench_comm_time {
    size_t bytes;
    double best_us, median_us;
};

/* Times in order of size into time (n_max); how many there are. 0: none, and why not is in `why`. */
int bench_comm_mpi(const struct bench_comm_mpi *b, struct bench_comm_time *time, int n_max, char *why,
                   size_t why_bytes);

#endif
