#include "base/sideline.h"

#define CREDIT_MAX  INT64_C(100000000) /* 100 ms: some twenty slices of the scheduler */
#define WEIGHT      2                  /* of losses: a gain is estimated, a loss is seen */
#define PENALTY_MIN 10000000           /* 10 ms */
#define PENALTY_MAX 1000000000         /* 1 s: how late a free core may be noticed */
#define FACTOR      2  /* the first penalty, in losses: what it may cost if nothing is wrong */
#define STRIKES_MAX 9  /* the last is a thousand losses */
#define EARNED      16 /* losses that were earned since the return: no repeated offence */

static int64_t at_most(uint64_t ns, int64_t most)
{
    return ns < (uint64_t)most ? (int64_t)ns : most;
}

void sideline_gain(struct sideline *s, uint64_t gain_ns)
{
    s->gain_ns += gain_ns;
}

/* The run's own gain counts in full: a long one has many losses in one. */
bool sideline_lose(const struct sideline *s, struct sideline_record *r, uint64_t gain_ns, uint64_t loss_ns)
{
    const int64_t much = INT64_MAX / 8;
    int64_t credit = r->credit_ns + at_most(s->gain_ns - r->gain_seen, CREDIT_MAX);
    credit = credit < CREDIT_MAX ? credit : CREDIT_MAX;
    credit += at_most(gain_ns, much) - WEIGHT * at_most(loss_ns, much);
    r->credit_ns = credit < CREDIT_MAX ? credit : CREDIT_MAX;
    r->gain_seen = s->gain_ns + gain_ns;
    return r->credit_ns < 0;
}

uint64_t sideline_penalty(const struct sideline *s, struct sideline_record *r, uint64_t loss_ns)
{
    bool earned = s->gain_ns - r->gain_at_return > EARNED * loss_ns; /* it was worth having */
    r->strikes = earned ? 0 : r->strikes;
    uint64_t penalty = loss_ns < PENALTY_MAX ? FACTOR * loss_ns << r->strikes : PENALTY_MAX;
    r->strikes += r->strikes < STRIKES_MAX;
    return penalty < PENALTY_MIN ? PENALTY_MIN : penalty > PENALTY_MAX ? PENALTY_MAX : penalty;
}

void sideline_return(const struct sideline *s, struct sideline_record *r)
{
    r->credit_ns = 0;
    r->gain_seen = r->gain_at_return = s->gain_ns;
}
