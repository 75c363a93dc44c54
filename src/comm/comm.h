/* Ranks: processes that compute one model together.
 *
 * Everything is built on one primitive, the exchange: each rank hands a block of bytes to every other and
 * gets one from each. It is split in a start, which never waits, and a wait, so that arithmetic fits in
 * between. A backend (self.c, shm.c, mpi.c) implements exchanges; the collectives below are the same code
 * for all.
 *
 * A communicator has CHANNELS that are independent of one another: two micro-batches in flight use one each.
 * On a channel exchanges happen one after the other, and all ranks start the same ones in the same order.
 *
 * Sums are fp32 in rank order on every rank: all ranks hold the same bits, run after run (but for what a NaN
 * carries).
 *
 * Failure is sticky. When a rank dies, stops or does not take part in time, every call on every rank fails
 * from then on, and comm_status says why, in one sentence that is the same everywhere. Collectives on a
 * failed communicator return at once and leave their outputs undefined, so a forward pass needs to look only
 * at its end.
 *
 * Threads: one thread calls on one channel at a time. */
#ifndef NYB_COMM_COMM_H
#define NYB_COMM_COMM_H

#include "kernels/kernels.h"

#define COMM_RANK_MAX 64
#define COMM_CHANNELS 2

struct comm;

struct comm_options {
    size_t
        slot_bytes; /* most that a rank sends in one exchange, all receivers together; rounded up to pages */
    int timeout_ms; /* a rank that is silent for longer is lost; <= 0: 10 s                              */
};

/* One rank: every collective is a copy or nothing. */
enum nyb_code comm_open_self(struct comm **out, struct nyb_err *err) NYB_MUST_CHECK;

/* Fork `size` - 1 more processes of this machine, which return from here as ranks 1, 2, ...; the caller is
 * rank 0. Call it before there are threads. Children die with rank 0.
 * Each rank takes its own part of the cores that the caller may use, if there are as many as ranks: threads
 * that it starts inherit that, and comm_close ends it. So do the ranks of one host under MPI. */
enum nyb_code comm_fork(struct comm **out, int size, const struct comm_options *o,
                        struct nyb_err *err) NYB_MUST_CHECK;

/* Join the ranks that mpirun has started, on one machine or many; needs the MPI plug-in. slot_bytes must be
 * the same on all. */
enum nyb_code comm_open_mpi(struct comm **out, const struct comm_options *o,
                            struct nyb_err *err) NYB_MUST_CHECK;
/* Whether mpirun (or srun) has started this process. */
bool comm_mpi_started(void);

/* Tell the others that this rank leaves in good order, and free. Rank 0 also reaps its children: it waits for
 * them up to the timeout, then kills them. NULL is fine. */
void comm_close(struct comm *c);

int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);
/* Ranks that share this machine's memory with the caller, itself included. */
int comm_local_size(const struct comm *c);
size_t comm_slot_bytes(const struct comm *c);
const char *comm_backend(const struct comm *c); /* "self", "shm", "mpi" */

/* NYB_OK, or why the communicator failed. */
enum nyb_code comm_status(struct comm *c, struct nyb_err *err) NYB_MUST_CHECK;
/* Fail it on all ranks with this rank's own reason. */
void comm_fail(struct comm *c, const char *fmt, ...) NYB_PRINTF(2, 3);

/* ---- exchanges ----------------------------------------------------------------------------------- */

struct comm_part {
    const void *data;
    size_t bytes;
};

/* Send part[r] to each rank r; part[own rank] stays here. Data are copied before it returns. */
void comm_exchange_start(struct comm *c, int channel, const struct comm_part *part);
/* The same bytes to everybody. */
void comm_publish_start(struct comm *c, int channel, const void *data, size_t bytes);
/* in[r]: what rank r sent; in[own rank] is what was passed to start. They live until the next start on the
 * channel. False: the communicator failed. */
bool comm_exchange_wait(struct comm *c, int channel, struct comm_part *in);
/* The same without a time limit: for a follower that waits for work. Ranks that die or stop still end it. */
bool comm_exchange_wait_idle(struct comm *c, int channel, struct comm_part *in);

/* ---- collectives --------------------------------------------------------------------------------- */

/* Everybody has been here. */
bool comm_barrier(struct comm *c);
/* From rank 0 to all. */
bool comm_broadcast(struct comm *c, void *data, size_t bytes);
/* all[r] (bytes) from each rank, in rank order. */
bool comm_gather(struct comm *c, const void *own, size_t bytes, void *all);

/* x (n) becomes the sum over ranks. Pieces of up to comm_one_shot_bytes are sent whole to everybody (one
 * exchange); larger ones are summed a share by each rank and then gathered (two). The same bits either way.
 */
struct comm_reduce {
    float *x;
    size_t n;
    struct pool *pool;
};
void comm_allreduce_start(struct comm *c, int channel, struct comm_reduce *r);
bool comm_allreduce_wait(struct comm *c, int channel, struct comm_reduce *r);

/* residual += sum over ranks of x; y = RMSNorm(residual) * weight, for m rows of n.
 * Fused: the partial rows are added and normalized in one pass over what the exchange brought. Composed: an
 * all-reduce of x, then the norm. Both give the same bits. */
struct comm_add_norm {
    const struct kernels *kernels;
    struct pool *pool;
    float *x;                   /* (m, n) this rank's part; the composed path leaves the sum here */
    float *residual;            /* (m, n)                                                         */
    const float *weight;        /* (n)                                                            */
    float *y;                   /* (m, n)                                                         */
    const struct norm_use *use; /* of rows of y; NULL: nobody                              */
    int m, n;
    float eps;
    /* of the composed path; owned by the functions below */
    struct comm_reduce reduce;
    bool gathering; /* this rank's share is summed and on its way */
    bool announced; /* the rows tell by themselves that they have come */
};
/* The one predicate: whether both functions below take the fused path for m rows of n. */
bool comm_add_norm_fused(const struct comm *c, int m, int n);
void comm_add_norm_start(struct comm *c, int channel, struct comm_add_norm *a);
/* Optional, between the two: where two exchanges are needed, wait for the first and start the second, so that
 * arithmetic fits in behind that one too. */
bool comm_add_norm_middle(struct comm *c, int channel, struct comm_add_norm *a);
bool comm_add_norm_wait(struct comm *c, int channel, struct comm_add_norm *a);

/* How blocks get from rank to rank in shared memory, by size: bit i is for 4 KB << i and more, the last one
 * for all that is larger. Smaller blocks have one way. Every rank must set the same. */
#define COMM_SIZE_CLASSES 7
struct comm_ways {
    uint32_t cached;    /* written to the cache; else past it                                     */
    uint32_t announced; /* fused rows of two ranks tell by themselves that they have come; else a flag does */
};
void comm_set_ways(struct comm *c, struct comm_ways ways);
struct comm_ways comm_ways(const struct comm *c);

/* Measure which way is the fastest for each size, and set them; all ranks call it, and rank 0's clock
 * decides. Some 50 ms; logged. False: the communicator failed. */
bool comm_measure_ways(struct comm *c, const struct kernels *kernels, struct pool *pool);

/* Measure where one exchange stops being faster than two and whether fusing pays, and set both; all ranks
 * call it, and rank 0's clock decides. Some 0.1 s; logged once. fusion false, or fusion_rows > 0: what the
 * operator wants. False: the communicator failed. */
#define COMM_CALIBRATE_MAX ((size_t)1 << 20)
bool comm_measure_sums(struct comm *c, const struct kernels *kernels, struct pool *pool, bool fusion,
                       int fusion_rows);

/* Both, unless ranks share cores: then times would tell nothing, and take longer. */
void comm_calibrate(struct comm *c, const struct kernels *kernels, struct pool *pool, bool fusion,
                    int fusion_rows);

/* For comparison: x (n) becomes the sum, `calls` times over, by the all-reduce of the library that carries
 * the messages (MPI_Allreduce). All ranks call it; nanoseconds on this one. 0: there is none, or it failed.
 */
uint64_t comm_library_allreduce_ns(struct comm *c, float *x, size_t n, int calls);

/* Most rows of the fused path; 0 turns it off. The default is what a slot holds. */
void comm_set_fusion_rows(struct comm *c, int m_max);
/* Where one exchange stops being faster than two. */
void comm_set_one_shot_bytes(struct comm *c, size_t bytes);
size_t comm_one_shot_bytes(const struct comm *c);

#endif
