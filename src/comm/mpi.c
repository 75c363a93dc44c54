/* Ranks on several machines: an adapter to the MPI plug-in. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plugin.h"
#include "comm/backend.h"
#include "comm/mpi_plugin.h"

#define TIMEOUT_MS 10000

struct mpi {
    const struct comm_mpi_plugin *plugin;
    struct mpi_ranks *ranks;
    bool said;
};

/* ---- finding it ---------------------------------------------------------------------------------- */

static void *load(struct nyb_err *err)
{
    char path[PATH_MAX];
    if (!plugin_find(COMM_MPI_FILE, path, sizeof(path))) {
        err_at(err, NYB_E_UNSUPPORTED, COMM_MPI_FILE, -1,
               "not found beside the program or in ../lib/nybble: this build has no MPI; ranks of one "
               "machine need "
               "none");
        return NULL;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* Open MPI's own plug-ins look for its symbols */
    if (!library)
        err_set(err, NYB_E_UNSUPPORTED, "cannot load the MPI plug-in: %s", dlerror());
    return library;
}

bool comm_mpi_started(void)
{
    static const char *const sign[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < COUNT_OF(sign); i++)
        if (getenv(sign[i]))
            return true;
    return false;
}

/* ---- the backend --------------------------------------------------------------------------------- */

_Static_assert(sizeof(struct comm_part) == sizeof(struct comm_mpi_part), "one is passed as the other");
_Static_assert(offsetof(struct comm_part, bytes) == offsetof(struct comm_mpi_part, bytes), "the same layout");

static void start(struct comm *c, int channel, const struct comm_part *part, bool same)
{
    struct mpi *m = c->own;
    struct comm_mpi_part copy[COMM_RANK_MAX];
    (void)same;
    memcpy(copy, part, (size_t)c->size * sizeof(*part));
    m->plugin->start(m->ranks, channel, copy);
}

static bool failed(struct comm *c, struct nyb_err *err)
{
    struct mpi *m = c->own;
    char reason[256];
    if (!m->plugin->failed(m->ranks, reason, sizeof(reason)))
        return false;
    err_set(err, NYB_E_RANK, "%s", reason);
    if (!m->said)
        log_error("rank %d of %d stops: %s", c->rank, c->size, reason);
    m->said = true;
    return true;
}

static bool wait_all(struct comm *c, int channel, struct comm_part *in, bool idle)
{
    struct mpi *m = c->own;
    struct comm_mpi_part got[COMM_RANK_MAX];
    if (!m->plugin->wait(m->ranks, channel, got, idle))
        return false;
    memcpy(in, got, (size_t)c->size * sizeof(*in));
    return true;
}

static void fail(struct comm *c, const char *reason)
{
    struct mpi *m = c->own;
    m->plugin->fail(m->ranks, reason);
}

static uint64_t library_allreduce_ns(struct comm *c, float *x, size_t n, int calls)
{
    struct mpi *m = c->own;
    return n <= INT_MAX ? m->plugin->time_allreduce(m->ranks, x, n, calls) : 0;
}

/* The library stays loaded: MPI cannot be begun twice in a process, nor taken out of it. */
static void close_mpi(struct comm *c)
{
    struct mpi *m = c->own;
    (void)failed(c, NULL);
    m->plugin->close(m->ranks);
    free(m);
}

/* Open MPI tells how many ranks it started on this host; elsewhere each is taken to be alone. */
static int local_size(void)
{
    const char *text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    int n = text ? atoi(text) : 1;
    return n >= 1 && n <= COMM_RANK_MAX ? n : 1;
}

struct place {
    char host[64];
    cpu_set_t allowed;
};

/* Which hosts mpirun chose: it is easily not what was meant. */
static void tell_hosts(const struct place *all, int ranks)
{
    char list[COMM_RANK_MAX * (sizeof(all->host) + 16)];
    int used = 0, hosts = 0;
    for (int r = 0; r < ranks; r++) {
        bool known = false;
        int here = 0;
        for (int o = 0; o < ranks; o++)
            if (!strcmp(all[o].host, all[r].host)) {
                known |= o < r;
                here++;
            }
        if (known)
            continue;
        used += snprintf(list + used, sizeof(list) - (size_t)used, "%s%s (%d)", hosts++ ? ", " : "",
                         all[r].host, here);
    }
    log_info("%d ranks on %d host%s: %s", ranks, hosts, hosts == 1 ? "" : "s", list);
}

/* Ranks of one host share out the cores that mpirun has left to all of them alike; those that it has bound to
 * cores of their own (its default for one or two ranks) keep these. */
static void share_cores(struct comm *c)
{
    struct place own = {0}, *all = mem_alloc((size_t)c->size, sizeof(*all));
    int index = 0, count = 0;
    if (gethostname(own.host, sizeof(own.host) - 1) ||
        sched_getaffinity(0, sizeof(own.allowed), &own.allowed))
        CPU_ZERO(&own.allowed);
    bool there = comm_gather(c, &own, sizeof(own), all); /* a lost rank shows in the next call */
    for (int r = 0; there && r < c->size; r++) {
        bool alike = !memcmp(&all[r], &own, sizeof(own));
        index += alike && r < c->rank;
        count += alike;
    }
    if (there && c->rank == 0)
        tell_hosts(all, c->size);
    free(all);
    cores_take(&c->cores, index, count);
}

enum nyb_code comm_open_mpi(struct comm **out, const struct comm_options *o, struct nyb_err *err)
{
    static const struct comm_backend backend = {"mpi", start,     wait_all, failed,
                                                fail,  close_mpi, NULL,     library_allreduce_ns};
    void *library = load(err);
    if (!library)
        return NYB_E_UNSUPPORTED;
    const struct comm_mpi_plugin *p = dlsym(library, COMM_MPI_SYMBOL);
    if (!p || p->abi != COMM_MPI_ABI)
        return err_at(err, NYB_E_UNSUPPORTED, COMM_MPI_FILE, -1, "is of another version of nybble");
    char why[256] = "";
    struct mpi_ranks *ranks = p->open(COMM_CHANNELS, o->slot_bytes,
                                      o->timeout_ms > 0 ? o->timeout_ms : TIMEOUT_MS, why, sizeof(why));
    if (!ranks)
        return err_set(err, NYB_E_UNSUPPORTED, "MPI did not start: %s", why);
    if (p->size(ranks) > COMM_RANK_MAX) {
        err_set(err, NYB_E_RANGE, "mpirun has started %d ranks: expected at most %d", p->size(ranks),
                COMM_RANK_MAX);
        p->close(ranks);
        return NYB_E_RANGE;
    }
    struct mpi *m = mem_alloc(1, sizeof(*m));
    *m = (struct mpi){.plugin = p, .ranks = ranks};
    *out = comm_new(&backend, m, p->rank(ranks), p->size(ranks), o->slot_bytes);
    (*out)->local_size = local_size();
    share_cores(*out);
    return NYB_OK;
}
