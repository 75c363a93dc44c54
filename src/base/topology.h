/* Where threads and memory may go: the cores and memory nodes of this machine that this process may use.
 *
 * Read from hwloc, so HWLOC_SYNTHETIC makes up a machine for tests; threads and memory are then planned but
 * not bound. Where hwloc finds nothing, each processor counts as a core of one node. */
#ifndef NYB_BASE_TOPOLOGY_H
#define NYB_BASE_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>

struct topology_core {
    int cpu;  /* its first hardware thread, as the kernel numbers them */
    int node; /* 0 .. n_node - 1                                       */
};

struct topology {
    int n_core;
    /* (n_core) in the order in which threads are placed: caches and nodes in turn, so that fewer threads than
     * cores spread over all of the memory's bandwidth. */
    struct topology_core *core;
    int n_node;       /* memory nodes that these cores are nearest to */
    int n_cpu;        /* (n_cpu) core_of_cpu                          */
    int *core_of_cpu; /* number in core[] of a hardware thread, -1: none of ours */
    bool real;        /* this machine, not a made-up one */
    void *hwloc;      /* private */
};

/* Never fails: knows at least one core. */
struct topology *topology_open(void);
void topology_close(struct topology *t);

/* One thread for each core, no more than the control group pays for. */
int topology_threads(const struct topology *t);

/* Bytes of the last cache in front of memory that a core of ours shares, the smallest; 0: not known. */
size_t topology_last_cache(const struct topology *t);

/* Pages of [data, data + bytes) come from all nodes in turn as they are first touched. Best effort: false
 * where there is one node, or the kernel refused. */
bool topology_interleave(const struct topology *t, void *data, size_t bytes);

#endif
