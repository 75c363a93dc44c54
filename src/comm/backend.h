/* What a backend implements, and the communicator that it is part of. Private to the room. */
#ifndef NYB_COMM_BACKEND_H
#define NYB_COMM_BACKEND_H

#include "comm/comm.h"
#include "comm/cores.h"

/* Rows of floats of which each tells by itself that it has come: an exchange without a wait for all of it. */
struct comm_backend_rows {
    size_t bytes_max; /* in one exchange */
    /* Send n floats, n > 0, to the other rank; there are two. */
    void (*start)(struct comm *c, int channel, const float *x, size_t n);
    /* Where the other rank's floats will be. */
    const float *(*data)(const struct comm *c, int channel);
    /* Wait until its floats [at, at + n) are there, and give the room back after use: each float once, by any
     * thread. come false: the communicator failed. */
    bool (*come)(struct comm *c, int channel, size_t at, size_t n);
    void (*used)(struct comm *c, int channel, size_t at, size_t n);
};

/* All functions may fail by calling comm_fail. */
struct comm_backend {
    const char *name;
    void (*start)(struct comm *c, int channel, const struct comm_part *part, bool same);
    bool (*wait)(struct comm *c, int channel, struct comm_part *in, bool idle);
    bool (*failed)(struct comm *c, struct nyb_err *err);
    void (*fail)(struct comm *c, const char *reason);
    void (*close)(struct comm *c);        /* frees the backend's own part */
    const struct comm_backend_rows *rows; /* NULL: not offered */
    /* comm_library_allreduce_ns, or NULL */
    uint64_t (*library_allreduce_ns)(struct comm *c, float *x, size_t n, int calls);
};

struct comm {
    const struct comm_backend *backend;
    void *own; /* the backend's */
    int rank, size, local_size;
    size_t slot_bytes, one_shot_bytes;
    int fusion_rows; /* INT_MAX: as many as a slot holds */
    struct comm_ways ways;
    struct comm_part sent[COMM_CHANNELS];
    struct cores cores; /* of the thread that opened it */
};

/* The bit of struct comm_ways; 0: too small to have one. */
static inline uint32_t comm_size_class(size_t bytes)
{
    int i = 0;
    if (bytes < 4096)
        return 0;
    while (i + 1 < COMM_SIZE_CLASSES && bytes >= (size_t)8192 << i)
        i++;
    return 1u << i;
}

/* For backends. */
struct comm *comm_new(const struct comm_backend *b, void *own, int rank, int size, size_t slot_bytes);

#endif
