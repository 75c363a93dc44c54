/* Workers are pinned, the caller is not: it is followed. */
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/pool_state.h"

/* What one involuntary switch may have cost: a scheduler's slice. Something that runs for microseconds a few
 * times a second costs much less: only the kernel knows. */
#define SLICE_NS 4000000

void pool_place_pin(struct worker *w, int cpu)
{
    size_t bytes = CPU_ALLOC_SIZE((size_t)cpu + 1);
    cpu_set_t *one = CPU_ALLOC((size_t)cpu + 1);
    if (!one)
        return;
    CPU_ZERO_S(bytes, one);
    CPU_SET_S((size_t)cpu, bytes, one);
    pthread_setaffinity_np(w->thread, bytes, one); /* best effort: placement is not correctness */
    CPU_FREE(one);
}

void pool_place_home(const struct pool *p, struct worker *w)
{
    for (int core = 0; core < p->topology->n_core; core++)
        if (p->worker_at[core] == w->index)
            pool_place_pin(w, p->topology->core[core].cpu);
}

void pool_place_make_room(struct pool *p)
{
    const struct topology *t = p->topology;
    int cpu = sched_getcpu();
    int core = cpu >= 0 && cpu < t->n_cpu ? t->core_of_cpu[cpu] : -1;
    if (core < 0 || core == p->spare)
        return;
    int index = p->worker_at[core];
    if (index > 0) {
        pool_place_pin(&p->worker[index - 1], t->core[p->spare].cpu);
        p->stats.moved++;
    }
    p->worker_at[p->spare] = index;
    p->worker_at[core] = 0;
    p->spare = core;
}

/* How long this thread has been ready without a core since it began; 0: this kernel does not count it. */
static uint64_t time_queued(void)
{
    char text[96];
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    char *end;
    (void)strtoull(text, &end, 10); /* on a core; then what is wanted */
    return strtoull(end, NULL, 10);
}

uint64_t pool_place_time_lost(struct pool *p, uint64_t span_ns)
{
    struct rusage u;
    if (getrusage(RUSAGE_THREAD, &u))
        return 0;
    long n = u.ru_nivcsw - p->switched;
    p->switched = u.ru_nivcsw;
    if (n <= 0)
        return 0;
    uint64_t most = (uint64_t)n * SLICE_NS, queued = time_queued(), before = p->queued_ns;
    p->queued_ns = queued;
    if (queued >= before && before > 0 && queued - before < most)
        most = queued - before;
    return most < span_ns ? most : span_ns;
}
