#include "checkpoint/headers.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#define THREADS 8 /* at most */
#define MOST \
    ((uint64_t)32 << 20) /* bytes of headers under way: JSON that is read whole takes some 30 for each */

enum state { WAITING, BEGUN, DONE, TAKEN };

struct header {
    enum state state;
    struct ckpt_file file;
    struct safetensors st;
    enum nyb_code code;
    struct nyb_err err;
};

struct headers {
    int n, next;
    int n_beside;          /* threads that each header has beside the one that reads it */
    uint64_t under_way;    /* bytes of headers that are being parsed */
    struct header *header; /* (n) */
    pthread_mutex_t lock;  /* guards the above and states; what is DONE is nobody's until it is TAKEN */
    pthread_cond_t done;
    pthread_t thread[THREADS];
    int n_thread;
};

/* O_NONBLOCK: opening a pipe must not wait for its other end; regular files ignore it. */
static enum nyb_code open_file(struct ckpt_file *f, struct nyb_err *err)
{
    struct stat st;
    if (f->fd < 0)
        f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0)
        return err_at(err, errno == ENOENT ? NYB_E_NOT_FOUND : NYB_E_IO, f->path, -1, "cannot open: %s",
                      strerror(errno));
    if (fstat(f->fd, &st) < 0)
        return err_at(err, NYB_E_IO, f->path, -1, "cannot stat: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_at(err, NYB_E_FORMAT, f->path, -1, "is not a regular file");
    f->size = (uint64_t)st.st_size;
    return NYB_OK;
}

static enum nyb_code read_header(struct ckpt_file *f, struct safetensors *st, int n_thread,
                                 struct nyb_err *err)
{
    TRY(open_file(f, err));
    return safetensors_read(st, f->fd, f->path, f->size, n_thread, err);
}

/* Locked on entry and on exit. Long headers wait for others, so that the memory of many is not needed at
 * once; one that is longer than all may be is parsed alone. */
static void do_header(struct headers *h, struct header *one)
{
    one->state = BEGUN;
    pthread_mutex_unlock(&h->lock);
    one->code = open_file(&one->file, &one->err);
    uint64_t bytes = one->code == NYB_OK ? safetensors_header_bytes(one->file.fd) : 0;
    pthread_mutex_lock(&h->lock);
    while (h->under_way > 0 && h->under_way + bytes > MOST)
        pthread_cond_wait(&h->done, &h->lock);
    h->under_way += bytes;
    pthread_mutex_unlock(&h->lock);
    if (one->code == NYB_OK)
        one->code = read_header(&one->file, &one->st, h->n_beside, &one->err);
    pthread_mutex_lock(&h->lock);
    h->under_way -= bytes;
    one->state = DONE;
    pthread_cond_broadcast(&h->done);
}

static void *run(void *arg)
{
    struct headers *h = arg;
    pthread_mutex_lock(&h->lock);
    while (h->next < h->n) {
        struct header *one = &h->header[h->next++];
        if (one->state == WAITING)
            do_header(h, one);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

void headers_start(struct headers **out, const char *folder, const struct index_set *set, int n_thread)
{
    struct headers *h = mem_alloc(1, sizeof(*h));
    h->n = set->n_file;
    h->n_beside = h->n > 0 && n_thread > h->n ? n_thread / h->n - 1 : 0;
    h->header = mem_alloc((size_t)h->n + 1, sizeof(*h->header));
    for (int i = 0; i < h->n; i++)
        h->header[i].file = (struct ckpt_file){.path = path_join(folder, set->file[i]), .fd = -1};
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->done, NULL);
    /* Where there are no threads to be had, headers are parsed as they are taken. */
    while (h->n_thread < THREADS && h->n_thread < n_thread && h->n_thread < h->n &&
           pthread_create(&h->thread[h->n_thread], NULL, run, h) == 0)
        h->n_thread++;
    *out = h;
}

enum nyb_code headers_take(struct headers *h, struct ckpt_file *file, struct safetensors *st,
                           struct nyb_err *err)
{
    struct header *one = NULL;
    for (int i = 0; i < h->n && !one; i++)
        one = strcmp(h->header[i].file.path, file->path) == 0 ? &h->header[i] : NULL;
    if (!one || file->fd >= 0)
        return read_header(file, st, h->n_beside, err);
    pthread_mutex_lock(&h->lock);
    if (one->state == WAITING)
        do_header(h, one);
    while (one->state == BEGUN)
        pthread_cond_wait(&h->done, &h->lock);
    ASSERT(one->state == DONE);
    one->state = TAKEN;
    pthread_mutex_unlock(&h->lock);
    file->fd = one->file.fd;
    file->size = one->file.size;
    *st = one->st;
    if (one->code != NYB_OK && err)
        *err = one->err;
    return one->code;
}

void headers_stop(struct headers *h)
{
    pthread_mutex_lock(&h->lock);
    h->next = h->n;
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < h->n_thread; i++)
        pthread_join(h->thread[i], NULL);
    for (int i = 0; i < h->n; i++) {
        struct header *one = &h->header[i];
        if (one->state == DONE && one->code == NYB_OK)
            safetensors_free(&one->st);
        if (one->state == DONE && one->file.fd >= 0)
            close(one->file.fd);
        free(one->file.path);
    }
    pthread_cond_destroy(&h->done);
    pthread_mutex_destroy(&h->lock);
    free(h->header);
    free(h);
}
