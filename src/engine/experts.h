/* When experts change ranks (model/rebalance.h): every so many steps, or when somebody asks for it. */
#ifndef NYB_ENGINE_EXPERTS_H
#define NYB_ENGINE_EXPERTS_H

#include "engine/live.h"
#include "engine/runner.h"

struct model;

/* Of the engine's thread. */
struct experts {
    struct model *model;
    struct live *live; /* whose `update` keeps others off the weights */
    int interval;      /* steps from one rebalancing to the next; 0: only when asked for */
    int n_step;        /* since then */
    bool moving;       /* more is to be done after the next step */
};

void experts_open(struct experts *x, struct model *m, struct live *live, int interval);
/* runner.between: a step has ended. */
void experts_after_step(void *arg);

#endif
