#include "base/crew.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

struct crew {
    atomic_int next;
    int n_item;
    void (*do_item)(void *arg, int item);
    void *arg;
};

static void *work(void *arg)
{
    struct crew *c = arg;
    for (int i; (i = atomic_fetch_add(&c->next, 1)) < c->n_item;)
        c->do_item(c->arg, i);
    return NULL;
}

void crew_run(int n_item, int n_thread, void (*do_item)(void *arg, int item), void *arg)
{
    struct crew c = {.n_item = n_item, .do_item = do_item, .arg = arg};
    pthread_t thread[CREW_MOST];
    int n = 0;
    while (n < CREW_MOST && n < n_thread && n + 1 < n_item && pthread_create(&thread[n], NULL, work, &c) == 0)
        n++;
    work(&c);
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
}
