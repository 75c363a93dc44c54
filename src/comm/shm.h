/* The segment that local ranks share. Private to the room. */
#ifndef NYB_COMM_SHM_H
#define NYB_COMM_SHM_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "comm/backend.h"

/* Two lines: the hardware fetches them in pairs. */
#define SHM_LINE 128

/* A rank's state as its watcher shows it to the others. */
struct shm_peer {
    _Alignas(SHM_LINE) atomic_uint heartbeat;
    atomic_int pid;   /* 0: not started yet                       */
    atomic_bool left; /* in good order: its end is not a failure */
};

/* Written by its rank, read by all. Data of an exchange are double-buffered by the parity of its number: a
 * rank starts exchange e + 2 only after it has seen everybody start e + 1, and whoever has started e + 1 is
 * done with the data of e. */
struct shm_flag {
    _Alignas(SHM_LINE) atomic_uint epoch; /* exchanges started, modulo 2^32; waiters sleep on it */
    atomic_uint sleepers;
    struct {
        uint64_t bytes; /* same: of the one block for everybody */
        bool same;
    } sent[2];
};

struct shm_part {
    uint64_t offset, bytes;
};

struct shm_header {
    atomic_uint failure; /* enum: 0 none, 1 being written, 2 in `reason` */
    char reason[256];
    struct shm_peer peer[COMM_RANK_MAX];
    struct shm_flag flag[COMM_CHANNELS][COMM_RANK_MAX];
    struct shm_part part[COMM_CHANNELS][COMM_RANK_MAX][2][COMM_RANK_MAX]; /* from, parity, to */
};

/* Of rows that announce themselves (shm_rows.c): most in an exchange, and how many such blocks there are. */
#define SHM_ROWS_BYTES ((size_t)64 << 10)
#define SHM_ROWS_SLOTS ((size_t)COMM_CHANNELS * 2 * 2)

struct shm {
    struct shm_header *header;
    size_t mapped, slot_bytes;
    uint8_t *data; /* (channel, rank, 2) slots                                            */
    float *rows;   /* (channel, rank, 2) blocks of SHM_ROWS_BYTES; NULL unless there are two ranks */
    bool avx2;
    int rank, size, timeout_ms;
    unsigned epoch[COMM_CHANNELS]; /* exchanges that this rank has started */
    pthread_t watcher;
    int wake_watcher; /* eventfd */
};

/* False: somebody else has failed it before. Wakes all sleepers. */
bool shm_fail(struct shm *s, const char *reason);
bool shm_failed(const struct shm *s);
void shm_wake_all(struct shm *s);

/* Raise it behind all that this thread has stored, and wake whoever sleeps until then. Nobody waits for the
 * store here, so it may miss one who goes to sleep while it is on its way: first sleeps are short. */
void shm_raise(struct shm_flag *flag, unsigned epoch);
/* Until rank r has started what this rank started last on the channel; false: it never will. Any thread. */
bool shm_wait_for(struct shm *s, int channel, int r, bool idle);

/* ---- shm_rows.c: rows that announce themselves (backend.h) ---------------------------------------- */

extern const struct comm_backend_rows shm_rows;
/* Before there are ranks. */
void shm_rows_open(struct shm *s);

/* ---- shm_watch.c: who is alive ------------------------------------------------------------------- */

/* A thread that beats this rank's heart, and fails the communicator when another's stops or its process ends.
 */
enum nyb_code shm_watch_start(struct shm *s, struct nyb_err *err) NYB_MUST_CHECK;
void shm_watch_stop(struct shm *s);

#endif
