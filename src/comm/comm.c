#include "comm/backend.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

struct comm *comm_new(const struct comm_backend *b, void *own, int rank, int size, size_t slot_bytes)
{
    struct comm *c = mem_alloc(1, sizeof(*c));
    *c = (struct comm){.backend = b,
                       .own = own,
                       .rank = rank,
                       .size = size,
                       .local_size = size,
                       .slot_bytes = slot_bytes,
                       .one_shot_bytes = 256u << 10,
                       .fusion_rows = INT_MAX};
    return c;
}

void comm_close(struct comm *c)
{
    if (!c)
        return;
    c->backend->close(c);
    cores_give_back(&c->cores);
    free(c);
}

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_size(const struct comm *c)
{
    return c->size;
}

int comm_local_size(const struct comm *c)
{
    return c->local_size;
}

size_t comm_slot_bytes(const struct comm *c)
{
    return c->slot_bytes;
}

const char *comm_backend(const struct comm *c)
{
    return c->backend->name;
}

enum nyb_code comm_status(struct comm *c, struct nyb_err *err)
{
    return c->backend->failed(c, err) ? NYB_E_RANK : NYB_OK;
}

void comm_fail(struct comm *c, const char *fmt, ...)
{
    char reason[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(reason, sizeof(reason), fmt, args);
    va_end(args);
    c->backend->fail(c, reason);
}

/* ---- exchanges ----------------------------------------------------------------------------------- */

static void start(struct comm *c, int channel, const struct comm_part *part, bool same)
{
    ASSERT(channel >= 0 && channel < COMM_CHANNELS);
    c->sent[channel] = part[c->rank];
    c->backend->start(c, channel, part, same);
}

void comm_exchange_start(struct comm *c, int channel, const struct comm_part *part)
{
    start(c, channel, part, false);
}

void comm_publish_start(struct comm *c, int channel, const void *data, size_t bytes)
{
    struct comm_part part[COMM_RANK_MAX];
    for (int r = 0; r < c->size; r++)
        part[r] = (struct comm_part){data, bytes};
    start(c, channel, part, true);
}

static bool wait(struct comm *c, int channel, struct comm_part *in, bool idle)
{
    if (!c->backend->wait(c, channel, in, idle))
        return false;
    in[c->rank] = c->sent[channel];
    return true;
}

bool comm_exchange_wait(struct comm *c, int channel, struct comm_part *in)
{
    return wait(c, channel, in, false);
}

bool comm_exchange_wait_idle(struct comm *c, int channel, struct comm_part *in)
{
    return wait(c, channel, in, true);
}

uint64_t comm_library_allreduce_ns(struct comm *c, float *x, size_t n, int calls)
{
    return c->backend->library_allreduce_ns ? c->backend->library_allreduce_ns(c, x, n, calls) : 0;
}

void comm_set_fusion_rows(struct comm *c, int m_max)
{
    c->fusion_rows = m_max;
}

void comm_set_ways(struct comm *c, struct comm_ways ways)
{
    c->ways = ways;
}

struct comm_ways comm_ways(const struct comm *c)
{
    return c->ways;
}

void comm_set_one_shot_bytes(struct comm *c, size_t bytes)
{
    c->one_shot_bytes = bytes;
}

size_t comm_one_shot_bytes(const struct comm *c)
{
    return c->one_shot_bytes < c->slot_bytes ? c->one_shot_bytes : c->slot_bytes;
}
