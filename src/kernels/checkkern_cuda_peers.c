#include "kernels/checkkern_cuda_peers.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"

#define BUFFER_BYTES ((size_t)64 << 10) /* so small that operators are cut up */
#define TIMEOUT_MS   60000

static bool take_memory(struct peers_case *c, struct arena *a)
{
    const struct cuda_plugin *p = c->group.plugin;
    c->residual = arena_alloc(a, PEERS_FLOATS, sizeof(float));
    c->weight = arena_alloc(a, PEERS_N, sizeof(float));
    for (int r = 0; r < c->group.size; r++) {
        struct cuda_gpu *g = c->group.gpu[r];
        struct peers_arrays *m = &c->at[r];
        for (int i = 0; i < 2; i++) {
            c->delta[r][i] = arena_alloc(a, PEERS_FLOATS, sizeof(float));
            m->delta[i] = p->alloc(g, PEERS_FLOATS * sizeof(float));
        }
        c->after[r] = arena_alloc(a, PEERS_FLOATS, sizeof(float));
        c->y_float[r] = arena_alloc(a, PEERS_FLOATS, sizeof(float));
        c->sum[r] = arena_alloc(a, PEERS_FLOATS, sizeof(float));
        c->y[r] = arena_alloc(a, PEERS_FLOATS, sizeof(uint16_t));
        m->residual = p->alloc(g, PEERS_FLOATS * sizeof(float));
        m->y_float = p->alloc(g, PEERS_FLOATS * sizeof(float));
        m->sum = p->alloc(g, PEERS_FLOATS * sizeof(float));
        m->weight = p->alloc(g, PEERS_N * sizeof(float));
        m->y = p->alloc(g, PEERS_FLOATS * sizeof(uint16_t));
        m->row = p->alloc(g, sizeof(c->row));
        m->count = p->alloc(g, sizeof(c->count));
        if (!m->residual || !m->delta[0] || !m->delta[1] || !m->y_float || !m->sum || !m->weight || !m->y ||
            !m->row || !m->count)
            return false;
    }
    return true;
}

static void drop_memory(const struct peers_case *c)
{
    for (int r = 0; r < c->group.n_open; r++) {
        const struct peers_arrays *m = &c->at[r];
        void *const all[] = {m->residual, m->delta[0], m->delta[1], m->weight, m->y_float,
                             m->sum,      m->y,        m->row,      m->count};
        for (size_t i = 0; i < COUNT_OF(all); i++)
            if (all[i])
                c->group.plugin->release(c->group.gpu[r], all[i]);
    }
}

void peers_randomize(struct peers_case *c)
{
    uint64_t *s = &c->seed;
    for (size_t i = 0; i < PEERS_FLOATS; i++)
        c->residual[i] = 2.0f * checkkern_float(s);
    for (size_t i = 0; i < PEERS_N; i++)
        c->weight[i] = checkkern_float(s);
    for (int r = 0; r < c->group.size; r++)
        for (size_t i = 0; i < PEERS_FLOATS; i++) {
            int kind = checkkern_int(s, 0, 31); /* both zeros, too: one of them means "not there yet" */
            c->delta[r][0][i] = kind == 0 ? -0.0f : kind == 1 ? 0.0f : checkkern_float(s);
            c->delta[r][1][i] = kind < 3 ? -0.0f : checkkern_float(s);
        }
}

/* Each rank writes its own inputs; called at once on all. */
static bool write_inputs(void *arg, struct cuda_gpu *g, int r)
{
    const struct peers_case *c = arg;
    const struct cuda_plugin *p = c->group.plugin;
    const struct peers_arrays *m = &c->at[r];
    size_t bytes = PEERS_FLOATS * sizeof(float);
    return p->write(g, m->residual, c->residual, bytes) && p->write(g, m->delta[0], c->delta[r][0], bytes) &&
           p->write(g, m->delta[1], c->delta[r][1], bytes) &&
           p->write(g, m->weight, c->weight, PEERS_N * sizeof(float)) &&
           p->write(g, m->row, c->row, sizeof(c->row)) &&
           p->write(g, m->count, &c->count, sizeof(c->count)) && p->zero(g, m->y_float, bytes) &&
           p->zero(g, m->sum, bytes) && p->zero(g, m->y, PEERS_FLOATS * sizeof(uint16_t));
}

static bool read_outputs(void *arg, struct cuda_gpu *g, int r)
{
    struct peers_case *c = arg;
    const struct cuda_plugin *p = c->group.plugin;
    const struct peers_arrays *m = &c->at[r];
    size_t bytes = PEERS_FLOATS * sizeof(float);
    return p->read(g, c->after[r], m->residual, bytes) && p->read(g, c->y_float[r], m->y_float, bytes) &&
           p->read(g, c->sum[r], m->sum, bytes) && p->read(g, c->y[r], m->y, PEERS_FLOATS * sizeof(uint16_t));
}

/* Ranks come at different times. */
static bool run_ops(void *arg, struct cuda_gpu *g, int r)
{
    struct peers_case *c = arg;
    const struct cuda_plugin *p = c->group.plugin;
    uint64_t seed = c->seed + (uint64_t)r;
    usleep((useconds_t)checkkern_int(&seed, 0, 300));
    return p->run(g, c->op[r], c->n_op) && p->sync(g);
}

struct graphs {
    struct peers_case *c;
    struct cuda_graph *graph[CUDA_PEERS_MAX];
};

static bool make_graph(void *arg, struct cuda_gpu *g, int r)
{
    struct graphs *a = arg;
    a->graph[r] = a->c->group.plugin->graph_make(g, a->c->op[r], a->c->n_op);
    return a->graph[r];
}

static bool replay(void *arg, struct cuda_gpu *g, int r)
{
    struct graphs *a = arg;
    const struct cuda_plugin *p = a->c->group.plugin;
    uint64_t seed = a->c->seed + (uint64_t)r;
    for (int i = 0; i < a->c->replays; i++) {
        usleep((useconds_t)checkkern_int(&seed, 0, 100));
        if (!p->graph_run(g, a->graph[r]))
            return false;
    }
    return p->sync(g);
}

static bool run_graphs(struct peers_case *c)
{
    struct graphs a = {.c = c};
    bool ok = gpu_group_run(&c->group, make_graph, &a) && gpu_group_run(&c->group, replay, &a);
    for (int r = 0; r < c->group.size; r++)
        if (a.graph[r])
            c->group.plugin->graph_free(c->group.gpu[r], a.graph[r]);
    return ok;
}

/* ---- a case ------------------------------------------------------------------------------------------ */

struct peers_case *peers_case_open(const struct checkkern_gpu *g, int size, bool apart, uint64_t seed,
                                   struct checkkern_report *report)
{
    const struct gpu_group_options o = {
        .size = size, .apart = apart, .bytes = BUFFER_BYTES, .timeout_ms = TIMEOUT_MS};
    struct peers_case *c = mem_alloc(1, sizeof(*c));
    bool opened = gpu_group_open(&c->group, g->plugin, &o);
    c->seed = seed;
    checkkern_case(report, opened, "%s", c->group.why);
    if (opened && checkkern_case(report, take_memory(c, g->arena), "no memory for %d ranks", size))
        return c;
    peers_case_close(c, g->arena);
    return NULL;
}

void peers_case_close(struct peers_case *c, struct arena *arena)
{
    if (!c)
        return;
    drop_memory(c);
    gpu_group_close(&c->group);
    arena_reset(arena);
    free(c);
}

static bool run(struct peers_case *c, bool graphs, struct checkkern_report *report)
{
    return (gpu_group_run(&c->group, write_inputs, c) && gpu_group_run(&c->group, run_ops, c) &&
            (!graphs || run_graphs(c)) && gpu_group_run(&c->group, read_outputs, c)) ||
           checkkern_case(report, false, "%s", c->group.why);
}

bool peers_run(struct peers_case *c, struct checkkern_report *report)
{
    return run(c, false, report);
}

bool peers_run_and_replay(struct peers_case *c, struct checkkern_report *report)
{
    return run(c, true, report);
}
