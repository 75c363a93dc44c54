#include "comm/cores.h"

#include <stdlib.h>

#include "base/quota.h"
#include "base/topology.h"

void cores_part(int n, int index, int count, int *begin, int *end)
{
    *begin = *end = 0;
    if (n < count)
        return;
    *begin = (int)((long)n * index / count);
    *end = (int)((long)n * (index + 1) / count);
}

/* By node, then as the kernel numbers them, which goes by cache. */
static int by_place(const void *a, const void *b)
{
    const struct topology_core *x = a, *y = b;
    return x->node != y->node ? x->node - y->node : (x->cpu > y->cpu) - (x->cpu < y->cpu);
}

/* All hardware threads of a core: core_of_cpu holds its number before the sorting. */
static void add_core(cpu_set_t *set, const struct topology *t, int core)
{
    for (int cpu = 0; cpu < t->n_cpu && cpu < CPU_SETSIZE; cpu++)
        if (t->core_of_cpu[cpu] == core)
            CPU_SET((size_t)cpu, set);
}

static void choose(cpu_set_t *set, struct topology *t, int index, int count)
{
    int begin, end, paid = quota_cores();
    cores_part(t->n_core, index, count, &begin, &end);
    if (paid > 0 && end - begin > 1 && end - begin > paid / count)
        end = begin + (paid / count > 1 ? paid / count : 1);
    qsort(t->core, (size_t)t->n_core, sizeof(*t->core), by_place);
    CPU_ZERO(set);
    for (int i = begin; i < end; i++)
        if (t->core[i].cpu >= 0 && t->core[i].cpu < t->n_cpu)
            add_core(set, t, t->core_of_cpu[t->core[i].cpu]);
}

void cores_take(struct cores *c, int index, int count)
{
    cpu_set_t own;
    *c = (struct cores){.crowded = count > 1};
    if (count <= 1 || sched_getaffinity(0, sizeof(c->before), &c->before))
        return;
    struct topology *t = topology_open();
    CPU_ZERO(&own);
    if (t->real)
        choose(&own, t, index, count);
    topology_close(t);
    CPU_AND(&own, &own, &c->before);
    /* best effort: placement is not correctness */
    c->narrowed = CPU_COUNT(&own) > 0 && sched_setaffinity(0, sizeof(own), &own) == 0;
    c->crowded = !c->narrowed;
}

void cores_give_back(struct cores *c)
{
    if (c->narrowed)
        (void)sched_setaffinity(0, sizeof(c->before), &c->before);
    c->narrowed = false;
}
