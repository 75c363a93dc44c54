#include "model/update_ranks.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/ranks.h"
#include "model/update_internal.h"
#include "model/upload.h"

/* The fixed part of a message; the folder or where an upload is kept, and the names follow, each ended by a
 * zero byte. */
struct head {
    uint64_t dummy_seed;
    uint64_t upload_bytes; /* UINT64_MAX: from a folder */
    int32_t n_names, staging, load_format, n_thread, in_memory;
};

enum phase { NOTHING, PREPARED, STAGED, CLOSED };

/* The update of a rank above 0. */
struct update_follower {
    struct model *m;
    struct update_follower *before; /* the last update's, which may still be closing; or NULL */
    uint8_t *message;
    const char **names;
    struct update_options options;
    struct update_facts facts;
    struct update_upload *upload; /* NULL: from a folder */
    uint64_t upload_bytes;        /* that it will have   */
    pthread_t thread;             /* that does what is wanted, once all of an upload is there */
    bool has_begun, has_thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    enum phase wanted, reached;
    struct update *update;
    enum nyb_code code; /* of what has been done; the first failure */
    struct nyb_err err;
};

/* ---- rank 0 -------------------------------------------------------------------------------------- */

static void drop_message(struct update_message *a)
{
    if (a)
        free(a->data);
    free(a);
}

static struct update_message *write_message(const struct update_options *o)
{
    const char *dir = o->upload ? upload_dir(o->upload) : NULL;
    const struct head head = {.dummy_seed = o->dummy_seed,
                              .upload_bytes = o->upload ? upload_bytes(o->upload) : UINT64_MAX,
                              .n_names = o->n_names,
                              .staging = (int32_t)o->staging,
                              .load_format = (int32_t)o->load_format,
                              .n_thread = o->n_thread,
                              .in_memory = o->upload && !dir};
    const char *where = o->folder ? o->folder : dir ? dir : "";
    struct buf b = {0};
    buf_add(&b, &head, sizeof(head));
    buf_add(&b, where, strlen(where) + 1);
    for (int i = 0; i < o->n_names; i++)
        buf_add(&b, o->names[i], strlen(o->names[i]) + 1);
    struct update_message *a = mem_alloc(1, sizeof(*a));
    a->bytes = b.len;
    a->data = (uint8_t *)buf_steal(&b);
    return a;
}

void update_announce(struct model *m, const struct update_options *o)
{
    struct update_message *a = write_message(o);
    pthread_mutex_lock(&m->word.lock);
    struct update_message *before = m->word.prepare;
    m->word.prepare = a;
    pthread_mutex_unlock(&m->word.lock);
    drop_message(before);
}

void update_announce_stage(struct model *m)
{
    pthread_mutex_lock(&m->word.lock);
    m->word.stage = true;
    pthread_mutex_unlock(&m->word.lock);
}

/* One that nobody has heard of needs no closing. */
void update_announce_close(struct model *m)
{
    pthread_mutex_lock(&m->word.lock);
    struct update_message *unsaid = m->word.prepare;
    m->word.prepare = NULL;
    m->word.stage = false;
    m->word.close |= !unsaid;
    pthread_mutex_unlock(&m->word.lock);
    drop_message(unsaid);
}

void update_say(struct model *m)
{
    pthread_mutex_lock(&m->word.lock);
    bool close = m->word.close, stage = m->word.stage;
    struct update_message *prepare = m->word.prepare;
    m->word.close = m->word.stage = false;
    m->word.prepare = NULL;
    pthread_mutex_unlock(&m->word.lock);
    if (close)
        ranks_do(m, TASK_UPDATE_CLOSE, "", 0);
    if (prepare)
        ranks_do(m, TASK_UPDATE_PREPARE, prepare->data, prepare->bytes);
    if (stage)
        ranks_do(m, TASK_UPDATE_STAGE, "", 0);
    drop_message(prepare);
}

bool update_ask(struct model *m, struct update_status *all)
{
    const struct update_status own = all[0];
    ranks_do(m, TASK_UPDATE_ASK, "", 0);
    return comm_gather(m->comm, &own, sizeof(own), all);
}

/* ---- the others: in a thread of its own ---------------------------------------------------------- */

static void settle_code(struct update_follower *f, enum nyb_code code, const struct nyb_err *err)
{
    pthread_mutex_lock(&f->lock);
    if (f->code == NYB_OK && code != NYB_OK) {
        f->code = code;
        f->err = *err;
    }
    pthread_mutex_unlock(&f->lock);
}

static void prepare(struct update_follower *f)
{
    struct nyb_err err = {0};
    struct update *u;
    if (f->code != NYB_OK)
        return;
    enum nyb_code code = update_prepare(&u, f->m, &f->options, &f->facts, &err);
    pthread_mutex_lock(&f->lock);
    f->update = u;
    pthread_mutex_unlock(&f->lock);
    settle_code(f, code, &err);
}

static void stage(struct update_follower *f)
{
    struct nyb_err err = {0};
    if (f->code == NYB_OK)
        settle_code(f, update_stage(f->update, &err), &err);
}

static void close_update(struct update_follower *f)
{
    pthread_mutex_lock(&f->lock);
    struct update *u = f->update;
    f->update = NULL;
    pthread_mutex_unlock(&f->lock);
    update_close(u);
    upload_close(f->upload);
    f->upload = NULL;
}

/* The next thing that is wanted: closing overtakes the others. */
static void advance(struct update_follower *f)
{
    enum phase next = f->wanted == CLOSED ? CLOSED : f->reached + 1;
    pthread_mutex_unlock(&f->lock);
    if (next == PREPARED)
        prepare(f);
    else if (next == STAGED)
        stage(f);
    else
        close_update(f);
    pthread_mutex_lock(&f->lock);
    f->reached = next;
    pthread_cond_broadcast(&f->changed);
}

static void discard(struct update_follower *f);

/* There is one update at a time, and closing one may take longer than this rank may be silent. */
static void await_the_last(struct update_follower *f)
{
    discard(f->before);
    f->before = NULL;
}

static void *work(void *arg)
{
    struct update_follower *f = arg;
    await_the_last(f);
    pthread_mutex_lock(&f->lock);
    while (f->reached < CLOSED) {
        if (f->reached < f->wanted)
            advance(f);
        else
            pthread_cond_wait(&f->changed, &f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* ---- the others: the thread that follows --------------------------------------------------------- */

/* Where no thread can be started, the steps have to wait for it. */
static void want(struct update_follower *f, enum phase phase)
{
    pthread_mutex_lock(&f->lock);
    if (f->wanted < phase)
        f->wanted = phase;
    if (f->wanted == CLOSED && f->update)
        update_call_off(f->update);
    pthread_cond_broadcast(&f->changed);
    while (f->has_begun && !f->has_thread && f->reached < f->wanted)
        advance(f);
    pthread_mutex_unlock(&f->lock);
}

static void begin(struct update_follower *f)
{
    f->has_thread = pthread_create(&f->thread, NULL, work, f) == 0;
    f->has_begun = true;
    if (!f->has_thread)
        await_the_last(f);
    want(f, PREPARED);
}

static void wait_until(struct update_follower *f, enum phase phase)
{
    pthread_mutex_lock(&f->lock);
    while (f->reached < phase)
        pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

static void discard(struct update_follower *f)
{
    if (!f)
        return;
    want(f, CLOSED);
    if (f->has_thread)
        pthread_join(f->thread, NULL);
    if (f->reached < CLOSED) /* it never began */
        close_update(f);
    await_the_last(f);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f->names);
    free(f->message);
    free(f);
}

static const char *read_strings(struct update_follower *f, int n_names)
{
    const char *where = (const char *)f->message + sizeof(struct head), *at = where;
    f->names = mem_alloc((size_t)n_names + 1, sizeof(*f->names));
    for (int i = 0; i < n_names; i++)
        f->names[i] = at += strlen(at) + 1;
    return where;
}

void update_follow_prepare(struct model *m, const uint8_t *data, size_t bytes)
{
    struct head head;
    struct nyb_err err = {0};
    if (m->follower)
        want(m->follower, CLOSED);
    struct update_follower *f = mem_alloc(1, sizeof(*f));
    ASSERT(bytes > sizeof(head) && data[bytes - 1] == 0);
    memcpy(&head, data, sizeof(head));
    f->m = m;
    f->before = m->follower;
    m->follower = f;
    f->message = mem_alloc(bytes, 1);
    memcpy(f->message, data, bytes);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    const char *where = read_strings(f, head.n_names);
    bool upload = head.upload_bytes != UINT64_MAX;
    f->upload_bytes = upload ? head.upload_bytes : 0;
    if (upload)
        settle_code(f, upload_open(&f->upload, head.in_memory ? NULL : where, f->upload_bytes, &err), &err);
    f->options = (struct update_options){.folder = upload ? NULL : where,
                                         .upload = f->upload,
                                         .names = f->names,
                                         .n_names = head.n_names,
                                         .staging = (enum update_staging)head.staging,
                                         .load_format = (enum load_format)head.load_format,
                                         .dummy_seed = head.dummy_seed,
                                         .n_thread = head.n_thread,
                                         .fault = m->follow_fault,
                                         .fault_arg = m->follow_fault_arg};
    if (!f->upload_bytes || f->code != NYB_OK)
        begin(f);
}

/* What cannot be kept fails the update when rank 0 asks after it. */
void update_follow_piece(struct model *m, const uint8_t *data, size_t bytes)
{
    struct update_follower *f = m->follower;
    struct nyb_err err = {0};
    if (f->has_begun)
        return;
    settle_code(f, upload_write(f->upload, data, bytes, &err), &err);
    if (f->code != NYB_OK || upload_bytes(f->upload) == f->upload_bytes)
        begin(f);
}

void update_follow_stage(struct model *m, const uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
    want(m->follower, STAGED);
}

void update_follow_ask(struct model *m, const uint8_t *data, size_t bytes)
{
    struct update_follower *f = m->follower;
    struct update_status own = {0}, *all = mem_alloc((size_t)comm_size(m->comm), sizeof(*all));
    (void)data;
    (void)bytes;
    pthread_mutex_lock(&f->lock);
    own.phase = (int32_t)f->reached;
    own.code = (int32_t)f->code;
    own.err = f->err;
    if (f->reached >= PREPARED)
        own.staged_bytes = f->facts.staged_bytes;
    pthread_mutex_unlock(&f->lock);
    (void)comm_gather(m->comm, &own, sizeof(own), all); /* a lost rank shows in comm_status */
    free(all);
}

/* Whatever the outcome, all ranks have it in common. */
void update_follow_commit(struct model *m, const uint8_t *data, size_t bytes)
{
    struct update_follower *f = m->follower;
    struct nyb_err err = {0};
    (void)data;
    (void)bytes;
    ASSERT(f && f->has_begun); /* rank 0 has announced it, and an upload is whole */
    wait_until(f, STAGED);
    if (f->code == NYB_OK)
        f->code = update_commit(f->update, &err);
    else
        f->code = ranks_agree_slowly(m->comm, f->code, &f->err);
}

void update_follow_rollback(struct model *m, const uint8_t *data, size_t bytes)
{
    struct nyb_err err;
    (void)data;
    (void)bytes;
    m->follower->code = update_rollback(m->follower->update, &err);
}

void update_follow_close(struct model *m, const uint8_t *data, size_t bytes)
{
    (void)data;
    (void)bytes;
    if (m->follower)
        want(m->follower, CLOSED);
}

bool update_follow_is_over(struct model *m)
{
    struct update_follower *f = m->follower;
    while (f &&
           !f->has_begun) /* an upload that was closed before it was whole; `before` is nobody else's yet */
        f = f->before;
    if (!f)
        return true;
    pthread_mutex_lock(&f->lock);
    bool over = f->reached == CLOSED;
    pthread_mutex_unlock(&f->lock);
    return over;
}

/* ---- any rank ------------------------------------------------------------------------------------ */

void update_follow_fault(struct model *m,
                         enum nyb_code (*fault)(void *arg, enum update_point point, int64_t count), void *arg)
{
    m->follow_fault = fault;
    m->follow_fault_arg = arg;
}

void update_begin(struct model *m)
{
    pthread_mutex_init(&m->word.lock, NULL);
}

void update_end(struct model *m)
{
    discard(m->follower);
    m->follower = NULL;
    drop_message(m->word.prepare);
    m->word.prepare = NULL;
    pthread_mutex_destroy(&m->word.lock);
}
