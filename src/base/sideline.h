/* Which workers of a pool sit out for a while, because the core they need is somebody else's.
 *
 * A worker that shares its core with another busy process is taken off it for a scheduler's slice at a time,
 * mostly in the middle of an item, and the caller of the run waits. Where runs are short that costs more than
 * the worker ever brings. The pool reports what its workers gained and what the caller lost; this file is the
 * policy alone, without threads and clocks, so that it can be tested with made-up times.
 *
 * Gains are credit, up to a little, so that a blip is forgiven; a loss beyond the credit sends a worker out.
 * It stays away for several times what was lost and twice as long each time it offends again soon after its
 * return. So the price of trying again stays at a few percent, and a core that became free is used again
 * within a second. */
#ifndef NYB_BASE_SIDELINE_H
#define NYB_BASE_SIDELINE_H

#include <stdbool.h>
#include <stdint.h>

struct sideline {
    int64_t credit_ns; /* what may be lost before somebody must go */
    uint64_t gain_ns;  /* all gains so far                         */
};

/* One worker's record. */
struct sideline_record {
    uint64_t gain_at_return; /* sideline.gain_ns when it came back last */
    int strikes;             /* offences, each soon after a return      */
};

/* The run that ended: `gain_ns` is what a helper saved on average, `loss_ns` what the caller waited for a
 * thread that had no core. True when somebody has to sit out. */
bool sideline_settle(struct sideline *s, uint64_t gain_ns, uint64_t loss_ns);
/* For how long. */
uint64_t sideline_penalty(const struct sideline *s, struct sideline_record *r, uint64_t loss_ns);
/* It is back. */
void sideline_return(const struct sideline *s, struct sideline_record *r);

#endif
