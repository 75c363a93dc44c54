#include "engine/control.h"

#include "base/clock.h"

void control_open(struct control *c)
{
    *c = (struct control){0};
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
}

void control_free(struct control *c)
{
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
}

enum nyb_code control_call(struct control *c, struct control_op *op, struct bell *engine, struct nyb_err *err)
{
    pthread_mutex_lock(&c->lock);
    op->next = NULL;
    op->state = c->closed ? CONTROL_REFUSED : CONTROL_QUEUED;
    if (!c->closed) {
        struct control_op **at = &c->first;
        while (*at)
            at = &(*at)->next;
        *at = op;
        atomic_fetch_add(&c->n, 1);
        bell_ring(engine);
    }
    while (op->state == CONTROL_QUEUED)
        pthread_cond_wait(&c->changed, &c->lock);
    bool refused = op->state == CONTROL_REFUSED;
    pthread_mutex_unlock(&c->lock);
    return refused ? err_set(err, NYB_E_CLOSED, "the engine is shutting down") : NYB_OK;
}

bool control_waiting(const struct control *c)
{
    return atomic_load(&c->n) > 0;
}

/* Take out the first that is ready. Called with the lock. */
static struct control_op *take(struct control *c, struct step *s)
{
    uint64_t now = clock_ns();
    for (struct control_op **at = &c->first; *at; at = &(*at)->next) {
        struct control_op *op = *at;
        if (op->ready && !op->ready(s, op->arg) && (op->deadline_ns == 0 || now < op->deadline_ns))
            continue;
        *at = op->next;
        return op;
    }
    return NULL;
}

void control_serve(struct control *c, struct step *s)
{
    if (!control_waiting(c))
        return;
    pthread_mutex_lock(&c->lock);
    for (struct control_op *op; (op = take(c, s));) {
        pthread_mutex_unlock(&c->lock); /* others may post meanwhile */
        op->run(s, op->arg);
        pthread_mutex_lock(&c->lock);
        atomic_fetch_sub(&c->n, 1);
        op->state = CONTROL_DONE;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
}

void control_close(struct control *c)
{
    pthread_mutex_lock(&c->lock);
    c->closed = true;
    for (struct control_op *op = c->first; op; op = op->next)
        op->state = CONTROL_REFUSED;
    c->first = NULL;
    atomic_store(&c->n, 0);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}
