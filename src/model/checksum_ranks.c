#include "model/checksum_ranks.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "model/checksum_sum.h"
#include "model/ranks.h"

/* A rank's part in one checksum. */
struct checksum_worker {
    const struct model *m;
    int n_thread;
    pthread_t thread;
    bool has_thread;
    bool holds; /* rank 0: it keeps updates from beginning; not where one is open already */
    atomic_bool done;
    struct checksum_parts parts;
    enum nyb_code code;
    struct nyb_err err;
};

/* ---- one rank's sums ----------------------------------------------------------------------------- */

static void *work(void *arg)
{
    struct checksum_worker *w = arg;
    w->code = checksum_sum(&w->parts, &w->m->weights, NULL, w->n_thread, &w->err);
    atomic_store(&w->done, true);
    return NULL;
}

static void settle(struct checksum_worker *w)
{
    if (w->has_thread)
        pthread_join(w->thread, NULL);
    w->has_thread = false;
}

void checksum_end(struct model *m)
{
    struct checksum_worker *w = m->checksum;
    if (!w)
        return;
    settle(w);
    free(w->parts.part);
    free(w);
    m->checksum = NULL;
}

static void start(struct model *m, int n_thread)
{
    checksum_end(m); /* of one that rank 0 has dropped */
    struct checksum_worker *w = m->checksum = mem_alloc(1, sizeof(*w));
    w->m = m;
    w->n_thread = n_thread;
    w->has_thread = pthread_create(&w->thread, NULL, work, w) == 0;
    if (!w->has_thread) /* then the steps have to wait for it */
        work(w);
}

/* ---- between ranks ------------------------------------------------------------------------------- */

/* What a rank brings: its parts as bytes. */
struct offer {
    uint64_t bytes;
    int32_t n_part, code;
    struct nyb_err err;
};

static struct offer write_parts(const struct checksum_worker *w, struct buf *b)
{
    struct offer own = {.n_part = w->parts.n, .code = (int32_t)w->code, .err = w->err};
    for (int i = 0; i < w->parts.n; i++) {
        struct checksum_part p = w->parts.part[i];
        const char *name = p.name;
        p.name = NULL; /* it follows */
        buf_add(b, &p, sizeof(p));
        buf_add(b, name, strlen(name) + 1);
    }
    own.bytes = b->len;
    return own;
}

/* Append them; names stay in data. */
static void read_parts(struct checksum_parts *to, const struct offer *o, const char *data)
{
    const char *at = data;
    for (int i = 0; i < o->n_part; i++) {
        struct checksum_part *p = &to->part[to->n++];
        memcpy(p, at, sizeof(*p));
        at += sizeof(*p);
        p->name = at;
        at += strlen(at) + 1;
    }
    ASSERT((uint64_t)(at - data) == o->bytes);
}

/* Everybody's offer and, on rank 0, what the others offer; data (comm_size). */
static enum nyb_code exchange(struct model *m, struct offer *all, char **data, struct nyb_err *err)
{
    struct buf own = {0};
    settle(m->checksum);
    const struct offer mine = write_parts(m->checksum, &own);
    enum nyb_code code = NYB_OK;
    bool here = ranks_gather(m, &mine, sizeof(mine), all);
    for (int r = 0; r < comm_size(m->comm) && here && code == NYB_OK; r++) {
        code = (enum nyb_code)all[r].code;
        if (code != NYB_OK && err)
            *err = all[r].err;
    }
    for (int r = 1; r < comm_size(m->comm) && here && code == NYB_OK; r++) {
        if (comm_rank(m->comm) == 0)
            data[r] = mem_alloc(all[r].bytes + 1, 1);
        here = ranks_collect(m->comm, r, own.data, data[r], all[r].bytes);
    }
    buf_free(&own);
    return here ? code : comm_status(m->comm, err);
}

static enum nyb_code merge(struct checksum *out, struct model *m, const struct offer *all, char *const *data,
                           struct nyb_err *err)
{
    struct checksum_parts parts = {0}, *own = &m->checksum->parts;
    size_t n = 0;
    for (int r = 0; r < comm_size(m->comm); r++)
        n += (size_t)all[r].n_part;
    parts.part = mem_alloc(n, sizeof(*parts.part));
    memcpy(parts.part, own->part, (size_t)own->n * sizeof(*own->part));
    parts.n = own->n;
    for (int r = 1; r < comm_size(m->comm); r++)
        read_parts(&parts, &all[r], data[r]);
    enum nyb_code code = checksum_merge(out, &parts, err);
    free(parts.part);
    return code;
}

static enum nyb_code gather(struct checksum *out, struct model *m, struct nyb_err *err)
{
    size_t n = (size_t)comm_size(m->comm);
    struct offer *all = mem_alloc(n, sizeof(*all));
    char **data = mem_alloc(n, sizeof(*data));
    enum nyb_code code = exchange(m, all, data, err);
    if (code == NYB_OK && comm_rank(m->comm) == 0)
        code = merge(out, m, all, data, err);
    for (size_t r = 0; r < n; r++)
        free(data[r]);
    free(data);
    free(all);
    return code;
}

/* Into all (comm_size). */
static bool ask(struct model *m, int32_t *all)
{
    const int32_t done = atomic_load(&m->checksum->done);
    return ranks_gather(m, &done, sizeof(done), all);
}

/* ---- the others ---------------------------------------------------------------------------------- */

void checksum_follow_start(struct model *m, const uint8_t *data, size_t bytes)
{
    int32_t n_thread;
    ASSERT(bytes == sizeof(n_thread));
    memcpy(&n_thread, data, sizeof(n_thread));
    start(m, n_thread);
}

void checksum_follow_ask(struct model *m, const uint8_t *data, size_t bytes)
{
    int32_t all[COMM_RANK_MAX];
    (void)data;
    (void)bytes;
    (void)ask(m, all); /* a lost rank shows in comm_status */
}

void checksum_follow_give(struct model *m, const uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
    (void)gather(NULL, m, NULL);
    checksum_end(m);
}

/* ---- rank 0 -------------------------------------------------------------------------------------- */

void checksum_start(struct model *m, int n_thread)
{
    const int32_t n = n_thread;
    ranks_do(m, TASK_CHECKSUM_START, &n, sizeof(n));
    start(m, n_thread);
    m->checksum->holds = !atomic_exchange(&m->updating, true);
}

enum nyb_code checksum_poll(struct model *m, bool *done, struct nyb_err *err)
{
    int32_t all[COMM_RANK_MAX];
    ranks_do(m, TASK_CHECKSUM_ASK, "", 0);
    *done = true;
    if (!ask(m, all))
        return comm_status(m->comm, err);
    for (int r = 0; r < comm_size(m->comm); r++)
        *done = *done && all[r];
    return NYB_OK;
}

void checksum_drop(struct model *m)
{
    if (!m->checksum) /* finished, well or not */
        return;
    bool holds = m->checksum->holds;
    checksum_end(m);
    if (holds)
        atomic_store(&m->updating, false);
}

enum nyb_code checksum_finish(struct checksum *out, struct model *m, struct nyb_err *err)
{
    *out = (struct checksum){0};
    ranks_do(m, TASK_CHECKSUM_GIVE, "", 0);
    enum nyb_code code = gather(out, m, err);
    checksum_drop(m);
    return code;
}

enum nyb_code checksum_model(struct checksum *out, struct model *m, int n_thread, struct nyb_err *err)
{
    const struct timespec pause = {.tv_nsec = 200000};
    bool done = false;
    *out = (struct checksum){0};
    checksum_start(m, n_thread);
    enum nyb_code code = checksum_poll(m, &done, err);
    while (code == NYB_OK && !done) {
        nanosleep(&pause, NULL);
        code = checksum_poll(m, &done, err);
    }
    if (code == NYB_OK)
        return checksum_finish(out, m, err);
    checksum_drop(m);
    return code;
}
