#include "base/sideline.h"

#define CREDIT_MAX  1000000    /* 1 ms: less than a scheduler's slice, more than an interrupt takes */
#define PENALTY_MIN 10000000   /* 10 ms  */
#define PENALTY_MAX 1000000000 /* 1 s: how late a free core may be noticed */
#define FACTOR      16         /* the first penalty, in losses */
#define STRIKES_MAX 6

bool sideline_settle(struct sideline *s, uint64_t gain_ns, uint64_t loss_ns)
{
    s->gain_ns += gain_ns;
    s->credit_ns += gain_ns < CREDIT_MAX ? (int64_t)gain_ns : CREDIT_MAX;
    if (s->credit_ns > CREDIT_MAX)
        s->credit_ns = CREDIT_MAX;
    if (loss_ns == 0)
        return false;
    s->credit_ns -= loss_ns < PENALTY_MAX ? (int64_t)loss_ns : PENALTY_MAX;
    if (s->credit_ns >= 0)
        return false;
    s->credit_ns = 0;
    return true;
}

uint64_t sideline_penalty(const struct sideline *s, struct sideline_record *r, uint64_t loss_ns)
{
    bool earned = s->gain_ns - r->gain_at_return > FACTOR * loss_ns; /* it was worth having */
    r->strikes = earned ? 0 : r->strikes;
    uint64_t penalty = loss_ns < PENALTY_MAX ? FACTOR * loss_ns << r->strikes : PENALTY_MAX;
    r->strikes += r->strikes < STRIKES_MAX;
    return penalty < PENALTY_MIN ? PENALTY_MIN : penalty > PENALTY_MAX ? PENALTY_MAX : penalty;
}

void sideline_return(const struct sideline *s, struct sideline_record *r)
{
    r->gain_at_return = s->gain_ns;
}
