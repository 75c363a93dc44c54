/* Work that other threads want done between two steps: pausing, aborting, committing new weights. A caller
 * posts it and sleeps until the engine's thread has done it. */
#ifndef NYB_ENGINE_CONTROL_H
#define NYB_ENGINE_CONTROL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"
#include "engine/bell.h"

struct step;

struct control_op {
    /* Asked between steps until it says true, or deadline_ns (0: none) has passed. NULL: at once. */
    bool (*ready)(struct step *s, void *arg);
    void (*run)(struct step *s, void *arg);
    void *arg;
    uint64_t deadline_ns;
    /* private */
    enum { CONTROL_QUEUED, CONTROL_DONE, CONTROL_REFUSED } state;
    struct control_op *next;
};

struct control {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct control_op *first; /* in the order they came */
    atomic_int n;
    bool closed;
};

void control_open(struct control *c);
void control_free(struct control *c);

/* Any thread but the engine's. Returns when it has been done; NYB_E_CLOSED when it will not be. */
enum nyb_code control_call(struct control *c, struct control_op *op, struct bell *engine,
                           struct nyb_err *err) NYB_MUST_CHECK;

/* ---- the engine's thread */

bool control_waiting(const struct control *c);
/* Do what is ready. */
void control_serve(struct control *c, struct step *s);
/* Refuse what waits and what comes. */
void control_close(struct control *c);

#endif
