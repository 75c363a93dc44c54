/* Which workers sit out for a while, because they cost the caller more time than they bring. */
#include "base/mem.h"
#include "base/pool_state.h"

/* Shorter waits for a thread without a core are not worth a reaction. */
#define LOSS_MIN_NS 50000

static void send_out(struct pool *p, struct worker *w, uint64_t until)
{
    if (atomic_load(&w->out))
        return;
    atomic_store(&w->until, until);
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
        uint64_t until = atomic_load(&w->until);
        if (until <= now)
            take_back(p, w);
        else if (until < p->next_return)
            p->next_return = until;
    }
}

void pool_recall(struct pool *p)
{
    if (p->next_return != POOL_FOREVER)
        pool_out_take_back_due(p, POOL_FOREVER - 1);
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
        atomic_store(&w->until, POOL_FOREVER); /* also of one that sat out already */
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
    struct worker *w = NULL;
    if (a->loss_ns >= LOSS_MIN_NS)
        w = a->culprit ? a->culprit : last_helper(p);
    bool out = w && sideline_lose(&p->sideline, &w->record, a->gain_ns, a->loss_ns);
    sideline_gain(&p->sideline, a->gain_ns);
    if (!out)
        return;
    p->stats.sent_out++;
    send_out(p, w, now + sideline_penalty(&p->sideline, &w->record, a->loss_ns));
}
