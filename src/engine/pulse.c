#include "engine/pulse.h"

#include "base/clock.h"
#include "base/mem.h"

static const char *const state_name[] = {
    [NYB_ENGINE_IDLE] = "idle",   [NYB_ENGINE_RUNNING] = "running", [NYB_ENGINE_PAUSED] = "paused",
    [NYB_ENGINE_STUCK] = "stuck", [NYB_ENGINE_FAILED] = "failed",   [NYB_ENGINE_STOPPED] = "stopped"};
_Static_assert(COUNT_OF(state_name) == NYB_ENGINE_STATE_COUNT, "every state has a name");

const char *nyb_engine_state_name(enum nyb_engine_state s)
{
    return (unsigned)s < COUNT_OF(state_name) ? state_name[s] : "unknown";
}

void pulse_open(struct pulse *p, int stuck_ms)
{
    *p = (struct pulse){.stuck_ns = (uint64_t)stuck_ms * 1000000u, .turn_ns = clock_ns()};
    pthread_mutex_init(&p->lock, NULL);
}

void pulse_close(struct pulse *p)
{
    pthread_mutex_destroy(&p->lock);
}

void pulse_turn(struct pulse *p, uint64_t now_ns)
{
    atomic_store(&p->turn_ns, now_ns);
    atomic_store(&p->asleep, false);
}

void pulse_step(struct pulse *p, uint64_t now_ns, const struct nyb_err *err)
{
    atomic_store(&p->step_ns, now_ns);
    if (!err) {
        atomic_store(&p->failed, 0);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->failure = *err;
    pthread_mutex_unlock(&p->lock);
    /* A rank that is gone does not come back: no need to try again. */
    int before = atomic_load(&p->failed);
    if (err->code == NYB_E_RANK && before < NYB_FAILED_STEPS)
        before = NYB_FAILED_STEPS - 1;
    atomic_store(&p->failed, before < INT32_MAX ? before + 1 : before);
}

void pulse_sleep(struct pulse *p)
{
    atomic_store(&p->asleep, true);
}

/* Submitters race; the latest time stays. */
void pulse_submit(struct pulse *p, uint64_t now_ns)
{
    uint_fast64_t seen = atomic_load(&p->submit_ns);
    while (seen < now_ns && !atomic_compare_exchange_weak(&p->submit_ns, &seen, now_ns))
        ;
}

static uint64_t since(uint64_t from_ns, uint64_t now_ns)
{
    return now_ns > from_ns ? now_ns - from_ns : 0;
}

static enum nyb_engine_state state_of(const struct pulse *p, bool paused, const struct nyb_health *h)
{
    if (atomic_load(&p->stopped))
        return NYB_ENGINE_STOPPED;
    if (h->failed_steps >= NYB_FAILED_STEPS)
        return NYB_ENGINE_FAILED;
    if (paused)
        return NYB_ENGINE_PAUSED;
    if (h->no_step_ns > p->stuck_ns)
        return NYB_ENGINE_STUCK;
    return h->pending ? NYB_ENGINE_RUNNING : NYB_ENGINE_IDLE;
}

void pulse_read(struct pulse *p, uint64_t now_ns, bool has_work, bool paused, struct nyb_health *out)
{
    uint64_t turn_ns = atomic_load(&p->turn_ns), submit_ns = atomic_load(&p->submit_ns);
    bool asleep = atomic_load(&p->asleep);
    /* Asleep since that turn, although a request has come after it: it should have woken up. */
    bool unseen = asleep && submit_ns > turn_ns;
    *out = (struct nyb_health){.pending = has_work || unseen,
                               .last_step_ns = atomic_load(&p->step_ns),
                               .failed_steps = atomic_load(&p->failed)};
    if (unseen)
        out->no_step_ns = since(submit_ns, now_ns);
    else if (!asleep && has_work)
        out->no_step_ns = since(turn_ns, now_ns);
    pthread_mutex_lock(&p->lock);
    out->failure = p->failure;
    pthread_mutex_unlock(&p->lock);
    out->state = state_of(p, paused, out);
    out->alive =
        out->state == NYB_ENGINE_IDLE || out->state == NYB_ENGINE_RUNNING || out->state == NYB_ENGINE_PAUSED;
}
