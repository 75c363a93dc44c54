/* Which cores each of several ranks on one machine runs on. Private to the room.
 *
 * Without this every rank would place its threads on the same first cores. The ranks share out the cores that
 * they may all use, neighbours first (a rank's threads then stay on one memory node where that is possible),
 * and each narrows its own mask; threads that it starts later inherit it. */
#ifndef NYB_COMM_CORES_H
#define NYB_COMM_CORES_H

#include <sched.h>
#include <stdbool.h>

struct cores {
    cpu_set_t before; /* what the thread was allowed */
    bool narrowed;
    bool crowded; /* other ranks run on the same cores */
};

/* Allow this thread only part `index` of `count` of the cores that it may use, and no more of them than the
 * control group pays for. Leaves everything as it is where there are fewer cores than parts: then they crowd.
 * One part only (count <= 1) has its cores to itself. */
void cores_take(struct cores *c, int index, int count);
/* Give this thread back what it was allowed. */
void cores_give_back(struct cores *c);

/* The cores [*begin, *end) of part `index` of n; none where n < count. */
void cores_part(int n, int index, int count, int *begin, int *end);

#endif
