#include "server/work.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/exchange.h"
#include "server/route.h"

#define LONG_BYTES 65536 /* of a body that may take a worker tens of milliseconds, or seconds */

struct queue {
    struct exchange *first, *last;
};

/* Long bodies never hold all workers, so that short ones do not wait for a megabyte to be tokenized. */
struct work {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct server *s;
    struct queue queue[2]; /* short and long ones, each in the order of their numbers */
    uint64_t n_added;
    int n_long; /* that are being worked on */
    struct exchange *done;
    bool closing;
    int n_worker;      /* that there are, or are to be */
    int n_thread;      /* started; the opener's alone  */
    pthread_t *thread; /* (n_thread) */
};

static bool is_long(const struct exchange *x)
{
    return x->work_bytes >= LONG_BYTES;
}

/* The one that came first of those that may run now; NULL: none. */
static struct queue *next_queue(struct work *w)
{
    struct queue *s = &w->queue[0], *l = &w->queue[1];
    bool may = w->closing || w->n_long + 1 < w->n_worker || w->n_long == 0;
    if (!l->first || !may)
        return s->first ? s : NULL;
    return s->first && s->first->work_number < l->first->work_number ? s : l;
}

/* NULL: time to go. */
static struct exchange *take(struct work *w)
{
    struct queue *q;
    pthread_mutex_lock(&w->lock);
    while (!(q = next_queue(w)) && !w->closing)
        pthread_cond_wait(&w->more, &w->lock);
    struct exchange *x = q ? q->first : NULL;
    if (x) {
        q->first = x->next_work;
        if (!q->first)
            q->last = NULL;
        w->n_long += is_long(x);
    }
    pthread_mutex_unlock(&w->lock);
    return x;
}

static void *worker(void *arg)
{
    struct work *w = arg;
    for (struct exchange *x; (x = take(w));) {
        x->route->run(x);
        pthread_mutex_lock(&w->lock);
        if (is_long(x)) {
            w->n_long--;
            pthread_cond_signal(&w->more); /* another one may run */
        }
        x->next_work = w->done;
        w->done = x;
        pthread_mutex_unlock(&w->lock);
        loop_wake(w->s); /* x is the loop's now */
    }
    return NULL;
}

enum nyb_code work_open(struct work **out, struct server *s, int n_thread, struct nyb_err *err)
{
    struct work *w = mem_alloc(1, sizeof(*w));
    w->s = s;
    w->n_worker = n_thread;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    w->thread = mem_alloc((size_t)n_thread, sizeof(*w->thread));
    for (; w->n_thread < n_thread; w->n_thread++) {
        int failed = pthread_create(&w->thread[w->n_thread], NULL, worker, w);
        if (failed) {
            work_close(w);
            return err_set(err, NYB_E_MEMORY, "cannot start a thread: %s", strerror(failed));
        }
    }
    *out = w;
    return NYB_OK;
}

void work_add(struct work *w, struct exchange *x)
{
    x->next_work = NULL;
    x->work_bytes = x->body.len;
    struct queue *q = &w->queue[is_long(x)];
    pthread_mutex_lock(&w->lock);
    x->work_number = w->n_added++;
    if (q->last)
        q->last->next_work = x;
    else
        q->first = x;
    q->last = x;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}

struct exchange *work_take_done(struct work *w)
{
    pthread_mutex_lock(&w->lock);
    struct exchange *done = w->done;
    w->done = NULL;
    pthread_mutex_unlock(&w->lock);
    return done;
}

void work_close(struct work *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_thread; i++)
        pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w->thread);
    free(w);
}
