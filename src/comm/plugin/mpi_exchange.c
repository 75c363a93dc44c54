/* Exchanges as messages: a receive from each rank and a send to each are posted together, and all are tested
 * until they are complete. */
#include "comm/plugin/mpi_ranks.h"

static void post(struct mpi_ranks *m, struct mpi_channel *ch, int tag)
{
    int code = MPI_SUCCESS;
    for (int r = 0; r < m->size && code == MPI_SUCCESS; r++) {
        ch->request[r] = ch->request[m->size + r] = MPI_REQUEST_NULL;
        if (r == m->rank)
            continue;
        code = MPI_Irecv(ch->room[r], (int)m->slot_bytes, MPI_BYTE, r, tag, MPI_COMM_WORLD, &ch->request[r]);
        if (code == MPI_SUCCESS)
            code = MPI_Isend(ch->part[r].data, (int)ch->part[r].bytes, MPI_BYTE, r, tag, MPI_COMM_WORLD,
                             &ch->request[m->size + r]);
    }
    if (code != MPI_SUCCESS)
        mpi_set_error(m, "sending", code);
    ch->in_flight = true;
    m->event_ns = mpi_now_ns();
}

static void test(struct mpi_ranks *m, struct mpi_channel *ch)
{
    MPI_Status status[2 * MPI_RANKS_MAX];
    int all = 0, code = MPI_Testall(2 * m->size, ch->request, &all, status);
    if (code != MPI_SUCCESS)
        mpi_set_error(m, "receiving", code);
    if (code != MPI_SUCCESS || !all)
        return;
    uint64_t now = m->event_ns = mpi_now_ns();
    for (int r = 0; r < m->size; r++) {
        int bytes = 0;
        if (r == m->rank)
            continue;
        MPI_Get_count(&status[r], MPI_BYTE, &bytes);
        ch->in[r] = (struct comm_mpi_part){ch->room[r], (size_t)bytes};
        m->heard_ns[r] = now;
    }
    ch->in_flight = false;
    atomic_fetch_add(&ch->done, 1);
    if (atomic_load(&ch->sleepers))
        mpi_wake(&ch->done);
}

/* Whether anything is in flight. */
bool mpi_exchange_move(struct mpi_ranks *m)
{
    bool busy = false;
    for (int c = 0; c < m->n_channel; c++) {
        struct mpi_channel *ch = &m->channel[c];
        if (!ch->in_flight &&
            atomic_load_explicit(&ch->posted, memory_order_acquire) != atomic_load(&ch->done))
            post(m, ch, c);
        if (ch->in_flight)
            test(m, ch);
        busy |= ch->in_flight;
    }
    return busy;
}
