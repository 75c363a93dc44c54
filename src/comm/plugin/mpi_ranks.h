/* What the files of the MPI plug-in share: the ranks as this process sees them, the bell that wakes the
 * thread, and the one failure that ends everything.
 *
 * One thread makes all calls of MPI, so that messages move while the others compute. Who writes a member is
 * said with it; what is not atomic is handed over by an atomic one. */
#ifndef NYB_COMM_MPI_RANKS_H
#define NYB_COMM_MPI_RANKS_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "comm/mpi_plugin.h"

#define MPI_CHANNELS_MAX 4
#define MPI_RANKS_MAX    64
#define MPI_TAG_BEAT     100 /* exchanges of channel c have the tag c */
#define MPI_TAG_FAILURE  101
#define MPI_REASON_BYTES 256

struct mpi_channel {
    /* written by the caller before `posted`, by the thread before `done` */
    uint8_t *out;                     /* (slot_bytes) parts one after the other              */
    struct comm_mpi_part *part, *in;  /* (size)                                              */
    uint8_t **room;                   /* (size) each slot_bytes                              */
    MPI_Request *request;             /* (2 * size) receives, then sends                     */
    bool in_flight;                   /* the thread's                                        */
    _Alignas(128) atomic_uint posted; /* exchanges started                                   */
    _Alignas(128) atomic_uint done;   /* exchanges complete; callers sleep on it             */
    atomic_uint sleepers;
};

struct mpi_ranks {
    int rank, size, n_channel, timeout_ms;
    size_t slot_bytes;
    struct mpi_channel channel[MPI_CHANNELS_MAX];
    pthread_t thread;
    _Alignas(128) atomic_uint bell; /* the thread sleeps on it */
    atomic_bool closing;
    atomic_uint failure; /* 0 none, 1 being written, 2 in `reason` */
    char reason[MPI_REASON_BYTES];
    /* the thread's */
    bool failure_sent;
    uint64_t event_ns;               /* when an exchange was last posted or complete */
    uint64_t beat_ns, *heard_ns;     /* (size) */
    MPI_Request *beat_in, *beat_out; /* (size) */
    char *beat_byte;                 /* (size) what a beat brings: 1, or 0 from one who leaves */
    bool *leaves;                    /* (size) */
    char beat_sent;
    MPI_Request failure_in;
    char failure_text[MPI_REASON_BYTES];
    /* a benchmark's order, by the caller before `ordered`; its time, by the thread before `served` */
    float *sum;
    size_t n_sum;
    int sum_calls;
    uint64_t sum_ns;
    atomic_uint ordered, served;
    /* of open */
    atomic_int opened; /* 0 not yet, 1 yes, -1 no */
    char why[MPI_REASON_BYTES];
};

/* mpi_ranks.c: for all threads. */

uint64_t mpi_now_ns(void);
/* Until the word is no longer `expected`, somebody wakes those who sleep on it, or so much time has passed.
 */
void mpi_sleep(atomic_uint *word, unsigned expected, long ns);
void mpi_wake(atomic_uint *word);
/* Wakes the thread. */
void mpi_ring(struct mpi_ranks *m);

/* The first reason stays; everybody who waits is woken. */
void mpi_set_failure(struct mpi_ranks *m, const char *reason);
bool mpi_has_failed(struct mpi_ranks *m);

/* The rest is for the thread alone. */

/* "`what` failed on rank ...": as MPI words the code. */
void mpi_set_error(struct mpi_ranks *m, const char *what, int code);

/* mpi_exchange.c: posts, tests and completes exchanges. Whether any is in flight. */
bool mpi_exchange_move(struct mpi_ranks *m);

/* mpi_watch.c: begins to listen for beats and failures; beats, and hears who is silent or has failed; says
 * goodbye, waits for the others' goodbyes, and finalizes. */
void mpi_watch_begin(struct mpi_ranks *m);
void mpi_watch(struct mpi_ranks *m);
void mpi_watch_leave(struct mpi_ranks *m);

/* mpi_thread.c: all of its life; `arg` is the ranks. `opened` says how MPI was joined. */
void *mpi_thread(void *arg);
/* After the thread has ended. */
void mpi_free(struct mpi_ranks *m);

#endif
