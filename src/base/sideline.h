/* Which workers of a pool sit out for a while, because the core they need is somebody else's.
 *
 * A worker that shares its core with another busy process is taken off it for a scheduler's slice at a time,
 * mostly in the middle of an item, and the caller of the run waits. Where runs are short that costs more than
 * the worker ever brings. The pool reports what its workers gained and what the caller lost; this file is the
 * policy alone, without threads and clocks, so that it can be tested with made-up times.
 *
 * It is the question whether to rent or to buy, asked again and again without knowing what comes. A worker
 * has an account: what it saves is paid in, up to a limit, and a loss takes twice its time out of it. So a
 * worker that brings twice what it costs stays, however often it is disturbed for a moment. One that has
 * nothing left sits out, for twice what was lost, and twice as long each time it offends again soon after its
 * return, when its account is empty. So a core that somebody else uses up costs what the account held, once,
 * and then, for trying again, less and less, down to less than a percent; one that was taken for a moment is
 * missed for about as long; and one that became free is used again within a second. */
#ifndef NYB_BASE_SIDELINE_H
#define NYB_BASE_SIDELINE_H

#include <stdbool.h>
#include <stdint.h>

struct sideline {
    uint64_t gain_ns; /* what a worker that took part in everything has gained so far */
};

/* One worker's record. */
struct sideline_record {
    int64_t credit_ns;       /* as of gain_seen                         */
    uint64_t gain_seen;      /* sideline.gain_ns that is in the account */
    uint64_t gain_at_return; /* sideline.gain_ns when it came back last */
    int strikes;             /* offences, each soon after a return      */
};

/* A run ended that each helper made shorter by `gain_ns`, on average. */
void sideline_gain(struct sideline *s, uint64_t gain_ns);
/* In this same run, not yet reported as above, the caller waited for `loss_ns` because of this worker. True
 * when the worker has to sit out. */
bool sideline_lose(const struct sideline *s, struct sideline_record *r, uint64_t gain_ns, uint64_t loss_ns);
/* For how long. */
uint64_t sideline_penalty(const struct sideline *s, struct sideline_record *r, uint64_t loss_ns);
/* It is back. */
void sideline_return(const struct sideline *s, struct sideline_record *r);

#endif
