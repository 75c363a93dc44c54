#include "base/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#define IO_THREADS 8 /* enough to keep a disk busy; they mostly sleep */
#define TRUST      7 /* reads taken for cached after one that is: asking costs a tenth of copying 100 KB */

enum { UNDER_WAY, DONE };

/* A file that was opened a second time, for direct reads. */
struct direct {
    int fd, direct; /* direct -1: refused when opened      */
    bool refused;   /* or when read; others may be reading */
};

struct reader {
    struct reader_set *set;
    struct io_uring ring; /* where set->way is READER_URING */
    int trusted_fd, trust;
};

struct reader_set {
    struct reader_options o;
    enum reader_way way;
    int n;
    struct reader *reader; /* (n) */
    int n_ring;            /* of them with a ring */
    pthread_mutex_t lock;  /* guards all below */
    struct direct *direct;
    int n_direct;
    atomic_bool saw_direct;
    /* Without io_uring: */
    pthread_t thread[IO_THREADS];
    int n_thread;
    pthread_cond_t wanted, done;
    struct reader_read *first, **last; /* queue */
    bool closing;
};

/* ---- files --------------------------------------------------------------------------------------- */

/* The same file, even if another has its name by now. */
static int open_direct(int fd)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
}

static int direct_of(struct reader_set *s, int fd)
{
    int found = -1, i;
    if (s->o.buffered)
        return -1;
    pthread_mutex_lock(&s->lock);
    for (i = 0; i < s->n_direct && s->direct[i].fd != fd; i++)
        continue;
    if (i == s->n_direct) {
        s->direct = mem_grow(s->direct, (size_t)i + 1, sizeof(*s->direct));
        s->direct[s->n_direct++] = (struct direct){fd, open_direct(fd), false};
    }
    if (!s->direct[i].refused)
        found = s->direct[i].direct;
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* Of a file that accepted O_DIRECT when opened but not when read. */
static void refuse_direct(struct reader_set *s, int fd)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_direct; i++)
        if (s->direct[i].fd == fd && s->direct[i].direct >= 0) {
            close(
                s->direct[i].direct); /* reads under way hold the file themselves, or fail and are repeated */
            s->direct[i].direct = -1;
        }
    pthread_mutex_unlock(&s->lock);
}

static bool byte_is_cached(int fd, uint64_t offset)
{
    char byte;
    struct iovec v = {&byte, 1};
    return preadv2(fd, &v, 1, (off_t)offset, RWF_NOWAIT) == 1;
}

/* By its ends, and not each. A hole costs waiting, nothing else. */
static bool is_cached(struct reader *reader, const struct reader_read *r)
{
    if (reader->trust > 0 && reader->trusted_fd == r->fd) {
        reader->trust--;
        return true;
    }
    bool cached = byte_is_cached(r->fd, r->offset) && byte_is_cached(r->fd, r->offset + r->len - 1);
    reader->trusted_fd = r->fd;
    reader->trust = cached ? TRUST : 0;
    return cached;
}

/* ---- threads ------------------------------------------------------------------------------------- */

static long read_once(const struct reader_read *r)
{
    size_t done = 0;
    while (done < r->ask_len) {
        ssize_t n = pread(r->ask_fd, r->buffer + done, r->ask_len - done, (off_t)(r->ask_offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        done += (size_t)n;
        if (n == 0 || done % READER_ALIGN) /* the end of the file */
            break;
    }
    return (long)done;
}

static void *io_main(void *arg)
{
    struct reader_set *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->closing)
            pthread_cond_wait(&s->wanted, &s->lock);
        struct reader_read *r = s->first;
        if (!r)
            break;
        s->first = r->next;
        if (!s->first)
            s->last = &s->first;
        pthread_mutex_unlock(&s->lock);
        long got = read_once(r);
        pthread_mutex_lock(&s->lock);
        r->got = got;
        r->state = DONE;
        pthread_cond_broadcast(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void queue(struct reader_set *s, struct reader_read *r)
{
    pthread_mutex_lock(&s->lock);
    r->next = NULL;
    *s->last = r;
    s->last = &r->next;
    pthread_cond_signal(&s->wanted);
    pthread_mutex_unlock(&s->lock);
}

static void await_thread(struct reader_set *s, struct reader_read *r)
{
    pthread_mutex_lock(&s->lock);
    while (r->state != DONE)
        pthread_cond_wait(&s->done, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* ---- io_uring ------------------------------------------------------------------------------------ */

static bool submit(struct reader *reader, struct reader_read *r)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&reader->ring);
    if (!sqe)
        return false;
    io_uring_prep_read(sqe, r->ask_fd, r->buffer, (unsigned)r->ask_len, r->ask_offset);
    io_uring_sqe_set_data(sqe, r);
    int n;
    do
        n = io_uring_submit(&reader->ring);
    while (n == -EINTR || n == -EAGAIN);
    return true; /* even if it failed: then the entry waits for the next call */
}

static void await_ring(struct reader *reader, struct reader_read *r)
{
    while (r->state != DONE) {
        struct io_uring_cqe *cqe;
        io_uring_submit_and_wait(&reader->ring, 1); /* an interruption or a lack of memory: once more */
        while (io_uring_peek_cqe(&reader->ring, &cqe) == 0) {
            struct reader_read *done = io_uring_cqe_get_data(cqe);
            done->got = cqe->res;
            done->state = DONE;
            io_uring_cqe_seen(&reader->ring, cqe);
        }
    }
}

/* ---- reads --------------------------------------------------------------------------------------- */

void reader_start(struct reader *reader, struct reader_read *r)
{
    struct reader_set *s = reader->set;
    r->asked = false;
    r->data = r->hot ? r->hot : r->buffer;
    if (r->len == 0 || r->len > (1u << 30) || (!s->o.cold && is_cached(reader, r)))
        return;
    int direct = direct_of(s, r->fd);
    uint64_t lead = r->offset % READER_ALIGN;
    r->data = r->buffer + lead;
    r->ask_fd = direct >= 0 ? direct : r->fd;
    r->ask_offset = r->offset - lead;
    r->ask_len = (size_t)(lead + r->len + READER_ALIGN - 1) / READER_ALIGN * READER_ALIGN;
    r->got = 0;
    if (direct >= 0)
        atomic_store_explicit(&s->saw_direct, true, memory_order_relaxed);
    r->state = UNDER_WAY; /* from here on its thread's, or the ring's */
    r->asked = true;
    if (s->way == READER_THREADS)
        queue(s, r);
    else
        r->asked = submit(reader, r);
}

enum nyb_code reader_finish(struct reader *reader, struct reader_read *r, struct nyb_err *err)
{
    struct reader_set *s = reader->set;
    size_t have = 0;
    if (r->asked) {
        if (s->way == READER_THREADS)
            await_thread(s, r);
        else
            await_ring(reader, r);
        size_t lead = (size_t)(r->data - r->buffer);
        if (r->got > (long)lead)
            have = (size_t)r->got - lead < r->len ? (size_t)r->got - lead : r->len;
        if (r->got == -EINVAL && r->ask_fd != r->fd)
            refuse_direct(s, r->fd);
    }
    /* What is missing, for whatever reason: from the cache, or the error in plain words. */
    return file_read_at(r->fd, r->path, r->offset + have, r->data + have, r->len - have, err);
}

/* ---- opening ------------------------------------------------------------------------------------- */

static void start_rings(struct reader_set *s, int depth)
{
    if (s->way != READER_URING)
        return;
    for (; s->n_ring < s->n; s->n_ring++)
        if (io_uring_queue_init((unsigned)depth, &s->reader[s->n_ring].ring, 0) < 0)
            break;
    if (s->n_ring == s->n)
        return;
    while (s->n_ring > 0)
        io_uring_queue_exit(&s->reader[--s->n_ring].ring);
    s->way = READER_THREADS;
}

static enum nyb_code start_threads(struct reader_set *s, struct nyb_err *err)
{
    for (; s->way == READER_THREADS && s->n_thread < IO_THREADS; s->n_thread++) {
        int rc = pthread_create(&s->thread[s->n_thread], NULL, io_main, s);
        if (rc && s->n_thread == 0)
            return err_set(err, NYB_E_MEMORY, "cannot start a reading thread: %s", strerror(rc));
        if (rc)
            break;
    }
    return NYB_OK;
}

enum nyb_code reader_set_open(struct reader_set **out, int n, int depth, const struct reader_options *o,
                              struct nyb_err *err)
{
    struct reader_set *s = mem_alloc(1, sizeof(*s));
    s->o = *o;
    s->way = o->way;
    s->n = n;
    s->reader = mem_alloc((size_t)n, sizeof(*s->reader));
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wanted, NULL);
    pthread_cond_init(&s->done, NULL);
    for (int i = 0; i < n; i++)
        s->reader[i].set = s;
    start_rings(s, depth);
    enum nyb_code code = start_threads(s, err);
    if (code != NYB_OK) {
        reader_set_close(s);
        return code;
    }
    *out = s;
    return NYB_OK;
}

void reader_set_close(struct reader_set *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_broadcast(&s->wanted);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_thread; i++)
        pthread_join(s->thread[i], NULL);
    for (int i = 0; i < s->n_ring; i++)
        io_uring_queue_exit(&s->reader[i].ring);
    for (int i = 0; i < s->n_direct; i++)
        if (s->direct[i].direct >= 0)
            close(s->direct[i].direct);
    pthread_cond_destroy(&s->wanted);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->lock);
    free(s->direct);
    free(s->reader);
    free(s);
}

struct reader *reader_get(struct reader_set *s, int i)
{
    return &s->reader[i];
}

const char *reader_set_describe(const struct reader_set *s)
{
    bool direct = atomic_load(&s->saw_direct);
    if (s->way == READER_URING)
        return direct ? "io_uring, direct" : "io_uring";
    return direct ? "threads, direct" : "threads";
}
