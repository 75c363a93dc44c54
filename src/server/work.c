#include "server/work.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/exchange.h"
#include "server/route.h"

struct work {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct server *s;
    struct exchange *first, *last;
    struct exchange *done;
    bool closing;
    int n_thread;
    pthread_t *thread; /* (n_thread) */
};

/* NULL: time to go. */
static struct exchange *take(struct work *w)
{
    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->closing)
        pthread_cond_wait(&w->more, &w->lock);
    struct exchange *x = w->first;
    if (x)
        w->first = x->next_work;
    if (!w->first)
        w->last = NULL;
    pthread_mutex_unlock(&w->lock);
    return x;
}

static void *worker(void *arg)
{
    struct work *w = arg;
    for (struct exchange *x; (x = take(w));) {
        x->route->run(x);
        pthread_mutex_lock(&w->lock);
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
    pthread_mutex_lock(&w->lock);
    if (w->last)
        w->last->next_work = x;
    else
        w->first = x;
    w->last = x;
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
