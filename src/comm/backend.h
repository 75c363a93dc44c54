/* What a backend implements, and the communicator that it is part of. Private to the room. */
#ifndef NYB_COMM_BACKEND_H
#define NYB_COMM_BACKEND_H

#include "comm/comm.h"
#include "comm/cores.h"

/* All functions may fail by calling comm_fail. */
struct comm_backend {
    const char *name;
    void (*start)(struct comm *c, int channel, const struct comm_part *part, bool same);
    bool (*wait)(struct comm *c, int channel, struct comm_part *in, bool idle);
    bool (*failed)(struct comm *c, struct nyb_err *err);
    void (*fail)(struct comm *c, const char *reason);
    void (*close)(struct comm *c); /* frees the backend's own part */
    /* comm_library_allreduce_ns, or NULL */
    uint64_t (*library_allreduce_ns)(struct comm *c, float *x, size_t n, int calls);
};

struct comm {
    const struct comm_backend *backend;
    void *own; /* the backend's */
    int rank, size, local_size;
    size_t slot_bytes, one_shot_bytes;
    int fusion_rows; /* INT_MAX: as many as a slot holds */
    struct comm_part sent[COMM_CHANNELS];
    struct cores cores; /* of the thread that opened it */
};

/* For backends. */
struct comm *comm_new(const struct comm_backend *b, void *own, int rank, int size, size_t slot_bytes);

#endif
