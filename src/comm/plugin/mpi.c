/* The MPI plug-in: exchanges as messages. Here is what the program calls: exchanges are handed to the
 * plug-in's thread (`posted`), which makes all calls of MPI (mpi_thread.c) and shows what is complete
 * (`done`). */
#include "comm/plugin/mpi_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPIN_LIMIT 4000
#define SLICE_NS   5000000
#define EAGER_MAX  ((size_t)16 << 20)

/* Messages longer than the eager limit (64 KB by default) are announced first and sent when the receiver has
 * answered, with threads of both sides waking up in between. Here a receive is posted with each send, so
 * whole exchanges go at once: 1 MB takes 9.9 ms instead of 19.2 at 1 Gbit/s and 0.5 ms. What the operator has
 * set stays. Called before there is the thread: the environment is not for several. */
static void set_eager_limit(size_t slot_bytes)
{
    char text[32];
    size_t most = slot_bytes < EAGER_MAX ? slot_bytes : EAGER_MAX;
    snprintf(text, sizeof(text), "%zu", most + 4096); /* and the header */
    (void)setenv("OMPI_MCA_btl_tcp_eager_limit", text, 0);
}

static struct mpi_ranks *mpi_open(int channels, size_t slot_bytes, int timeout_ms, char *why,
                                  size_t why_bytes)
{
    struct mpi_ranks *m = NULL;
    if (channels > MPI_CHANNELS_MAX || slot_bytes > 1u << 30) {
        snprintf(why, why_bytes, "%d channels of %zu bytes are too many", channels, slot_bytes);
        return NULL;
    }
    if (posix_memalign((void **)&m, 128, sizeof(*m))) {
        snprintf(why, why_bytes, "no memory for it");
        return NULL;
    }
    memset(m, 0, sizeof(*m));
    m->n_channel = channels;
    m->slot_bytes = slot_bytes;
    m->timeout_ms = timeout_ms;
    set_eager_limit(slot_bytes);
    if (pthread_create(&m->thread, NULL, mpi_thread, m)) {
        snprintf(why, why_bytes, "no thread for it");
        free(m);
        return NULL;
    }
    while (!atomic_load(&m->opened))
        usleep(1000);
    if (atomic_load(&m->opened) > 0)
        return m;
    pthread_join(m->thread, NULL);
    snprintf(why, why_bytes, "%s", m->why);
    mpi_free(m);
    return NULL;
}

static int mpi_rank(const struct mpi_ranks *m)
{
    return m->rank;
}

static int mpi_size(const struct mpi_ranks *m)
{
    return m->size;
}

static void mpi_start(struct mpi_ranks *m, int channel, const struct comm_mpi_part *part)
{
    struct mpi_channel *ch = &m->channel[channel];
    const void *last = NULL;
    size_t last_bytes = 0;
    uint8_t *at = ch->out;
    if (mpi_has_failed(m))
        return;
    for (int r = 0; r < m->size; r++) {
        ch->part[r] = part[r];
        if (r == m->rank)
            continue;
        if (last && part[r].data == last &&
            part[r].bytes == last_bytes) { /* the same block to everybody: one copy */
            ch->part[r].data = at - ch->part[r].bytes;
            continue;
        }
        if (part[r].bytes)
            memcpy(at, part[r].data, part[r].bytes);
        ch->part[r].data = at;
        at += part[r].bytes;
        last = part[r].data;
        last_bytes = part[r].bytes;
    }
    atomic_fetch_add_explicit(&ch->posted, 1, memory_order_release);
    mpi_ring(m);
}

static bool is_done(struct mpi_channel *ch)
{
    return atomic_load_explicit(&ch->done, memory_order_acquire) == atomic_load(&ch->posted);
}

static bool sleep_until_done(struct mpi_ranks *m, struct mpi_channel *ch, bool idle)
{
    uint64_t begin_ns = mpi_now_ns();
    char reason[MPI_REASON_BYTES];
    atomic_fetch_add(&ch->sleepers, 1);
    while (!is_done(ch) && !mpi_has_failed(m)) {
        unsigned seen = atomic_load(&ch->done);
        if (!is_done(ch))
            mpi_sleep(&ch->done, seen, SLICE_NS);
        if (!idle && mpi_now_ns() - begin_ns > (uint64_t)m->timeout_ms * 1000000u) {
            snprintf(reason, sizeof(reason), "an exchange of rank %d is not complete after %.3g s", m->rank,
                     m->timeout_ms * 1e-3);
            mpi_set_failure(m, reason);
        }
    }
    atomic_fetch_sub(&ch->sleepers, 1);
    return is_done(ch);
}

static bool mpi_wait(struct mpi_ranks *m, int channel, struct comm_mpi_part *in, bool idle)
{
    struct mpi_channel *ch = &m->channel[channel];
    bool done = false;
    for (int spin = 0; spin < SPIN_LIMIT && !done; spin++) {
        done = is_done(ch);
        __builtin_ia32_pause();
    }
    if (mpi_has_failed(m) || (!done && !sleep_until_done(m, ch, idle)))
        return false;
    memcpy(in, ch->in, (size_t)m->size * sizeof(*in));
    return true;
}

static bool mpi_failed(struct mpi_ranks *m, char *reason, size_t reason_bytes)
{
    if (!mpi_has_failed(m))
        return false;
    snprintf(reason, reason_bytes, "%s", m->reason);
    return true;
}

static void mpi_fail(struct mpi_ranks *m, const char *reason)
{
    mpi_set_failure(m, reason);
}

static uint64_t mpi_time_allreduce(struct mpi_ranks *m, float *x, size_t n, int calls)
{
    m->sum = x;
    m->n_sum = n;
    m->sum_calls = calls;
    atomic_fetch_add_explicit(&m->ordered, 1, memory_order_release);
    mpi_ring(m);
    while (atomic_load_explicit(&m->served, memory_order_acquire) != atomic_load(&m->ordered))
        usleep(100); /* the core is for the thread */
    return m->sum_ns;
}

static void mpi_close(struct mpi_ranks *m)
{
    atomic_store(&m->closing, true);
    mpi_ring(m);
    pthread_join(m->thread, NULL);
    mpi_free(m);
}

__attribute__((visibility("default"))) extern const struct comm_mpi_plugin comm_mpi_plugin;
const struct comm_mpi_plugin comm_mpi_plugin = {
    COMM_MPI_ABI, mpi_open,   mpi_rank, mpi_size,  mpi_start,
    mpi_wait,     mpi_failed, mpi_fail, mpi_close, mpi_time_allreduce,
};
