/* Who is there. Open MPI 4 does not tell of a peer that is gone or cut off: an operation just stays
 * incomplete. So ranks beat to one another, and one that is silent for the timeout is lost. A failed job is
 * not finalized (that would wait for the lost rank): its process ends, and mpirun ends the rest. */
#include "comm/plugin/mpi_ranks.h"

#include <sched.h>
#include <stdio.h>

#define BEAT_MS 250

static void listen_for_beat(struct mpi_ranks *m, int r)
{
    MPI_Irecv(&m->beat_byte[r], 1, MPI_BYTE, r, MPI_TAG_BEAT, MPI_COMM_WORLD, &m->beat_in[r]);
}

void mpi_watch_begin(struct mpi_ranks *m)
{
    uint64_t now = mpi_now_ns();
    m->beat_sent = 1;
    for (int r = 0; r < m->size; r++) {
        m->heard_ns[r] = now;
        m->beat_in[r] = m->beat_out[r] = MPI_REQUEST_NULL;
        if (r != m->rank)
            listen_for_beat(m, r);
    }
    MPI_Irecv(m->failure_text, MPI_REASON_BYTES, MPI_BYTE, MPI_ANY_SOURCE, MPI_TAG_FAILURE, MPI_COMM_WORLD,
              &m->failure_in);
}

static void hear(struct mpi_ranks *m, int r, uint64_t now)
{
    int there = 0;
    char reason[MPI_REASON_BYTES];
    if (m->beat_in[r] != MPI_REQUEST_NULL)
        MPI_Test(&m->beat_in[r], &there, MPI_STATUS_IGNORE);
    if (there) {
        m->heard_ns[r] = now;
        m->leaves[r] = !m->beat_byte[r];
        if (!m->leaves[r])
            listen_for_beat(m, r);
    }
    if (m->leaves[r] || now - m->heard_ns[r] <= (uint64_t)m->timeout_ms * 1000000u)
        return;
    snprintf(reason, sizeof(reason), "rank %d has been silent for %.3g s: its process or the network is gone",
             r, m->timeout_ms * 1e-3);
    mpi_set_failure(m, reason);
}

static void beat(struct mpi_ranks *m, uint64_t now)
{
    m->beat_ns = now;
    for (int r = 0; r < m->size; r++) {
        int free_again = 1;
        if (r == m->rank || (m->leaves[r] && m->beat_sent)) /* but goodbyes go to all */
            continue;
        if (m->beat_out[r] != MPI_REQUEST_NULL)
            MPI_Test(&m->beat_out[r], &free_again, MPI_STATUS_IGNORE);
        if (free_again)
            MPI_Isend(&m->beat_sent, 1, MPI_BYTE, r, MPI_TAG_BEAT, MPI_COMM_WORLD, &m->beat_out[r]);
    }
}

void mpi_watch(struct mpi_ranks *m)
{
    uint64_t now = mpi_now_ns();
    int there = 0;
    if (now - m->beat_ns > (uint64_t)BEAT_MS * 1000000u)
        beat(m, now);
    for (int r = 0; r < m->size; r++)
        if (r != m->rank && !mpi_has_failed(m))
            hear(m, r, now);
    MPI_Test(&m->failure_in, &there, MPI_STATUS_IGNORE);
    if (there) {
        m->failure_text[MPI_REASON_BYTES - 1] = 0;
        mpi_set_failure(m, m->failure_text);
    }
    if (mpi_has_failed(m) && !m->failure_sent) {
        m->failure_sent = true; /* to all who can still hear it; never waited for */
        for (int r = 0; r < m->size; r++) {
            MPI_Request forget;
            if (r != m->rank && MPI_Isend(m->reason, MPI_REASON_BYTES, MPI_BYTE, r, MPI_TAG_FAILURE,
                                          MPI_COMM_WORLD, &forget) == MPI_SUCCESS)
                MPI_Request_free(&forget);
        }
    }
}

static void cancel(MPI_Request *request)
{
    if (*request == MPI_REQUEST_NULL)
        return;
    MPI_Cancel(request);
    MPI_Request_free(request);
}

/* Say goodbye, wait for the others' goodbyes, finalize. */
void mpi_watch_leave(struct mpi_ranks *m)
{
    m->beat_sent = 0;
    for (int r = 0; r < m->size; r++)
        if (r != m->rank && m->beat_out[r] != MPI_REQUEST_NULL)
            MPI_Wait(&m->beat_out[r], MPI_STATUS_IGNORE);
    beat(m, mpi_now_ns());
    bool all = false;
    uint64_t begin = mpi_now_ns();
    while (!all && !mpi_has_failed(m)) {
        all = true;
        for (int r = 0; r < m->size; r++) {
            if (r == m->rank)
                continue;
            hear(m, r, mpi_now_ns());
            all &= m->leaves[r];
        }
        sched_yield();
    }
    if (mpi_has_failed(m) || mpi_now_ns() - begin > (uint64_t)m->timeout_ms * 2000000u)
        return;
    cancel(&m->failure_in);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
}
