#include "base/topology.h"

#include <hwloc.h>
#include <sched.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/quota.h"

/* While sorting. */
struct found {
    struct topology_core core;
    hwloc_obj_t object, cache;
    int in_cache, cache_in_node; /* ranks */
    int order;
};

/* Cores that this thread may run on. A made-up machine has no such mask. */
static hwloc_bitmap_t allowed_cpus(hwloc_topology_t h, bool real)
{
    hwloc_bitmap_t set = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(h)), mask = hwloc_bitmap_alloc();
    if (set && mask && real && hwloc_get_cpubind(h, mask, HWLOC_CPUBIND_THREAD) == 0)
        hwloc_bitmap_and(set, set, mask);
    hwloc_bitmap_free(mask);
    return set;
}

static int first_node(hwloc_obj_t core)
{
    return core->nodeset ? hwloc_bitmap_first(core->nodeset) : 0;
}

/* The last cache in front of memory, or whatever groups cores there. */
static hwloc_obj_t last_cache(hwloc_topology_t h, hwloc_obj_t core)
{
    hwloc_obj_t cache = hwloc_get_ancestor_obj_by_type(h, HWLOC_OBJ_L3CACHE, core);
    return cache ? cache : core->parent;
}

/* Cores before this one that satisfy: same cache; and caches before this core's in the same node. */
static void rank(struct found *f, int i)
{
    hwloc_obj_t last = NULL;
    for (int j = 0; j < i; j++) {
        f[i].in_cache += f[j].cache == f[i].cache;
        if (f[j].core.node == f[i].core.node && f[j].cache != f[i].cache && f[j].cache != last) {
            f[i].cache_in_node++;
            last = f[j].cache;
        }
    }
}

static int by_rank(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    if (x->in_cache != y->in_cache)
        return x->in_cache - y->in_cache;
    if (x->cache_in_node != y->cache_in_node)
        return x->cache_in_node - y->cache_in_node;
    if (x->core.node != y->core.node)
        return x->core.node - y->core.node;
    return x->order - y->order;
}

static void number_nodes(struct topology *t)
{
    int *known = mem_alloc((size_t)t->n_core, sizeof(*known));
    for (int i = 0; i < t->n_core; i++) {
        int k = 0;
        while (k < t->n_node && known[k] != t->core[i].node)
            k++;
        if (k == t->n_node)
            known[t->n_node++] = t->core[i].node;
        t->core[i].node = k;
    }
    free(known);
}

static void map_cpu(struct topology *t, int cpu, int core)
{
    if (cpu < 0)
        return;
    if (cpu >= t->n_cpu) {
        t->core_of_cpu = mem_grow(t->core_of_cpu, (size_t)cpu + 1, sizeof(*t->core_of_cpu));
        while (t->n_cpu <= cpu)
            t->core_of_cpu[t->n_cpu++] = -1;
    }
    t->core_of_cpu[cpu] = core;
}

/* All cores with an allowed hardware thread. */
static void read_cores(struct topology *t, hwloc_topology_t h)
{
    bool cores = hwloc_get_nbobjs_by_type(h, HWLOC_OBJ_CORE) > 0; /* some virtual machines name none */
    hwloc_obj_type_t type = cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int n = hwloc_get_nbobjs_by_type(h, type);
    hwloc_bitmap_t allowed = allowed_cpus(h, t->real), both = hwloc_bitmap_alloc();
    struct found *f = mem_alloc(n > 0 ? (size_t)n : 1, sizeof(*f));
    for (int i = 0; allowed && both && i < n; i++) {
        hwloc_obj_t o = hwloc_get_obj_by_type(h, type, (unsigned)i);
        hwloc_bitmap_and(both, o->cpuset, allowed);
        if (hwloc_bitmap_iszero(both))
            continue;
        f[t->n_core] = (struct found){.core = {hwloc_bitmap_first(both), first_node(o)},
                                      .object = o,
                                      .cache = last_cache(h, o),
                                      .order = i};
        rank(f, t->n_core);
        t->n_core++;
    }
    qsort(f, (size_t)t->n_core, sizeof(*f), by_rank);
    t->core = mem_alloc((size_t)t->n_core + 1, sizeof(*t->core));
    for (int i = 0; i < t->n_core; i++) {
        t->core[i] = f[i].core;
        for (int cpu = hwloc_bitmap_first(f[i].object->cpuset); cpu >= 0;
             cpu = hwloc_bitmap_next(f[i].object->cpuset, cpu))
            map_cpu(t, cpu, i);
    }
    number_nodes(t);
    free(f);
    hwloc_bitmap_free(allowed);
    hwloc_bitmap_free(both);
}

/* Without hwloc. */
static void read_mask(struct topology *t)
{
    cpu_set_t set;
    t->real = true;
    t->n_node = 1;
    t->core = mem_alloc(CPU_SETSIZE, sizeof(*t->core));
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET((size_t)cpu, &set)) {
                map_cpu(t, cpu, t->n_core);
                t->core[t->n_core++] = (struct topology_core){cpu, 0};
            }
    if (t->n_core == 0)
        t->core[t->n_core++] = (struct topology_core){-1, 0};
}

struct topology *topology_open(void)
{
    struct topology *t = mem_alloc(1, sizeof(*t));
    hwloc_topology_t h = NULL;
    if (hwloc_topology_init(&h) == 0 && hwloc_topology_load(h) == 0) {
        t->real = hwloc_topology_is_thissystem(h);
        read_cores(t, h);
    }
    if (t->n_core > 0) {
        t->hwloc = h;
        return t;
    }
    if (h)
        hwloc_topology_destroy(h);
    free(t->core);
    free(t->core_of_cpu);
    *t = (struct topology){0};
    read_mask(t);
    return t;
}

void topology_close(struct topology *t)
{
    if (!t)
        return;
    if (t->hwloc)
        hwloc_topology_destroy(t->hwloc);
    free(t->core);
    free(t->core_of_cpu);
    free(t);
}

int topology_threads(const struct topology *t)
{
    int paid = quota_cores();
    return paid > 0 && paid < t->n_core ? paid : t->n_core;
}

size_t topology_last_cache(const struct topology *t)
{
    size_t least = 0;
    for (int i = 0; t->hwloc && i < t->n_core; i++) {
        hwloc_obj_t o = hwloc_get_pu_obj_by_os_index(t->hwloc, (unsigned)t->core[i].cpu);
        size_t bytes = 0; /* of the outermost cache around this core */
        for (; o; o = o->parent)
            if (hwloc_obj_type_is_dcache(o->type))
                bytes = o->attr->cache.size;
        if (bytes == 0)
            return 0;
        least = least == 0 || bytes < least ? bytes : least;
    }
    return least;
}

bool topology_interleave(const struct topology *t, void *data, size_t bytes)
{
    if (!t->hwloc || !t->real || t->n_node < 2 || bytes == 0)
        return false;
    hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
    for (int i = 0; nodes && i < t->n_core; i++) {
        hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(t->hwloc, (unsigned)t->core[i].cpu);
        if (pu && pu->nodeset)
            hwloc_bitmap_or(nodes, nodes, pu->nodeset);
    }
    bool fine = nodes && hwloc_set_area_membind(t->hwloc, data, bytes, nodes, HWLOC_MEMBIND_INTERLEAVE,
                                                HWLOC_MEMBIND_BYNODESET) == 0;
    hwloc_bitmap_free(nodes);
    return fine;
}
