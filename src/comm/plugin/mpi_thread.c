/* The thread that makes all calls of MPI. Between exchanges it sleeps; while one is in flight it tests:
 * without pause at first, then with short sleeps, since the core that it would keep busy belongs to the
 * arithmetic. */
#include "comm/plugin/mpi_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define IDLE_MS 5 /* between looks at beats when nothing is in flight */
/* Between tests of what is in flight the thread sleeps for a part of the time that nothing has happened: not
 * at all at first, and never longer than what a socket's buffer bridges. */
#define BUSY_NS      50000
#define SLEEP_PART   16
#define SLEEP_MIN_NS 20000
#define SLEEP_MAX_NS 100000
#define NICE         (-10) /* it needs little time, but soon; best effort */

/* ---- joining and leaving ------------------------------------------------------------------------- */

static bool alloc_buffers(struct mpi_ranks *m)
{
    size_t n = (size_t)m->size;
    m->heard_ns = calloc(n, sizeof(*m->heard_ns));
    m->beat_in = calloc(n, sizeof(MPI_Request));
    m->beat_out = calloc(n, sizeof(MPI_Request));
    m->beat_byte = calloc(n, 1);
    m->leaves = calloc(n, sizeof(bool));
    bool ok = m->heard_ns && m->beat_in && m->beat_out && m->beat_byte && m->leaves;
    for (int c = 0; ok && c < m->n_channel; c++) {
        struct mpi_channel *ch = &m->channel[c];
        ch->out = malloc(m->slot_bytes + n * 64);
        ch->part = calloc(n, sizeof(*ch->part));
        ch->in = calloc(n, sizeof(*ch->in));
        ch->room = calloc(n, sizeof(*ch->room));
        ch->request = calloc(2 * n, sizeof(MPI_Request));
        ok = ch->out && ch->part && ch->in && ch->room && ch->request;
        for (size_t r = 0; ok && r < n; r++)
            ok = (ch->room[r] = malloc(m->slot_bytes)) != NULL;
    }
    return ok;
}

static bool begin(struct mpi_ranks *m)
{
    int given = 0, code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given);
    if (code != MPI_SUCCESS) {
        snprintf(m->why, sizeof(m->why), "MPI_Init_thread returned %d", code);
        return false;
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &m->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &m->size);
    if (m->size > MPI_RANKS_MAX) {
        snprintf(m->why, sizeof(m->why), "%d ranks, expected at most %d", m->size, MPI_RANKS_MAX);
        return false;
    }
    if (!alloc_buffers(m)) {
        snprintf(m->why, sizeof(m->why), "no memory for buffers of %zu bytes for each of %d ranks",
                 m->slot_bytes, m->size);
        return false;
    }
    mpi_watch_begin(m);
    return true;
}

void mpi_free(struct mpi_ranks *m)
{
    for (int c = 0; c < m->n_channel; c++) {
        struct mpi_channel *ch = &m->channel[c];
        for (int r = 0; ch->room && r < m->size; r++)
            free(ch->room[r]);
        free(ch->out), free(ch->part), free(ch->in), free(ch->room), free(ch->request);
    }
    free(m->heard_ns), free(m->beat_in), free(m->beat_out), free(m->beat_byte), free(m->leaves);
    free(m);
}

/* ---- MPI's own sum, for comparison ---------------------------------------------------------------- */

static void time_sum(struct mpi_ranks *m)
{
    int code = MPI_Barrier(MPI_COMM_WORLD);
    uint64_t begin_ns = mpi_now_ns();
    for (int i = 0; i < m->sum_calls && code == MPI_SUCCESS; i++)
        code = MPI_Allreduce(MPI_IN_PLACE, m->sum, (int)m->n_sum, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    uint64_t end_ns = mpi_now_ns();
    m->sum_ns = code == MPI_SUCCESS ? end_ns - begin_ns : 0;
    if (code != MPI_SUCCESS)
        mpi_set_error(m, "MPI_Allreduce", code);
    for (int r = 0; r < m->size; r++)
        m->heard_ns[r] = end_ns; /* all have been there */
    atomic_fetch_add(&m->served, 1);
}

/* ---- its life ------------------------------------------------------------------------------------ */

static void rest(const struct mpi_ranks *m)
{
    uint64_t quiet = mpi_now_ns() - m->event_ns, ns = quiet / SLEEP_PART;
    if (quiet < BUSY_NS)
        return;
    ns = ns < SLEEP_MIN_NS ? SLEEP_MIN_NS : ns > SLEEP_MAX_NS ? SLEEP_MAX_NS : ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

void *mpi_thread(void *arg)
{
    struct mpi_ranks *m = arg;
    prctl(PR_SET_TIMERSLACK, 1000);
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); /* of this thread alone, on Linux */
    bool ok = begin(m);
    atomic_store(&m->opened, ok ? 1 : -1);
    if (!ok)
        return NULL;
    for (unsigned tests = 0; !atomic_load(&m->closing);) {
        unsigned bell = atomic_load(&m->bell);
        if (atomic_load_explicit(&m->ordered, memory_order_acquire) != atomic_load(&m->served))
            time_sum(m);
        bool busy = !mpi_has_failed(m) && mpi_exchange_move(m);
        if (!busy || tests % 64 == 0)
            mpi_watch(m);
        if (!busy) {
            tests = 0;
            mpi_sleep(&m->bell, bell, IDLE_MS * 1000000L);
        } else {
            tests++;
            rest(m);
        }
    }
    if (mpi_has_failed(m))
        mpi_watch(m); /* the reason goes out */
    else
        mpi_watch_leave(m);
    return NULL;
}
