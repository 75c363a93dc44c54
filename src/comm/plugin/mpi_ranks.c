/* What all threads of the plug-in may call: sleeping and waking, and the one failure. */
#include "comm/plugin/mpi_ranks.h"

#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t mpi_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void mpi_sleep(atomic_uint *word, unsigned expected, long ns)
{
    const struct timespec slice = {.tv_nsec = ns};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &slice, NULL, 0);
}

void mpi_wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

void mpi_ring(struct mpi_ranks *m)
{
    atomic_fetch_add(&m->bell, 1);
    mpi_wake(&m->bell);
}

bool mpi_has_failed(struct mpi_ranks *m)
{
    return atomic_load_explicit(&m->failure, memory_order_acquire) == 2;
}

void mpi_set_failure(struct mpi_ranks *m, const char *reason)
{
    unsigned none = 0;
    if (!atomic_compare_exchange_strong(&m->failure, &none, 1))
        return;
    snprintf(m->reason, sizeof(m->reason), "%s", reason);
    atomic_store_explicit(&m->failure, 2, memory_order_release);
    for (int c = 0; c < m->n_channel; c++)
        mpi_wake(&m->channel[c].done);
    mpi_ring(m);
}

void mpi_set_error(struct mpi_ranks *m, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "", reason[MPI_REASON_BYTES];
    int n = 0;
    MPI_Error_string(code, text, &n);
    snprintf(reason, sizeof(reason), "%s failed on rank %d: %.160s", what, m->rank, text);
    mpi_set_failure(m, reason);
}
