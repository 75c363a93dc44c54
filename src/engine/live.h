/* The engine's side of replacing weights: one update at a time, and what the served ones are called. */
#ifndef NYB_ENGINE_LIVE_H
#define NYB_ENGINE_LIVE_H

#include <pthread.h>

#include "model/checksum.h"
#include "nybble.h"

/* Whose turn it is with the weights: one at a time. */
enum live_turn {
    LIVE_FREE,
    LIVE_TAKEN, /* the one update, or check, that is going on                              */
    LIVE_MOVES, /* the engine's thread, for some milliseconds: experts move (experts.h)    */
};

struct live {
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t freed; /* `turn` is LIVE_FREE again */
    enum live_turn turn;
    struct nyb_weights facts;
    bool has_snapshot;
    struct checksum snapshot; /* of whoever has LIVE_TAKEN */
};

/* folder: that the weights were read from. version: NULL: "default"; NYB_E_RANGE where it does not fit. */
enum nyb_code live_open(struct live *l, const char *folder, const char *version, struct nyb_err *err);
void live_close(struct live *l);
/* For an update or a check. False: another one goes on; experts that move are waited for. Any thread but the
 * engine's. */
bool live_take(struct live *l);
/* For moving experts. False: somebody has it, and will have it for long. */
bool live_take_to_move(struct live *l);
/* Whoever has it gives it back. */
void live_give(struct live *l);

#endif
