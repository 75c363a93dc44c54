/* Checks of the operators that several GPUs run together. Sums must be those of a scalar loop in rank order,
 * to the bit, and all else the same bits on all ranks, whichever way they travel and in whatever order the
 * ranks come. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_case.h"
#include "kernels/checkkern_cuda_group.h"

#define ROUNDING     0x1p-20 /* of a norm's few operations */
#define ROWS_MAX     40
#define N_MAX        1300
#define FLOATS       ((size_t)ROWS_MAX * N_MAX)
#define BUFFER_BYTES ((size_t)64 << 10) /* so small that operators are cut up */
#define TIMEOUT_MS   60000
#define OPS          12

/* A rank's arrays, the GPU's. */
struct rank_memory {
    float *residual, *delta[2], *weight, *y_float, *sum;
    uint16_t *y;
    int32_t *row, *count;
};

/* Of the host: inputs, and what came out on each rank. */
struct peers_case {
    struct gpu_group *group;
    struct rank_memory at[CUDA_PEERS_MAX];
    float *residual, *weight, *delta[CUDA_PEERS_MAX][2];
    float *after[CUDA_PEERS_MAX], *y_float[CUDA_PEERS_MAX], *sum[CUDA_PEERS_MAX];
    uint16_t *y[CUDA_PEERS_MAX];
    int32_t row[ROWS_MAX], count;
    struct cuda_op op[CUDA_PEERS_MAX][OPS];
    int n_op, replays; /* 0: run directly */
    uint64_t seed;
};

static bool take_memory(struct peers_case *c, struct arena *a)
{
    const struct cuda_plugin *p = c->group->plugin;
    c->residual = arena_alloc(a, FLOATS, sizeof(float));
    c->weight = arena_alloc(a, N_MAX, sizeof(float));
    for (int r = 0; r < c->group->size; r++) {
        struct cuda_gpu *g = c->group->gpu[r];
        struct rank_memory *m = &c->at[r];
        for (int i = 0; i < 2; i++) {
            c->delta[r][i] = arena_alloc(a, FLOATS, sizeof(float));
            m->delta[i] = p->alloc(g, FLOATS * sizeof(float));
        }
        c->after[r] = arena_alloc(a, FLOATS, sizeof(float));
        c->y_float[r] = arena_alloc(a, FLOATS, sizeof(float));
        c->sum[r] = arena_alloc(a, FLOATS, sizeof(float));
        c->y[r] = arena_alloc(a, FLOATS, sizeof(uint16_t));
        m->residual = p->alloc(g, FLOATS * sizeof(float));
        m->y_float = p->alloc(g, FLOATS * sizeof(float));
        m->sum = p->alloc(g, FLOATS * sizeof(float));
        m->weight = p->alloc(g, N_MAX * sizeof(float));
        m->y = p->alloc(g, FLOATS * sizeof(uint16_t));
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
    for (int r = 0; r < c->group->size; r++) {
        const struct rank_memory *m = &c->at[r];
        void *const all[] = {m->residual, m->delta[0], m->delta[1], m->weight, m->y_float,
                             m->sum,      m->y,        m->row,      m->count};
        for (size_t i = 0; i < COUNT_OF(all); i++)
            if (all[i])
                c->group->plugin->release(c->group->gpu[r], all[i]);
    }
}

static void randomize(struct peers_case *c)
{
    uint64_t *s = &c->seed;
    for (size_t i = 0; i < FLOATS; i++)
        c->residual[i] = 2.0f * checkkern_float(s);
    for (size_t i = 0; i < N_MAX; i++)
        c->weight[i] = checkkern_float(s);
    for (int r = 0; r < c->group->size; r++)
        for (size_t i = 0; i < FLOATS; i++) {
            int kind = checkkern_int(s, 0, 31); /* both zeros, too: one of them means "not there yet" */
            c->delta[r][0][i] = kind == 0 ? -0.0f : kind == 1 ? 0.0f : checkkern_float(s);
            c->delta[r][1][i] = kind < 3 ? -0.0f : checkkern_float(s);
        }
}

/* Each rank writes its own inputs; called at once on all. */
static bool write_inputs(void *arg, struct cuda_gpu *g, int r)
{
    const struct peers_case *c = arg;
    const struct cuda_plugin *p = c->group->plugin;
    const struct rank_memory *m = &c->at[r];
    size_t bytes = FLOATS * sizeof(float);
    return p->write(g, m->residual, c->residual, bytes) && p->write(g, m->delta[0], c->delta[r][0], bytes) &&
           p->write(g, m->delta[1], c->delta[r][1], bytes) &&
           p->write(g, m->weight, c->weight, N_MAX * sizeof(float)) &&
           p->write(g, m->row, c->row, sizeof(c->row)) &&
           p->write(g, m->count, &c->count, sizeof(c->count)) && p->zero(g, m->y_float, bytes) &&
           p->zero(g, m->sum, bytes) && p->zero(g, m->y, FLOATS * sizeof(uint16_t));
}

static bool read_outputs(void *arg, struct cuda_gpu *g, int r)
{
    struct peers_case *c = arg;
    const struct cuda_plugin *p = c->group->plugin;
    const struct rank_memory *m = &c->at[r];
    size_t bytes = FLOATS * sizeof(float);
    return p->read(g, c->after[r], m->residual, bytes) && p->read(g, c->y_float[r], m->y_float, bytes) &&
           p->read(g, c->sum[r], m->sum, bytes) && p->read(g, c->y[r], m->y, FLOATS * sizeof(uint16_t));
}

/* Ranks come at different times. */
static bool run_ops(void *arg, struct cuda_gpu *g, int r)
{
    struct peers_case *c = arg;
    const struct cuda_plugin *p = c->group->plugin;
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
    a->graph[r] = a->c->group->plugin->graph_make(g, a->c->op[r], a->c->n_op);
    return a->graph[r];
}

static bool replay(void *arg, struct cuda_gpu *g, int r)
{
    struct graphs *a = arg;
    const struct cuda_plugin *p = a->c->group->plugin;
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
    bool ok = gpu_group_run(c->group, make_graph, &a) && gpu_group_run(c->group, replay, &a);
    for (int r = 0; r < c->group->size; r++)
        if (a.graph[r])
            c->group->plugin->graph_free(c->group->gpu[r], a.graph[r]);
    return ok;
}

/* ---- the reference --------------------------------------------------------------------------------- */

/* Which of its two deltas a rank has in this operator. */
static bool has_delta(const struct cuda_op *op, int i)
{
    return op->as.all_reduce.norm.delta[i] != NULL;
}

static float sum_at(const struct peers_case *c, int op, size_t at)
{
    float sum = 0.0f;
    for (int r = 0; r < c->group->size; r++) {
        float first = has_delta(&c->op[r][op], 0) ? c->delta[r][0][at] : 0.0f,
              second = has_delta(&c->op[r][op], 1) ? c->delta[r][1][at] : 0.0f;
        float part = second + first;
        sum = r ? sum + part : part;
    }
    return sum;
}

/* ---- one operator ---------------------------------------------------------------------------------- */

struct reduce_shape {
    int n_row, n, way;
    bool gather, counted, only_sum;
};

static void plan_reduce(struct peers_case *c, int i, const struct reduce_shape *s)
{
    for (int r = 0; r < c->group->size; r++) {
        const struct rank_memory *m = &c->at[r];
        int have = checkkern_int(&c->seed, 0, 6); /* nothing, one of them, or both */
        c->op[r][i] =
            (struct cuda_op){.kind = CUDA_OP_ALL_REDUCE,
                             .n_row = s->n_row,
                             .count = s->counted ? m->count : NULL,
                             .as.all_reduce = {.norm = {.residual = m->residual,
                                                        .delta = {have == 0 || have == 1 ? NULL : m->delta[0],
                                                                  have == 0 || have > 4 ? NULL : m->delta[1]},
                                                        .row = s->gather ? m->row : NULL,
                                                        .weight = m->weight,
                                                        .y = m->y,
                                                        .y_float = m->y_float,
                                                        .n = s->n,
                                                        .eps = 1e-5f},
                                               .sum = s->only_sum ? m->sum : NULL,
                                               .way = s->way}};
    }
}

static bool same_on_all(const struct peers_case *c, struct checkkern_report *report)
{
    for (int r = 1; r < c->group->size; r++)
        if (!checkkern_case(report,
                            memcmp(c->after[r], c->after[0], FLOATS * sizeof(float)) == 0 &&
                                memcmp(c->y_float[r], c->y_float[0], FLOATS * sizeof(float)) == 0 &&
                                memcmp(c->sum[r], c->sum[0], FLOATS * sizeof(float)) == 0 &&
                                memcmp(c->y[r], c->y[0], FLOATS * sizeof(uint16_t)) == 0,
                            "ranks 0 and %d of %d have different bits", r, c->group->size))
            return false;
    return true;
}

static bool check_row(const struct peers_case *c, const struct reduce_shape *s, int t,
                      struct checkkern_report *report)
{
    size_t to = (size_t)t * (size_t)s->n, from = s->gather ? (size_t)c->row[t] * (size_t)s->n : to;
    double square = 0;
    bool ok = true;
    for (int i = 0; i < s->n && ok; i++) {
        float sum = sum_at(c, 0, from + (size_t)i), v = c->residual[from + (size_t)i] + sum;
        float found = s->only_sum ? c->sum[0][to + (size_t)i] : c->after[0][from + (size_t)i];
        float expected = s->only_sum ? sum : s->gather ? c->residual[from + (size_t)i] : v;
        square += (double)v * (double)v;
        ok = checkkern_case(report, found == expected,
                            "%d ranks, row %d of %d, column %d of %d: %g, expected %g", c->group->size, t,
                            s->n_row, i, s->n, (double)found, (double)expected);
    }
    double by = 1.0 / sqrt(square / s->n + 1e-5);
    for (int i = 0; i < s->n && ok && !s->only_sum; i++) {
        float v = c->residual[from + (size_t)i] + sum_at(c, 0, from + (size_t)i);
        double expected = (double)v * by * (double)c->weight[i];
        float found = c->y_float[0][to + (size_t)i];
        ok = checkkern_near(report, (double)found, expected, fabs(expected) * ROUNDING + 1e-20) &&
             c->y[0][to + (size_t)i] == bf16_from_float(found);
        checkkern_case(report, ok, "%d ranks, norm of row %d of %d, column %d of %d: %g, expected %g",
                       c->group->size, t, s->n_row, i, s->n, (double)found, expected);
    }
    return ok;
}

/* Rows behind the real ones, of which there must be none written. */
static bool check_rest(const struct peers_case *c, const struct reduce_shape *s, int real,
                       struct checkkern_report *report)
{
    size_t first = (size_t)real * (size_t)s->n;
    bool ok = true;
    for (size_t i = first; i < FLOATS && ok; i++)
        ok = checkkern_case(report,
                            c->y_float[0][i] == 0.0f && c->sum[0][i] == 0.0f && c->y[0][i] == 0 &&
                                (s->gather || c->after[0][i] == c->residual[i]),
                            "element %zu was written, behind %d rows of %d", i, real, s->n);
    return ok;
}

static bool reduce_case(struct peers_case *c, const struct reduce_shape *s, struct checkkern_report *report)
{
    int real = s->counted ? checkkern_int(&c->seed, 1, s->n_row) : s->n_row;
    c->count = real;
    for (int t = 0; t < ROWS_MAX; t++)
        c->row[t] = checkkern_int(&c->seed, 0, (int)(FLOATS / (size_t)s->n) - 1);
    randomize(c);
    plan_reduce(c, 0, s);
    c->n_op = 1;
    if (!gpu_group_run(c->group, write_inputs, c) || !gpu_group_run(c->group, run_ops, c) ||
        !gpu_group_run(c->group, read_outputs, c))
        return checkkern_case(report, false, "%s", c->group->why);
    bool ok = same_on_all(c, report) && check_rest(c, s, real, report);
    for (int t = 0; t < real && ok; t++)
        ok = check_row(c, s, t, report);
    return ok;
}

static struct reduce_shape any_shape(uint64_t *seed)
{
    int n = checkkern_int(seed, 0, 3) ? checkkern_int(seed, 1, 700) : 4 * checkkern_int(seed, 100, N_MAX / 4);
    return (struct reduce_shape){.n_row = checkkern_int(seed, 1, ROWS_MAX),
                                 .n = n,
                                 .way = checkkern_int(seed, CUDA_REDUCE_AUTO, CUDA_REDUCE_TWO_SHOT),
                                 .gather = !checkkern_int(seed, 0, 3),
                                 .counted = checkkern_int(seed, 0, 1)};
}

/* ---- many, one after another ----------------------------------------------------------------------- */

/* The stream after operators that each add their sums to it, `times` over. */
static bool check_stream(const struct peers_case *c, const struct reduce_shape *s, int times,
                         struct checkkern_report *report)
{
    bool ok = true;
    for (size_t i = 0; i < FLOATS && ok; i++) {
        float v = c->residual[i];
        for (int k = 0; k < times; k++)
            for (int o = 0; o < c->n_op; o++) {
                int real = s[o].counted && c->count < s[o].n_row ? c->count : s[o].n_row;
                if (i < (size_t)real * (size_t)s[o].n && !s[o].only_sum && !s[o].gather)
                    v = v + sum_at(c, o, i);
            }
        ok = checkkern_case(report, c->after[0][i] == v,
                            "%d ranks, element %zu after %d operators, %d times: %g, expected %g",
                            c->group->size, i, c->n_op, times, (double)c->after[0][i], (double)v);
    }
    return ok;
}

/* Operators of all sizes without a pause, directly and as a graph that is replayed. */
static bool stress(struct peers_case *c, struct checkkern_report *report)
{
    struct reduce_shape s[OPS];
    c->n_op = OPS;
    c->replays = 3;
    c->count = checkkern_int(&c->seed, 1, ROWS_MAX);
    for (int t = 0; t < ROWS_MAX; t++)
        c->row[t] = t % 3;
    for (int i = 0; i < OPS; i++) {
        s[i] = any_shape(&c->seed);
        s[i].counted &= c->count <= s[i].n_row;
        s[i].only_sum = !s[i].gather && i % 5 == 4;
        plan_reduce(c, i, &s[i]);
    }
    randomize(c);
    if (!gpu_group_run(c->group, write_inputs, c) || !gpu_group_run(c->group, run_ops, c) || !run_graphs(c) ||
        !gpu_group_run(c->group, read_outputs, c))
        return checkkern_case(report, false, "%s", c->group->why);
    return same_on_all(c, report) && check_stream(c, s, 1 + c->replays, report);
}

static bool check_group(const struct checkkern_gpu *g, int size, bool apart, struct checkkern_report *report)
{
    const struct gpu_group_options o = {
        .size = size, .apart = apart, .bytes = BUFFER_BYTES, .timeout_ms = TIMEOUT_MS};
    struct gpu_group group;
    struct peers_case *c = mem_alloc(1, sizeof(*c));
    bool ok = gpu_group_open(&group, g->plugin, &o);
    c->group = &group;
    c->seed = g->seed + (uint64_t)size;
    checkkern_case(report, ok, "%s", group.why);
    if (ok) {
        ok = take_memory(c, g->arena);
        checkkern_case(report, ok, "no memory for %d ranks", size);
        for (int i = 0; i < g->rounds && ok; i++) {
            struct reduce_shape s = any_shape(&c->seed);
            s.only_sum = !s.gather && i % 4 == 3;
            ok = reduce_case(c, &s, report) && (i % 3 != 2 || stress(c, report));
        }
        drop_memory(c);
    }
    gpu_group_close(&group);
    arena_reset(g->arena);
    free(c);
    return ok;
}

bool checkkern_cuda_all_reduce(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    return gpu_group_each(g, 4, check_group, report);
}

/* ---- columns to rank 0 ----------------------------------------------------------------------------- */

/* 4 columns beyond what a rank of N_MAX floats could hold never come up: rows are few. */
static bool gather_case(struct peers_case *c, struct checkkern_report *report)
{
    int size = c->group->size, n_row = checkkern_int(&c->seed, 1, ROWS_MAX), first[CUDA_PEERS_MAX + 1] = {0};
    c->count = checkkern_int(&c->seed, 1, n_row);
    randomize(c);
    for (int r = 0; r < size; r++) {
        int columns = checkkern_int(&c->seed, 0, N_MAX / size);
        first[r + 1] = first[r] + (checkkern_int(&c->seed, 0, 1) ? columns / 16 * 16 : columns);
    }
    if (first[size] == 0)
        first[size] = 1;
    for (int r = 0; r < size; r++) {
        struct cuda_op *op = &c->op[r][0];
        *op = (struct cuda_op){.kind = CUDA_OP_GATHER, .n_row = n_row, .count = c->at[r].count};
        op->as.gather = (struct cuda_gather){.x = c->at[r].delta[0], .out = r ? NULL : c->at[r].sum};
        memcpy(op->as.gather.first, first, sizeof(first));
    }
    c->n_op = 1;
    if (!gpu_group_run(c->group, write_inputs, c) || !gpu_group_run(c->group, run_ops, c) ||
        !gpu_group_run(c->group, read_outputs, c))
        return checkkern_case(report, false, "%s", c->group->why);
    bool ok = true;
    for (int t = 0; t < c->count && ok; t++)
        for (int r = 0; r < size && ok; r++)
            for (int j = first[r]; j < first[r + 1] && ok; j++) {
                float found = c->sum[0][(size_t)t * (size_t)first[size] + (size_t)j];
                float expected =
                    c->delta[r][0][(size_t)t * (size_t)(first[r + 1] - first[r]) + (size_t)(j - first[r])];
                ok = checkkern_case(report, found == expected,
                                    "row %d, column %d of %d, rank %d's: %g, expected %g", t, j, first[size],
                                    r, (double)found, (double)expected);
            }
    for (size_t i = (size_t)c->count * (size_t)first[size]; i < FLOATS && ok; i++)
        ok = checkkern_case(report, c->sum[0][i] == 0.0f, "element %zu was written, behind", i);
    return ok;
}

/* With sums in between: all kinds of launches take turns at the same buffers. */
static bool gather_group(const struct checkkern_gpu *g, int size, bool apart, struct checkkern_report *report)
{
    const struct gpu_group_options o = {
        .size = size, .apart = apart, .bytes = BUFFER_BYTES, .timeout_ms = TIMEOUT_MS};
    struct gpu_group group;
    struct peers_case *c = mem_alloc(1, sizeof(*c));
    bool ok = gpu_group_open(&group, g->plugin, &o);
    c->group = &group;
    c->seed = g->seed + 100 + (uint64_t)size;
    checkkern_case(report, ok, "%s", group.why);
    if (ok) {
        ok = take_memory(c, g->arena);
        checkkern_case(report, ok, "no memory for %d ranks", size);
        for (int i = 0; i < g->rounds && ok; i++) {
            struct reduce_shape s = any_shape(&c->seed);
            ok = gather_case(c, report) && gather_case(c, report) && (i % 3 || reduce_case(c, &s, report));
        }
        drop_memory(c);
    }
    gpu_group_close(&group);
    arena_reset(g->arena);
    free(c);
    return ok;
}

bool checkkern_cuda_gather(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    return gpu_group_each(g, 3, gather_group, report);
}
