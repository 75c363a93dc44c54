/* Checks of sums whose parts copy engines send: sums that follow each other, some of whose parts come out of
 * the sum before, so that an old part in a slot is another number. All that they leave must be that of the
 * kernel that sends by itself, to the bit, on every rank, directly and as a graph, whoever is late; and a
 * slot that another rank may still read is not sent to. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/checkkern_cuda_case.h"
#include "kernels/checkkern_cuda_group.h"

#define ROWS_MAX   24
#define N_MAX      1300
#define FLOATS     (ROWS_MAX * N_MAX)
#define SUMS       4
#define OPS        (2 * SUMS)
#define TIMES      3 /* that the sums are made from the same beginning, one after the other */
#define SUM_BYTES  ((size_t)64 << 10)
#define TIMEOUT_MS 60000

/* What a rank has; all of it is compared. */
struct sent_arrays {
    float residual[FLOATS], y_float[FLOATS], sum[FLOATS], delta[2][FLOATS], weight[N_MAX];
    uint16_t y[FLOATS];
    int32_t count;
};

struct sent_case {
    struct gpu_group *group;
    struct sent_arrays *gpu[CUDA_PEERS_MAX], *before[CUDA_PEERS_MAX], *after[CUDA_PEERS_MAX],
        *expected[CUDA_PEERS_MAX];
    struct cuda_op fused[CUDA_PEERS_MAX][SUMS], sent[CUDA_PEERS_MAX][OPS];
    struct cuda_graph *graph[CUDA_PEERS_MAX];
    int n_row, n;
    uint64_t seed;
};

/* ---- operators ------------------------------------------------------------------------------------- */

/* The part of one sum on one rank. */
static const float *any_part(struct sent_case *c, const struct sent_arrays *a)
{
    int kind = checkkern_int(&c->seed, 0, 4);
    return kind == 0 ? NULL : kind < 3 ? a->delta[kind - 1] : a->y_float;
}

/* How the sums of a case are made: slots in turn, one lane or two, all rows or `count` of them. */
struct manner {
    int n_slot;
    bool two_lanes, counted, second; /* the part is the second delta */
};

static void plan_sum(struct sent_case *c, int i, const struct manner *m, bool only_sum)
{
    for (int r = 0; r < c->group->size; r++) {
        struct sent_arrays *a = c->gpu[r];
        const float *part = any_part(c, a);
        struct cuda_op op = {
            .kind = CUDA_OP_ALL_REDUCE,
            .n_row = c->n_row,
            .count = m->counted ? &a->count : NULL,
            .as.all_reduce = {.norm = {.residual = a->residual,
                                       .delta = {m->second ? NULL : part, m->second ? part : NULL},
                                       .weight = a->weight,
                                       .y = a->y,
                                       .y_float = a->y_float,
                                       .n = c->n,
                                       .eps = 1e-5f},
                              .sum = only_sum ? a->sum : NULL,
                              .way = CUDA_REDUCE_ONE_SHOT}};
        c->fused[r][i] = op;
        op.as.all_reduce.way = CUDA_REDUCE_SENT;
        op.as.all_reduce.slot = i % m->n_slot;
        op.back = m->two_lanes;
        c->sent[r][2 * i + 1] = op;
        c->sent[r][2 * i] =
            (struct cuda_op){.kind = CUDA_OP_SEND,
                             .n_row = c->n_row,
                             .lane = m->two_lanes ? CUDA_LANE_SIDE : CUDA_LANE_MAIN,
                             .back = i > 0 && m->two_lanes,
                             .as.send = {.part = part, .n = c->n, .slot = op.as.all_reduce.slot}};
    }
}

static void plan_case(struct sent_case *c)
{
    uint64_t *s = &c->seed;
    const struct manner m = {.n_slot = checkkern_int(s, 0, 1) ? 2 : CUDA_SEND_SLOTS,
                             .two_lanes = checkkern_int(s, 0, 1),
                             .counted = checkkern_int(s, 0, 1),
                             .second = checkkern_int(s, 0, 1)};
    c->n = checkkern_int(s, 0, 3) ? checkkern_int(s, 1, 700) : 4 * checkkern_int(s, 100, N_MAX / 4);
    c->n_row = checkkern_int(s, 1, ROWS_MAX);
    for (int i = 0; i < SUMS; i++)
        plan_sum(c, i, &m, checkkern_int(s, 0, 3) == 0);
}

static void randomize(struct sent_case *c)
{
    uint64_t *s = &c->seed;
    for (int r = 0; r < c->group->size; r++) {
        struct sent_arrays *a = c->before[r];
        for (int i = 0; i < FLOATS; i++)
            for (int j = 0; j < 2;
                 j++) { /* both zeros, too: the kernel that sends by itself turns one over */
                int kind = checkkern_int(s, 0, 31);
                a->delta[j][i] = kind == 0 ? -0.0f : kind == 1 ? 0.0f : checkkern_float(s);
            }
        for (int i = 0; i < FLOATS && r == 0; i++)
            a->residual[i] = checkkern_float(s);
        for (int i = 0; i < N_MAX && r == 0; i++)
            a->weight[i] = checkkern_float(s);
        memcpy(a->residual, c->before[0]->residual, sizeof(a->residual)); /* the same everywhere */
        memcpy(a->weight, c->before[0]->weight, sizeof(a->weight));
        a->count = r == 0 ? checkkern_int(s, 1, c->n_row) : c->before[0]->count;
    }
}

/* ---- running --------------------------------------------------------------------------------------- */

static bool write_inputs(void *arg, struct cuda_gpu *g, int r)
{
    const struct sent_case *c = arg;
    return c->group->plugin->write(g, c->gpu[r], c->before[r], sizeof(struct sent_arrays));
}

static bool run_fused(void *arg, struct cuda_gpu *g, int r)
{
    struct sent_case *c = arg;
    const struct cuda_plugin *p = c->group->plugin;
    bool ok = true;
    for (int i = 0; i < TIMES && ok; i++)
        ok = p->run(g, c->fused[r], SUMS);
    return ok && p->sync(g) && p->read(g, c->expected[r], c->gpu[r], sizeof(struct sent_arrays));
}

static bool record(void *arg, struct cuda_gpu *g, int r)
{
    struct sent_case *c = arg;
    c->graph[r] = c->group->plugin->graph_make(g, c->sent[r], OPS);
    return c->graph[r];
}

struct sending {
    struct sent_case *c;
    bool graph;
};

static bool run_sent(void *arg, struct cuda_gpu *g, int r)
{
    const struct sending *a = arg;
    struct sent_case *c = a->c;
    const struct cuda_plugin *p = c->group->plugin;
    uint64_t seed = c->seed + (uint64_t)r;
    bool ok = true;
    for (int i = 0; i < TIMES && ok; i++) {
        usleep((useconds_t)checkkern_int(&seed, 0, 300));
        ok = a->graph ? p->graph_run(g, c->graph[r]) : p->run(g, c->sent[r], OPS);
    }
    return ok && p->sync(g) && p->read(g, c->after[r], c->gpu[r], sizeof(struct sent_arrays));
}

static void drop_graphs(struct sent_case *c)
{
    for (int r = 0; r < c->group->size; r++) {
        if (c->graph[r])
            c->group->plugin->graph_free(c->group->gpu[r], c->graph[r]);
        c->graph[r] = NULL;
    }
}

static bool sent_case(struct sent_case *c, struct checkkern_report *report)
{
    plan_case(c);
    randomize(c);
    bool ok = gpu_group_run(c->group, write_inputs, c) && gpu_group_run(c->group, run_fused, c) &&
              gpu_group_run(c->group, record, c);
    for (int graph = 0; graph < 2 && ok; graph++) {
        struct sending a = {c, graph};
        ok = gpu_group_run(c->group, write_inputs, c) && gpu_group_run(c->group, run_sent, &a);
        for (int r = 0; r < c->group->size && ok; r++)
            if (!checkkern_case(report, memcmp(c->after[r], c->expected[r], sizeof(struct sent_arrays)) == 0,
                                "%d rows of %d, rank %d of %d, %s: not what the kernel that sends leaves",
                                c->n_row, c->n, r, c->group->size, graph ? "a graph" : "directly"))
                return drop_graphs(c), false;
    }
    drop_graphs(c);
    return ok || checkkern_case(report, false, "%s", c->group->why);
}

/* ---- what is refused ------------------------------------------------------------------------------- */

static bool refuses(const struct sent_case *c, const struct cuda_op *op, int n_op, const char *says,
                    struct checkkern_report *report)
{
    const struct cuda_plugin *p = c->group->plugin;
    bool ran = p->run(c->group->gpu[0], op, n_op);
    return checkkern_case(report, !ran && strstr(p->error(c->group->gpu[0]), says), "expected \"%s\": %s",
                          says, ran ? "not refused" : p->error(c->group->gpu[0]));
}

static bool check_refusals(struct sent_case *c, struct checkkern_report *report)
{
    const struct manner two = {.n_slot = 2}, one = {.n_slot = 1};
    struct cuda_op op[OPS], *const all = c->sent[0];
    for (int i = 0; i < SUMS; i++)
        plan_sum(c, i, &one, false);
    bool ok = refuses(c, all, OPS, "may still read", report);
    for (int i = 0; i < SUMS; i++)
        plan_sum(c, i, &two, false);
    memcpy(op, all, sizeof(op));
    op[1].as.all_reduce.slot = 1;
    ok = ok && refuses(c, op, OPS, "have not been sent", report);
    memcpy(op, all, sizeof(op));
    op[1] = op[0];
    ok = ok && refuses(c, op, 2, "holds one", report);
    memcpy(op, all, sizeof(op));
    op[0].lane = CUDA_LANE_SIDE;
    ok = ok && refuses(c, op, 2, "own part", report);
    memcpy(op, all, sizeof(op));
    op[0].n_row++;
    ok = ok && refuses(c, op, 2, "other rows", report);
    memcpy(op, all, sizeof(op));
    op[0].as.send.slot = CUDA_SEND_SLOTS;
    ok = ok && refuses(c, op, 2, "no such slot", report);
    memcpy(op, all, sizeof(op));
    op[0].n_row = op[1].n_row = FLOATS;
    return ok && refuses(c, op, 2, "which a slot holds", report);
}

/* ---- without room ---------------------------------------------------------------------------------- */

struct dropping {
    struct sent_case *c;
    bool others;
};

static bool drop(void *arg, struct cuda_gpu *g, int r)
{
    const struct dropping *a = arg;
    (void)r;
    return a->c->group->plugin->peers_drop_sent(g, a->others);
}

/* When the room for parts has been given back none are sent, and sums by one kernel are as before. */
static bool check_dropped(struct sent_case *c, struct checkkern_report *report)
{
    struct dropping others = {c, true}, own = {c, false};
    plan_case(c);
    randomize(c);
    bool ok = gpu_group_run(c->group, write_inputs, c) && gpu_group_run(c->group, run_fused, c);
    for (int r = 0; r < c->group->size; r++)
        memcpy(c->after[r], c->expected[r], sizeof(struct sent_arrays));
    ok = ok && gpu_group_run(c->group, drop, &others) && gpu_group_run(c->group, drop, &own) &&
         gpu_group_run(c->group, write_inputs, c) && gpu_group_run(c->group, run_fused, c);
    checkkern_case(report, ok, "%s", c->group->why);
    for (int r = 0; r < c->group->size && ok; r++)
        ok = checkkern_case(report, memcmp(c->after[r], c->expected[r], sizeof(struct sent_arrays)) == 0,
                            "rank %d: other sums without room for parts", r);
    return ok && refuses(c, c->sent[0], OPS, "which a slot holds", report);
}

/* ---- groups ---------------------------------------------------------------------------------------- */

static bool take_memory(struct sent_case *c, struct arena *a)
{
    for (int r = 0; r < c->group->size; r++) {
        c->before[r] = arena_alloc(a, 1, sizeof(struct sent_arrays));
        c->after[r] = arena_alloc(a, 1, sizeof(struct sent_arrays));
        c->expected[r] = arena_alloc(a, 1, sizeof(struct sent_arrays));
        memset(c->before[r], 0, sizeof(struct sent_arrays));
        c->gpu[r] = c->group->plugin->alloc(c->group->gpu[r], sizeof(struct sent_arrays));
        if (!c->gpu[r])
            return false;
    }
    return true;
}

static bool check_group(const struct checkkern_gpu *g, int size, bool apart, struct checkkern_report *report)
{
    const struct gpu_group_options o = {.size = size,
                                        .apart = apart,
                                        .bytes = SUM_BYTES,
                                        .sent_bytes = FLOATS * sizeof(float),
                                        .timeout_ms = TIMEOUT_MS};
    struct gpu_group group;
    struct sent_case *c = mem_alloc(1, sizeof(*c));
    bool ok = gpu_group_open(&group, g->plugin, &o);
    c->group = &group;
    c->seed = g->seed + (uint64_t)size;
    checkkern_case(report, ok, "%s", group.why);
    if (ok) {
        ok = take_memory(c, g->arena);
        checkkern_case(report, ok, "no memory for %d ranks", size);
        for (int i = 0; i < g->rounds && ok; i++)
            ok = sent_case(c, report);
        ok = ok && check_refusals(c, report) && check_dropped(c, report);
        for (int r = 0; r < group.size; r++)
            if (c->gpu[r])
                g->plugin->release(group.gpu[r], c->gpu[r]);
    }
    gpu_group_close(&group);
    arena_reset(g->arena);
    free(c);
    return ok;
}

bool checkkern_cuda_sent(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    return gpu_group_each(g, 3, check_group, report);
}
