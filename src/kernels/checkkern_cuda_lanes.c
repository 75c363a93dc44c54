/* Checks of operators in two lanes: two halves of a step whose sums over ranks run beside the other half's
 * products and experts, whose kernel holds whole SMs and waits for itself. The numbers must be those of one
 * lane, to the bit, whoever is late; times must be in the order of the waits; a schedule in which ranks could
 * wait for each other for ever is refused. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "kernels/checkkern_cuda_case.h"
#include "kernels/checkkern_cuda_group.h"
#include "kernels/cuda/cuda_layout.h"

#define WIDTH        64
#define ROWS_MAX     32
#define EXPERTS      4
#define USED         2
#define LAYERS       3
#define PER_LAYER    6 /* sums of both halves, products and experts of the first, and of the second */
#define OPS          (LAYERS * PER_LAYER)
#define OPS_MAX      (OPS + 2 * LAYERS) /* where parts are sent: besides, that of each half */
#define PAIR_BYTES   ((size_t)(2 * WIDTH / CUDA_UNIT_ROWS) * CUDA_UNIT_BYTES)
#define DOWN_BYTES   ((size_t)(WIDTH / CUDA_UNIT_ROWS) * CUDA_UNIT_BYTES)
#define BUFFER_BYTES ((size_t)16 << 10)
#define TIMEOUT_MS   60000
#define REPLAYS      3
#define CLOCK        2e-6f /* seconds that two events' times may be apart without meaning it */

/* What a rank has, one after the other in one piece of memory: first what is compared. */
struct arrays {
    float residual[2][ROWS_MAX][WIDTH], delta[2][ROWS_MAX][WIDTH], y_float[2][ROWS_MAX][WIDTH];
    float matrix[WIDTH][WIDTH], norm[WIDTH], ones[WIDTH];
    float junk[2][ROWS_MAX][WIDTH], weight[ROWS_MAX][USED];
    int32_t id[ROWS_MAX][USED];
    uint16_t y[2][ROWS_MAX][WIDTH];
    uint8_t gate_up[EXPERTS][PAIR_BYTES], down[EXPERTS][DOWN_BYTES];
};
#define COMPARED offsetof(struct arrays, matrix)

struct lanes_case {
    struct gpu_group *group;
    struct arrays *gpu[CUDA_PEERS_MAX], *before[CUDA_PEERS_MAX], *after[CUDA_PEERS_MAX],
        *expected[CUDA_PEERS_MAX];
    struct cuda_op op[CUDA_PEERS_MAX][OPS_MAX];
    struct cuda_span span[CUDA_PEERS_MAX][OPS_MAX];
    int n_op;
    struct cuda_graph *graph[CUDA_PEERS_MAX];
    int n_row[2], n_side, n_sm; /* n_sm: of each rank */
    bool sends;                 /* sums are of parts that copy engines send */
    uint64_t seed;
};

/* ---- operators ------------------------------------------------------------------------------------- */

static struct cuda_op sum_of(const struct arrays *a, int half, int way)
{
    struct cuda_op op = {.kind = CUDA_OP_ALL_REDUCE, .lane = CUDA_LANE_SIDE};
    op.as.all_reduce = (struct cuda_all_reduce){.norm = {.residual = (float *)(uintptr_t)a->residual[half],
                                                         .delta = {a->delta[half][0], NULL},
                                                         .weight = a->norm,
                                                         .y = (uint16_t *)(uintptr_t)a->y[half],
                                                         .y_float = (float *)(uintptr_t)a->y_float[half],
                                                         .n = WIDTH,
                                                         .eps = 1e-5f},
                                                .way = way};
    return op;
}

static struct cuda_op product_of(const struct arrays *a, int half)
{
    struct cuda_op op = {.kind = CUDA_OP_LINEAR};
    op.as.linear =
        (struct cuda_linear){.part[0] = {.w = {CUDA_F32, (const uint8_t *)a->matrix, NULL, a->ones},
                                         .out = (float *)(uintptr_t)a->delta[half],
                                         .n_out = WIDTH},
                             .n_part = 1,
                             .K = WIDTH,
                             .x_float = a->y_float[half][0]};
    return op;
}

/* Nobody takes their result: their split, and so their last bits, depend on how many SMs there are. */
static struct cuda_op experts_of(const struct arrays *a, int half)
{
    struct cuda_op op = {.kind = CUDA_OP_MOE};
    op.as.moe = (struct cuda_moe){.gate_up = a->gate_up[0],
                                  .down = a->down[0],
                                  .gate_scale = a->ones,
                                  .up_scale = a->ones,
                                  .down_scale = a->ones,
                                  .x = a->y[half][0],
                                  .id = a->id[0],
                                  .weight = a->weight[0],
                                  .out = (float *)(uintptr_t)a->junk[half],
                                  .n_used = USED,
                                  .n_expert = EXPERTS,
                                  .hidden = WIDTH,
                                  .inner = WIDTH};
    return op;
}

/* A sum waits for its half's experts of the layer before, which read what it writes; a product for its half's
 * sum. */
static void plan(struct lanes_case *c, int rank)
{
    const struct arrays *a = c->gpu[rank];
    for (int layer = 0; layer < LAYERS; layer++) {
        struct cuda_op *op = &c->op[rank][PER_LAYER * layer];
        for (int half = 0; half < 2; half++) {
            op[half] = sum_of(a, half, layer % 3);
            op[half].back = layer ? 3 - half : 0;
            op[2 + 2 * half] = product_of(a, half);
            op[2 + 2 * half].back = 2 + half;
            op[3 + 2 * half] = experts_of(a, half);
            op[half].n_row = op[2 + 2 * half].n_row = op[3 + 2 * half].n_row = c->n_row[half];
        }
    }
}

/* Parts of both halves, then the sum, product and experts of the first, and of the second. */
static void plan_sent(struct lanes_case *c, int rank)
{
    const struct arrays *a = c->gpu[rank];
    struct cuda_op *op = c->op[rank];
    for (int layer = 0; layer < LAYERS; layer++)
        for (int half = 0; half < 2; half++) {
            struct cuda_op *send = &op[(PER_LAYER + 2) * layer + half], *add = send + 2 + 2 * half;
            int slot = 2 * half + layer % 2;
            *send = (struct cuda_op){.kind = CUDA_OP_SEND,
                                     .lane = CUDA_LANE_SIDE,
                                     .back = layer ? 4 - half : 0,
                                     .as.send = {.part = a->delta[half][0], .n = WIDTH, .slot = slot}};
            add[0] = sum_of(a, half, CUDA_REDUCE_SENT);
            add[0].as.all_reduce.slot = slot;
            add[0].lane = CUDA_LANE_MAIN;
            add[0].back = 2 + 2 * half;
            add[1] = product_of(a, half);
            add[2] = experts_of(a, half);
            send->n_row = add[0].n_row = add[1].n_row = add[2].n_row = c->n_row[half];
        }
}

static void plan_lanes(struct lanes_case *c, int rank)
{
    c->sends ? plan_sent(c, rank) : plan(c, rank);
}

static void plan_one_lane(struct lanes_case *c, int rank)
{
    plan(c, rank);
    for (int i = 0; i < OPS; i++)
        c->op[rank][i].lane = c->op[rank][i].back = 0;
}

/* ---- running --------------------------------------------------------------------------------------- */

static bool make_ready(void *arg, struct cuda_gpu *g, int r)
{
    struct lanes_case *c = arg;
    const struct cuda_plugin *p = c->group->plugin;
    size_t bytes;
    plan_one_lane(c, r);
    /* Ranks of one process load kernels under one lock, and the first time may wait for an idle GPU: not
     * while one waits for the other. Halves of other sizes may have other kernels. */
    const struct cuda_op alone[] = {c->op[r][2], c->op[r][3], c->op[r][4], c->op[r][5]};
    return p->peers_reserve(g, c->n_side) && p->write(g, c->gpu[r], c->before[r], sizeof(struct arrays)) &&
           p->scratch(g, c->op[r], OPS, &bytes) && p->reserve(g, bytes) &&
           p->run(g, alone, COUNT_OF(alone)) && p->sync(g) &&
           p->write(g, c->gpu[r], c->before[r], sizeof(struct arrays));
}

static void come_late(const struct lanes_case *c, int r, int times)
{
    uint64_t seed = c->seed + 17 * (uint64_t)times + (uint64_t)r;
    usleep((useconds_t)checkkern_int(&seed, 0, 300));
}

static bool run_one_lane(void *arg, struct cuda_gpu *g, int r)
{
    struct lanes_case *c = arg;
    const struct cuda_plugin *p = c->group->plugin;
    come_late(c, r, 0);
    return p->run(g, c->op[r], OPS) && p->sync(g) &&
           p->read(g, c->expected[r], c->gpu[r], sizeof(struct arrays));
}

/* From the beginning: directly, with times, and as a graph, each with the same result. */
enum how { DIRECTLY, TRACED, RECORDED, HOWS = RECORDED + REPLAYS };

struct running {
    struct lanes_case *c;
    int how;
};

static bool start(struct lanes_case *c, struct cuda_gpu *g, int r, int how)
{
    const struct cuda_plugin *p = c->group->plugin;
    if (how == DIRECTLY)
        return p->run(g, c->op[r], c->n_op);
    if (how == TRACED)
        return p->trace(g, c->op[r], c->n_op, c->span[r]);
    return p->graph_run(g, c->graph[r]);
}

static bool run_lanes(void *arg, struct cuda_gpu *g, int r)
{
    const struct running *a = arg;
    struct lanes_case *c = a->c;
    const struct cuda_plugin *p = c->group->plugin;
    come_late(c, r, 1 + a->how);
    return start(c, g, r, a->how) && p->sync(g) && p->read(g, c->after[r], c->gpu[r], sizeof(struct arrays));
}

/* Not while another rank's kernels run, as those of one process may wait for each other's copies. */
static bool write_inputs(void *arg, struct cuda_gpu *g, int r)
{
    const struct lanes_case *c = arg;
    return c->group->plugin->write(g, c->gpu[r], c->before[r], sizeof(struct arrays));
}

static bool record(void *arg, struct cuda_gpu *g, int r)
{
    struct lanes_case *c = arg;
    plan_lanes(c, r);
    c->graph[r] = c->group->plugin->graph_make(g, c->op[r], c->n_op);
    return c->graph[r];
}

static void drop_graphs(struct lanes_case *c)
{
    for (int r = 0; r < c->group->size; r++) {
        if (c->graph[r])
            c->group->plugin->graph_free(c->group->gpu[r], c->graph[r]);
        c->graph[r] = NULL;
    }
}

/* ---- one case -------------------------------------------------------------------------------------- */

static void randomize(struct lanes_case *c, int most)
{
    uint64_t *s = &c->seed;
    for (int r = 0; r < c->group->size; r++) {
        struct arrays *a = c->before[r];
        uint8_t *bytes = (uint8_t *)a;
        for (size_t i = 0; i < offsetof(struct arrays, id); i += sizeof(float)) {
            float f = checkkern_float(s);
            memcpy(bytes + i, &f, sizeof(f));
        }
        for (size_t i = offsetof(struct arrays, y); i < sizeof(*a); i++)
            bytes[i] = (uint8_t)checkkern_int(s, 0, 255);
        for (int i = 0; i < WIDTH; i++)
            a->ones[i] = 1;
        for (int i = 0; i < ROWS_MAX; i++)
            for (int j = 0; j < USED; j++)
                a->id[i][j] = checkkern_int(s, -1, EXPERTS - 1);
        memcpy(a->residual, c->before[0]->residual, sizeof(a->residual)); /* the same everywhere */
        memcpy(a->norm, c->before[0]->norm, sizeof(a->norm));
    }
    for (int i = 0; i < 2; i++)
        c->n_row[i] = checkkern_int(s, 1, most);
}

static bool check_times(const struct lanes_case *c, int r, struct checkkern_report *report)
{
    bool ok = true;
    for (int i = 0; i < c->n_op && ok; i++) {
        const struct cuda_span *s = c->span[r], *from = &s[i - c->op[r][i].back];
        ok = checkkern_case(report,
                            s[i].begin <= s[i].end && (from == &s[i] || from->end <= s[i].begin + CLOCK),
                            "rank %d, operator %d runs from %g to %g s, what it waits for to %g", r, i,
                            (double)s[i].begin, (double)s[i].end, (double)from->end);
    }
    return ok;
}

static bool check_result(const struct lanes_case *c, int how, struct checkkern_report *report)
{
    bool ok = true;
    for (int r = 0; r < c->group->size && ok; r++) {
        ok = checkkern_case(
            report, memcmp(c->after[r], c->expected[r], COMPARED) == 0,
            "%d and %d rows, %d SMs for sums, sent %d, rank %d of %d, run %d: not the numbers of one lane",
            c->n_row[0], c->n_row[1], c->n_side, c->sends, r, c->group->size, how);
        if (ok && how == TRACED)
            ok = check_times(c, r, report);
    }
    return ok;
}

static bool lanes_case(struct lanes_case *c, const struct checkkern_gpu *g, struct checkkern_report *report)
{
    randomize(c, g->rounds > 4 ? ROWS_MAX : 8); /* emulated ranks take a while */
    c->sends = !c->sends;
    c->n_op = c->sends ? OPS_MAX : OPS;
    c->n_side = checkkern_int(&c->seed, 1, c->n_sm / 2);
    bool ok = gpu_group_run(c->group, make_ready, c) && gpu_group_run(c->group, run_one_lane, c) &&
              gpu_group_run(c->group, record, c);
    if (!ok)
        checkkern_case(report, false, "%s", c->group->why);
    for (int how = 0; how < HOWS && ok; how++) {
        struct running a = {c, how};
        ok = gpu_group_run(c->group, write_inputs, c) && gpu_group_run(c->group, run_lanes, &a);
        ok = ok ? check_result(c, how, report)
                : checkkern_case(report, false, "%d and %d rows, %d SMs for sums, sent %d, run %d: %s",
                                 c->n_row[0], c->n_row[1], c->n_side, c->sends, how, c->group->why);
    }
    drop_graphs(c);
    return ok;
}

/* ---- what is refused ------------------------------------------------------------------------------- */

struct wrong {
    const char *what, *says;
    int at, lane, back; /* of the operator that is made wrong */
};

static bool refuses(const struct lanes_case *c, const struct wrong *w, struct checkkern_report *report)
{
    const struct cuda_plugin *p = c->group->plugin;
    struct cuda_op op[OPS];
    memcpy(op, c->op[0], sizeof(op));
    op[w->at].lane = w->lane;
    op[w->at].back = w->back;
    bool ran = p->run(c->group->gpu[0], op, OPS);
    return checkkern_case(report, !ran && strstr(p->error(c->group->gpu[0]), w->says), "%s: %s", w->what,
                          ran ? "not refused" : p->error(c->group->gpu[0]));
}

static bool check_refusals(struct lanes_case *c, struct checkkern_report *report)
{
    static const struct wrong wrong[] = {
        {"a sum on the main lane beside those on the side", "side by side", PER_LAYER, CUDA_LANE_MAIN, 0},
        {"a wait for an operator before the first", "before the first", 2, CUDA_LANE_MAIN, 3},
        {"a wait for one of the same lane", "its own lane", 3, CUDA_LANE_MAIN, 1},
        {"a third lane", "no such lane", 0, CUDA_LANES, 0},
    };
    const struct cuda_plugin *p = c->group->plugin;
    plan(c, 0);
    bool ok = checkkern_case(report, !p->peers_reserve(c->group->gpu[0], 0), "no SMs for sums: not refused");
    for (size_t i = 0; i < COUNT_OF(wrong) && ok; i++)
        ok = refuses(c, &wrong[i], report);
    return ok;
}

/* ---- groups ---------------------------------------------------------------------------------------- */

static bool take_memory(struct lanes_case *c, struct arena *a)
{
    for (int r = 0; r < c->group->size; r++) {
        c->before[r] = arena_alloc(a, 1, sizeof(struct arrays));
        c->after[r] = arena_alloc(a, 1, sizeof(struct arrays));
        c->expected[r] = arena_alloc(a, 1, sizeof(struct arrays));
        memset(c->before[r], 0, sizeof(struct arrays));
        c->gpu[r] = c->group->plugin->alloc(c->group->gpu[r], sizeof(struct arrays));
        if (!c->gpu[r])
            return false;
    }
    return true;
}

static bool check_group(const struct checkkern_gpu *g, bool apart, struct checkkern_report *report)
{
    const struct gpu_group_options o = {.size = 2,
                                        .apart = apart,
                                        .bytes = BUFFER_BYTES,
                                        .sent_bytes = ROWS_MAX * WIDTH * sizeof(float),
                                        .timeout_ms = TIMEOUT_MS};
    struct gpu_group group;
    struct lanes_case *c = mem_alloc(1, sizeof(*c));
    bool ok = gpu_group_open(&group, g->plugin, &o);
    c->group = &group;
    c->seed = g->seed + apart;
    c->n_sm = apart ? g->info.n_sm : g->info.n_sm / o.size;
    checkkern_case(report, ok, "%s", group.why);
    if (ok) {
        ok = take_memory(c, g->arena);
        checkkern_case(report, ok, "no memory for two ranks");
        for (int i = 0; i < g->rounds && ok; i++)
            ok = lanes_case(c, g, report);
        ok = ok && check_refusals(c, report);
        for (int r = 0; r < group.size; r++)
            if (c->gpu[r])
                g->plugin->release(group.gpu[r], c->gpu[r]);
    }
    gpu_group_close(&group);
    arena_reset(g->arena);
    free(c);
    return ok;
}

/* On two GPUs, or on one that both ranks share where there is no other. Emulated GPUs share nothing. */
bool checkkern_cuda_lanes(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    return check_group(g, gpu_group_has(g, 1), report);
}
