/* The engine's side of replacing weights: one update at a time, and what the served ones are called. */
#ifndef NYB_ENGINE_LIVE_H
#define NYB_ENGINE_LIVE_H

#include <pthread.h>
#include <stdatomic.h>

#include "model/checksum.h"
#include "nybble.h"

struct live {
    pthread_mutex_t update; /* held by the one update, or check, that is going on */
    atomic_bool moving; /* the engine's thread may hold it for some milliseconds: experts move (experts.h) */
    pthread_mutex_t lock; /* of what follows */
    struct nyb_weights facts;
    bool has_snapshot;
    struct checksum snapshot; /* held by `update` */
};

/* folder: that the weights were read from. version: NULL: "default"; NYB_E_RANGE where it does not fit. */
enum nyb_code live_open(struct live *l, const char *folder, const char *version, struct nyb_err *err);
void live_close(struct live *l);
/* Take l->update. False: another update or check goes on. Any thread but the engine's. */
bool live_take(struct live *l);

#endif
