/* The MPI plug-in: exchanges as messages.
 *
 * One thread makes all calls of MPI, so that messages move while the others compute. It is handed exchanges
 * (`posted`), posts their sends and receives, tests them, and shows what is complete (`done`). Between
 * exchanges it sleeps; while one is in flight it tests: without pause at first, then with short
 * sleeps, since the core that it would keep busy belongs to the arithmetic.
 *
 * Open MPI 4 does not tell of a peer that is gone or cut off: an operation just stays incomplete. So ranks
 * beat to one another, and one that is silent for the timeout is lost. A failed job is not finalized (that
 * would wait for the lost rank): its process ends, and mpirun ends the rest. */
#include "comm/mpi_plugin.h"

#include <linux/futex.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CHANNELS_MAX 4
#define TAG_BEAT     100 /* exchanges of channel c have the tag c */
#define TAG_FAILURE  101
#define REASON_BYTES 256
#define BEAT_MS      250
#define IDLE_MS      5 /* between looks at beats when nothing is in flight */
/* Between tests of what is in flight the thread sleeps for a part of the time that nothing has happened: not
 * at all at first, and never longer than what a socket's buffer bridges. */
#define BUSY_NS      50000
#define SLEEP_PART   16
#define SLEEP_MIN_NS 20000
#define SLEEP_MAX_NS 100000
#define NICE         (-10) /* it needs little time, but soon; best effort */
#define SPIN_LIMIT   4000
#define SLICE_NS     5000000
#define EAGER_MAX    ((size_t)16 << 20)

struct channel {
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
    struct channel channel[CHANNELS_MAX];
    pthread_t thread;
    _Alignas(128) atomic_uint bell; /* the thread sleeps on it */
    atomic_bool closing;
    atomic_uint failure; /* 0 none, 1 being written, 2 in `reason` */
    char reason[REASON_BYTES];
    /* the thread's */
    bool failure_sent;
    uint64_t event_ns;               /* when an exchange was last posted or complete */
    uint64_t beat_ns, *heard_ns;     /* (size) */
    MPI_Request *beat_in, *beat_out; /* (size) */
    char *beat_byte;                 /* (size) what a beat brings: 1, or 0 from one who leaves */
    bool *leaves;                    /* (size) */
    char beat_sent;
    MPI_Request failure_in;
    char failure_text[REASON_BYTES];
    /* a benchmark's order, by the caller before `ordered`; its time, by the thread before `served` */
    float *sum;
    size_t n_sum;
    int sum_calls;
    uint64_t sum_ns;
    atomic_uint ordered, served;
    /* of open */
    atomic_int opened; /* 0 not yet, 1 yes, -1 no */
    char why[REASON_BYTES];
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void futex_wait(atomic_uint *word, unsigned expected, long ns)
{
    const struct timespec slice = {.tv_nsec = ns};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, &slice, NULL, 0);
}

static void futex_wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
}

static void ring(struct mpi_ranks *m)
{
    atomic_fetch_add(&m->bell, 1);
    futex_wake(&m->bell);
}

/* ---- failure ------------------------------------------------------------------------------------- */

static bool has_failed(struct mpi_ranks *m)
{
    return atomic_load_explicit(&m->failure, memory_order_acquire) == 2;
}

static void set_failure(struct mpi_ranks *m, const char *reason)
{
    unsigned none = 0;
    if (!atomic_compare_exchange_strong(&m->failure, &none, 1))
        return;
    snprintf(m->reason, sizeof(m->reason), "%s", reason);
    atomic_store_explicit(&m->failure, 2, memory_order_release);
    for (int c = 0; c < m->n_channel; c++)
        futex_wake(&m->channel[c].done);
    ring(m);
}

static void set_mpi_failure(struct mpi_ranks *m, const char *what, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "", reason[REASON_BYTES];
    int n = 0;
    MPI_Error_string(code, text, &n);
    snprintf(reason, sizeof(reason), "%s failed on rank %d: %.160s", what, m->rank, text);
    set_failure(m, reason);
}

/* ---- the thread: exchanges ----------------------------------------------------------------------- */

static void post(struct mpi_ranks *m, struct channel *ch, int tag)
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
        set_mpi_failure(m, "sending", code);
    ch->in_flight = true;
    m->event_ns = now_ns();
}

static void test(struct mpi_ranks *m, struct channel *ch)
{
    MPI_Status status[2 * 64];
    int all = 0, code = MPI_Testall(2 * m->size, ch->request, &all, status);
    if (code != MPI_SUCCESS)
        set_mpi_failure(m, "receiving", code);
    if (code != MPI_SUCCESS || !all)
        return;
    uint64_t now = m->event_ns = now_ns();
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
        futex_wake(&ch->done);
}

/* Whether anything is in flight. */
static bool move(struct mpi_ranks *m)
{
    bool busy = false;
    for (int c = 0; c < m->n_channel; c++) {
        struct channel *ch = &m->channel[c];
        if (!ch->in_flight &&
            atomic_load_explicit(&ch->posted, memory_order_acquire) != atomic_load(&ch->done))
            post(m, ch, c);
        if (ch->in_flight)
            test(m, ch);
        busy |= ch->in_flight;
    }
    return busy;
}

/* ---- the thread: who is there -------------------------------------------------------------------- */

static void listen_for_beat(struct mpi_ranks *m, int r)
{
    MPI_Irecv(&m->beat_byte[r], 1, MPI_BYTE, r, TAG_BEAT, MPI_COMM_WORLD, &m->beat_in[r]);
}

static void hear(struct mpi_ranks *m, int r, uint64_t now)
{
    int there = 0;
    char reason[REASON_BYTES];
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
    set_failure(m, reason);
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
            MPI_Isend(&m->beat_sent, 1, MPI_BYTE, r, TAG_BEAT, MPI_COMM_WORLD, &m->beat_out[r]);
    }
}

static void watch(struct mpi_ranks *m)
{
    uint64_t now = now_ns();
    int there = 0;
    if (now - m->beat_ns > (uint64_t)BEAT_MS * 1000000u)
        beat(m, now);
    for (int r = 0; r < m->size; r++)
        if (r != m->rank && !has_failed(m))
            hear(m, r, now);
    MPI_Test(&m->failure_in, &there, MPI_STATUS_IGNORE);
    if (there) {
        m->failure_text[REASON_BYTES - 1] = 0;
        set_failure(m, m->failure_text);
    }
    if (has_failed(m) && !m->failure_sent) {
        m->failure_sent = true; /* to all who can still hear it; never waited for */
        for (int r = 0; r < m->size; r++) {
            MPI_Request forget;
            if (r != m->rank && MPI_Isend(m->reason, REASON_BYTES, MPI_BYTE, r, TAG_FAILURE, MPI_COMM_WORLD,
                                          &forget) == MPI_SUCCESS)
                MPI_Request_free(&forget);
        }
    }
}

/* ---- the thread: MPI's own sum, for comparison --------------------------------------------------- */

static void time_sum(struct mpi_ranks *m)
{
    int code = MPI_Barrier(MPI_COMM_WORLD);
    uint64_t begin_ns = now_ns();
    for (int i = 0; i < m->sum_calls && code == MPI_SUCCESS; i++)
        code = MPI_Allreduce(MPI_IN_PLACE, m->sum, (int)m->n_sum, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    uint64_t end_ns = now_ns();
    m->sum_ns = code == MPI_SUCCESS ? end_ns - begin_ns : 0;
    if (code != MPI_SUCCESS)
        set_mpi_failure(m, "MPI_Allreduce", code);
    for (int r = 0; r < m->size; r++)
        m->heard_ns[r] = end_ns; /* all have been there */
    atomic_fetch_add(&m->served, 1);
}

/* ---- the thread ---------------------------------------------------------------------------------- */

static void cancel(MPI_Request *request)
{
    if (*request == MPI_REQUEST_NULL)
        return;
    MPI_Cancel(request);
    MPI_Request_free(request);
}

/* Say goodbye, wait for the others' goodbyes, finalize. */
static void leave(struct mpi_ranks *m)
{
    m->beat_sent = 0;
    for (int r = 0; r < m->size; r++)
        if (r != m->rank && m->beat_out[r] != MPI_REQUEST_NULL)
            MPI_Wait(&m->beat_out[r], MPI_STATUS_IGNORE);
    beat(m, now_ns());
    bool all = false;
    uint64_t begin = now_ns();
    while (!all && !has_failed(m)) {
        all = true;
        for (int r = 0; r < m->size; r++) {
            if (r == m->rank)
                continue;
            hear(m, r, now_ns());
            all &= m->leaves[r];
        }
        sched_yield();
    }
    if (has_failed(m) || now_ns() - begin > (uint64_t)m->timeout_ms * 2000000u)
        return;
    cancel(&m->failure_in);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
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
    if (m->size > 64) {
        snprintf(m->why, sizeof(m->why), "%d ranks, expected at most 64", m->size);
        return false;
    }
    size_t n = (size_t)m->size;
    m->heard_ns = calloc(n, sizeof(*m->heard_ns));
    m->beat_in = calloc(n, sizeof(MPI_Request));
    m->beat_out = calloc(n, sizeof(MPI_Request));
    m->beat_byte = calloc(n, 1);
    m->leaves = calloc(n, sizeof(bool));
    bool ok = m->heard_ns && m->beat_in && m->beat_out && m->beat_byte && m->leaves;
    for (int c = 0; ok && c < m->n_channel; c++) {
        struct channel *ch = &m->channel[c];
        ch->out = malloc(m->slot_bytes + n * 64);
        ch->part = calloc(n, sizeof(*ch->part));
        ch->in = calloc(n, sizeof(*ch->in));
        ch->room = calloc(n, sizeof(*ch->room));
        ch->request = calloc(2 * n, sizeof(MPI_Request));
        ok = ch->out && ch->part && ch->in && ch->room && ch->request;
        for (size_t r = 0; ok && r < n; r++)
            ok = (ch->room[r] = malloc(m->slot_bytes)) != NULL;
    }
    if (!ok) {
        snprintf(m->why, sizeof(m->why), "no memory for buffers of %zu bytes for each of %d ranks",
                 m->slot_bytes, m->size);
        return false;
    }
    uint64_t now = now_ns();
    m->beat_sent = 1;
    for (int r = 0; r < m->size; r++) {
        m->heard_ns[r] = now;
        m->beat_in[r] = m->beat_out[r] = MPI_REQUEST_NULL;
        if (r != m->rank)
            listen_for_beat(m, r);
    }
    MPI_Irecv(m->failure_text, REASON_BYTES, MPI_BYTE, MPI_ANY_SOURCE, TAG_FAILURE, MPI_COMM_WORLD,
              &m->failure_in);
    return true;
}

static void rest(const struct mpi_ranks *m)
{
    uint64_t quiet = now_ns() - m->event_ns, ns = quiet / SLEEP_PART;
    if (quiet < BUSY_NS)
        return;
    ns = ns < SLEEP_MIN_NS ? SLEEP_MIN_NS : ns > SLEEP_MAX_NS ? SLEEP_MAX_NS : ns;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static void *run(void *arg)
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
        bool busy = !has_failed(m) && move(m);
        if (!busy || tests % 64 == 0)
            watch(m);
        if (!busy) {
            tests = 0;
            futex_wait(&m->bell, bell, IDLE_MS * 1000000L);
        } else {
            tests++;
            rest(m);
        }
    }
    if (has_failed(m))
        watch(m); /* the reason goes out */
    else
        leave(m);
    return NULL;
}

/* ---- the callers --------------------------------------------------------------------------------- */

static void free_ranks(struct mpi_ranks *m)
{
    for (int c = 0; c < m->n_channel; c++) {
        struct channel *ch = &m->channel[c];
        for (int r = 0; ch->room && r < m->size; r++)
            free(ch->room[r]);
        free(ch->out), free(ch->part), free(ch->in), free(ch->room), free(ch->request);
    }
    free(m->heard_ns), free(m->beat_in), free(m->beat_out), free(m->beat_byte), free(m->leaves);
    free(m);
}

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
    if (channels > CHANNELS_MAX || slot_bytes > 1u << 30) {
        snprintf(why, why_bytes, "%d channels of %zu bytes are too many", channels, slot_bytes);
        return NULL;
    }
    if (posix_memalign((void **)&m, 128, sizeof(*m)))
        return NULL;
    memset(m, 0, sizeof(*m));
    m->n_channel = channels;
    m->slot_bytes = slot_bytes;
    m->timeout_ms = timeout_ms;
    set_eager_limit(slot_bytes);
    if (pthread_create(&m->thread, NULL, run, m)) {
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
    free_ranks(m);
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
    struct channel *ch = &m->channel[channel];
    const void *last = NULL;
    size_t last_bytes = 0;
    uint8_t *at = ch->out;
    if (has_failed(m))
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
    ring(m);
}

static bool is_done(struct channel *ch)
{
    return atomic_load_explicit(&ch->done, memory_order_acquire) == atomic_load(&ch->posted);
}

static bool sleep_until_done(struct mpi_ranks *m, struct channel *ch, bool idle)
{
    uint64_t begin_ns = now_ns();
    char reason[REASON_BYTES];
    atomic_fetch_add(&ch->sleepers, 1);
    while (!is_done(ch) && !has_failed(m)) {
        unsigned seen = atomic_load(&ch->done);
        if (!is_done(ch))
            futex_wait(&ch->done, seen, SLICE_NS);
        if (!idle && now_ns() - begin_ns > (uint64_t)m->timeout_ms * 1000000u) {
            snprintf(reason, sizeof(reason), "an exchange of rank %d is not complete after %.3g s", m->rank,
                     m->timeout_ms * 1e-3);
            set_failure(m, reason);
        }
    }
    atomic_fetch_sub(&ch->sleepers, 1);
    return is_done(ch);
}

static bool mpi_wait(struct mpi_ranks *m, int channel, struct comm_mpi_part *in, bool idle)
{
    struct channel *ch = &m->channel[channel];
    bool done = false;
    for (int spin = 0; spin < SPIN_LIMIT && !done; spin++) {
        done = is_done(ch);
        __builtin_ia32_pause();
    }
    if (has_failed(m) || (!done && !sleep_until_done(m, ch, idle)))
        return false;
    memcpy(in, ch->in, (size_t)m->size * sizeof(*in));
    return true;
}

static bool mpi_failed(struct mpi_ranks *m, char *reason, size_t reason_bytes)
{
    if (!has_failed(m))
        return false;
    snprintf(reason, reason_bytes, "%s", m->reason);
    return true;
}

static void mpi_fail(struct mpi_ranks *m, const char *reason)
{
    set_failure(m, reason);
}

static uint64_t mpi_time_allreduce(struct mpi_ranks *m, float *x, size_t n, int calls)
{
    m->sum = x;
    m->n_sum = n;
    m->sum_calls = calls;
    atomic_fetch_add_explicit(&m->ordered, 1, memory_order_release);
    ring(m);
    while (atomic_load_explicit(&m->served, memory_order_acquire) != atomic_load(&m->ordered))
        usleep(100); /* the core is for the thread */
    return m->sum_ns;
}

static void mpi_close(struct mpi_ranks *m)
{
    atomic_store(&m->closing, true);
    ring(m);
    pthread_join(m->thread, NULL);
    free_ranks(m);
}

__attribute__((visibility("default"))) extern const struct comm_mpi_plugin comm_mpi_plugin;
const struct comm_mpi_plugin comm_mpi_plugin = {
    COMM_MPI_ABI, mpi_open,   mpi_rank, mpi_size,  mpi_start,
    mpi_wait,     mpi_failed, mpi_fail, mpi_close, mpi_time_allreduce,
};
