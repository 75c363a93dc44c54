/* The engine's pulse: whether its thread still turns, told without waiting for it.
 *
 * The thread notes when a turn of its loop begins and whether it sleeps; submitters note when they rang.
 * Awake for long in one turn, or asleep long after a request came, is stuck. */
#ifndef NYB_ENGINE_PULSE_H
#define NYB_ENGINE_PULSE_H

#include <pthread.h>
#include <stdatomic.h>

#include "nybble.h"

struct pulse {
    uint64_t stuck_ns;
    atomic_uint_fast64_t turn_ns, step_ns, submit_ns;
    atomic_bool asleep, stopped;
    atomic_int failed; /* steps in a row */
    pthread_mutex_t lock;
    struct nyb_err failure; /* under the lock */
};

void pulse_open(struct pulse *p, int stuck_ms);
void pulse_close(struct pulse *p);

/* ---- the engine's thread */

/* After it has looked at its bell, so that a request that came before is seen in this turn. */
void pulse_turn(struct pulse *p, uint64_t now_ns);
/* A step has ended; err NULL: well. */
void pulse_step(struct pulse *p, uint64_t now_ns, const struct nyb_err *err);
void pulse_sleep(struct pulse *p);

/* ---- any thread */

void pulse_submit(struct pulse *p, uint64_t now_ns);
/* has_work: requests are there that no reader holds up. paused: on purpose. */
void pulse_read(struct pulse *p, uint64_t now_ns, bool has_work, bool paused, struct nyb_health *out);

#endif
