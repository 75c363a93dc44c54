#include "model/update_ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/ranks.h"

/* The fixed part of a message; folder and names follow, each ended by a zero byte. */
struct head {
    uint64_t dummy_seed;
    int32_t n_names, staging, load_format, n_thread;
};

/* The update of a rank above 0. */
struct update_follower {
    struct model *m;
    uint8_t *message;
    const char **names;
    struct update_options options;
    struct update *update;
    struct update_facts facts;
    enum nyb_code code; /* of preparing and staging */
    struct nyb_err err;
    pthread_t thread; /* that prepares and stages, or closes */
    bool running;
};

/* ---- rank 0 -------------------------------------------------------------------------------------- */

static void drop_message(struct update_message *a)
{
    if (a)
        free(a->data);
    free(a);
}

void update_announce(struct model *m, const struct update_options *o)
{
    const struct head head = {.dummy_seed = o->dummy_seed,
                              .n_names = o->n_names,
                              .staging = (int32_t)o->staging,
                              .load_format = (int32_t)o->load_format,
                              .n_thread = o->n_thread};
    struct buf b = {0};
    buf_add(&b, &head, sizeof(head));
    buf_add(&b, o->folder, strlen(o->folder) + 1);
    for (int i = 0; i < o->n_names; i++)
        buf_add(&b, o->names[i], strlen(o->names[i]) + 1);
    struct update_message *a = mem_alloc(1, sizeof(*a));
    a->bytes = b.len;
    a->data = (uint8_t *)buf_steal(&b);
    drop_message(atomic_exchange(&m->message, a));
}

/* One that nobody has heard of needs no closing. */
void update_announce_close(struct model *m)
{
    struct update_message *unsaid = atomic_exchange(&m->message, NULL);
    if (!unsaid)
        atomic_store(&m->message_close, true);
    drop_message(unsaid);
}

/* ---- the others ---------------------------------------------------------------------------------- */

static void *prepare_main(void *arg)
{
    struct update_follower *f = arg;
    f->code = update_prepare(&f->update, f->m, &f->options, &f->facts, &f->err);
    if (f->code == NYB_OK)
        f->code = update_stage(f->update, &f->err);
    return NULL;
}

static void *close_main(void *arg)
{
    struct update_follower *f = arg;
    update_close(f->update);
    f->update = NULL;
    return NULL;
}

/* Where no thread can be started, the steps have to wait for it. */
static void start(struct update_follower *f, void *(*fn)(void *))
{
    f->running = pthread_create(&f->thread, NULL, fn, f) == 0;
    if (!f->running)
        fn(f);
}

static void settle(struct update_follower *f)
{
    if (f->running)
        pthread_join(f->thread, NULL);
    f->running = false;
}

static void discard(struct update_follower *f)
{
    if (!f)
        return;
    settle(f);
    update_close(f->update);
    free(f->names);
    free(f->message);
    free(f);
}

void update_follow_prepare(struct model *m, const uint8_t *data, size_t bytes)
{
    struct head head;
    discard(m->follower);
    struct update_follower *f = m->follower = mem_alloc(1, sizeof(*f));
    ASSERT(bytes > sizeof(head) && data[bytes - 1] == 0);
    memcpy(&head, data, sizeof(head));
    f->m = m;
    f->message = mem_alloc(bytes, 1);
    memcpy(f->message, data, bytes);
    f->names = mem_alloc((size_t)head.n_names + 1, sizeof(*f->names));
    const char *at = (const char *)f->message + sizeof(head);
    f->options = (struct update_options){.folder = at,
                                         .names = f->names,
                                         .n_names = head.n_names,
                                         .staging = (enum update_staging)head.staging,
                                         .load_format = (enum load_format)head.load_format,
                                         .dummy_seed = head.dummy_seed,
                                         .n_thread = head.n_thread};
    for (int i = 0; i < head.n_names; i++) {
        at += strlen(at) + 1;
        f->names[i] = at;
    }
    start(f, prepare_main);
}

/* Whatever the outcome, all ranks have it in common. */
void update_follow_commit(struct model *m)
{
    struct update_follower *f = m->follower;
    struct nyb_err err = {0};
    ASSERT(f); /* rank 0 announces before it commits */
    settle(f);
    if (f->code == NYB_OK)
        f->code = update_commit(f->update, &err);
    else
        f->code = ranks_agree_slowly(m->comm, f->code, &f->err);
}

void update_follow_rollback(struct model *m)
{
    struct nyb_err err;
    enum nyb_code code = update_rollback(m->follower->update, &err);
    m->follower->code = code;
}

void update_follow_close(struct model *m)
{
    if (!m->follower)
        return;
    settle(m->follower);
    start(m->follower, close_main);
}

void update_end(struct model *m)
{
    discard(m->follower);
    m->follower = NULL;
    drop_message(atomic_exchange(&m->message, NULL));
}
