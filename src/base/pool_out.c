/* Which workers sit out for a while, because they cost the caller more time than they bring. */
#include "base/mem.h"
#include "base/pool_state.h"

/* Shorter waits for a thread without a core are not worth a reaction. */
#define LOSS_MIN_NS 50000

static void send_out(struct pool *p, struct worker *w, uint64_t until)
{
    if (atomic_load(&w->out))
        return;
    w->until = until;
    p->next_return = until < p->next_return ? until : p->next_return;
    p->n_helper--;
    atomic_store(&w->out, 1);
}

static void take_back(struct pool *p, struct worker *w)
{
    if (!atomic_load(&w->out))
        return;
    p->n_helper++;
    sideline_return(&p->sideline, &w->record);
    atomic_store(&w->out, 0);
    pool_wake(&w->out, 1);
}

void pool_out_take_back_due(struct pool *p, uint64_t now)
{
    p->next_return = POOL_FOREVER;
    for (int i = 0; i < p->n_thread - 1; i++) {
        struct worker *w = &p->worker[i];
        if (!atomic_load(&w->out))
            continue;
        if (w->until <= now)
            take_back(p, w);
        else if (w->until < p->next_return)
            p->next_return = w->until;
    }
}

void pool_use(struct pool *p, int n)
{
    ASSERT(n >= 1 && n <= p->n_thread);
    for (int i = 0; i < p->n_thread - 1; i++) {
        struct worker *w = &p->worker[i];
        if (i + 1 < n)
            take_back(p, w);
        else
            send_out(p, w, POOL_FOREVER);
        w->until = POOL_FOREVER; /* also of one that sat out already */
    }
}

/* Nobody in particular is to blame: the last one goes, and leaves its core to the caller. */
static struct worker *last_helper(struct pool *p)
{
    for (int i = p->n_thread - 2; i >= 0; i--)
        if (!atomic_load(&p->worker[i].out))
            return &p->worker[i];
    return NULL;
}

void pool_out_settle(struct pool *p, const struct pool_account *a, uint64_t now)
{
    uint64_t loss = a->loss_ns < LOSS_MIN_NS ? 0 : a->loss_ns;
    if (!sideline_settle(&p->sideline, a->gain_ns, loss))
        return;
    struct worker *w = a->culprit ? a->culprit : last_helper(p);
    if (!w)
        return;
    p->stats.sent_out++;
    send_out(p, w, now + sideline_penalty(&p->sideline, &w->record, loss));
}
