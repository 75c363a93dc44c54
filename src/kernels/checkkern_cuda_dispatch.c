/* Checks of rows that go to other ranks' experts and of products that come back: what arrives where, that
 * nothing else is touched, and that sums are those of a scalar loop in the order of choice, to the bit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_spread.h"

#define BUFFER_BYTES ((size_t)64 << 10) /* so small that operators are cut up */
#define TIMEOUT_MS   60000
#define REPLAYS      2

/* ---- running --------------------------------------------------------------------------------------- */

static int plan(const struct spread_case *c, int r, struct cuda_op op[2])
{
    const struct spread_arrays *m = &c->gpu[r];
    const struct cuda_spread rows = {m->count, m->place, c->most, c->n_all};
    op[0] = (struct cuda_op){.kind = CUDA_OP_DISPATCH,
                             .n_row = c->most,
                             .as.dispatch = {.rows = rows,
                                             .x = m->x,
                                             .expert = c->everywhere ? NULL : m->expert,
                                             .x_all = m->x_all,
                                             .local = m->local,
                                             .load = r % 2 ? NULL : m->load,
                                             .n = c->n,
                                             .n_used = c->n_used}};
    memcpy(op[0].as.dispatch.first, c->first, sizeof(c->first));
    op[1] = (struct cuda_op){.kind = CUDA_OP_COMBINE,
                             .n_row = c->most,
                             .as.combine = {.rows = rows,
                                            .each = m->each,
                                            .is_bf16 = c->is_bf16,
                                            .local = m->local,
                                            .expert = m->expert,
                                            .weight = m->weight,
                                            .out = m->out,
                                            .n = c->n,
                                            .n_used = c->n_used}};
    memcpy(op[1].as.combine.first, c->first, sizeof(c->first));
    return c->everywhere ? 1 : 2;
}

/* Ranks come at different times. */
static void come_late(const struct spread_case *c, int r)
{
    uint64_t seed = c->seed + (uint64_t)r;
    usleep((useconds_t)checkkern_int(&seed, 0, 300));
}

static bool run_directly(void *arg, struct cuda_gpu *g, int r)
{
    const struct spread_case *c = arg;
    struct cuda_op op[2];
    come_late(c, r);
    return c->group->plugin->run(g, op, plan(c, r, op)) && c->group->plugin->sync(g);
}

static bool make_graph(void *arg, struct cuda_gpu *g, int r)
{
    struct spread_case *c = arg;
    struct cuda_op op[2];
    c->graph[r] = c->group->plugin->graph_make(g, op, plan(c, r, op));
    return c->graph[r];
}

static bool replay(void *arg, struct cuda_gpu *g, int r)
{
    const struct spread_case *c = arg;
    bool ok = true;
    come_late(c, r);
    for (int i = 0; i < REPLAYS && ok; i++)
        ok = c->group->plugin->graph_run(g, c->graph[r]);
    return ok && c->group->plugin->sync(g);
}

/* ---- what must come out ---------------------------------------------------------------------------- */

/* The row that is at this place, or -1. */
static int row_at(const struct spread_case *c, int place, int *rank)
{
    for (*rank = 0; *rank < c->group->size; ++*rank)
        for (int i = 0; i < c->host[0].count[*rank]; i++)
            if (c->host[0].place[*rank * c->most + i] == place)
                return i;
    return -1;
}

static bool check_choice(const struct spread_case *c, int r, int place, int from, int row, bool *needed,
                         struct checkkern_report *report)
{
    bool ok = true;
    *needed = row >= 0 && c->everywhere;
    for (int j = 0; j < c->n_used && ok && !c->everywhere; j++) {
        int e = row >= 0 ? c->host[from].expert[row * c->n_used + j] : -1;
        bool here = e >= c->first[r] && e < c->first[r + 1];
        int found = c->host[r].local[place * c->n_used + j], expected = here ? e - c->first[r] : -1;
        *needed = *needed || here;
        ok = checkkern_case(report, found == expected, "rank %d of %d, place %d, choice %d: %d, expected %d",
                            r, c->group->size, place, j, found, expected);
    }
    return ok;
}

/* A pair of zeros of which only the second is negative cannot be sent: the same product either way. */
static uint16_t as_sent(const uint16_t *x, int i)
{
    return i % 2 && x[i] == 0x8000 && x[i - 1] == 0 ? 0 : x[i];
}

static bool check_places(const struct spread_case *c, int r, struct checkkern_report *report)
{
    bool ok = true;
    for (int place = 0; place < SPREAD_ALL && ok; place++) {
        int from, row = row_at(c, place, &from);
        bool needed = false;
        if (place < c->n_all)
            ok = check_choice(c, r, place, from, row, &needed, report);
        for (int j = 0; j < c->n_used && ok && place >= c->n_all && (place + 1) * c->n_used <= SPREAD_ALL;
             j++)
            ok = checkkern_case(report, c->host[r].local[place * c->n_used + j] == (int32_t)SPREAD_POISON_32,
                                "a choice was written behind the %d places", c->n_all);
        const uint16_t *x = needed ? c->host[from].x + (size_t)row * (size_t)c->n : NULL;
        for (int i = 0; i < c->n && ok && (size_t)(place + 1) * (size_t)c->n <= (size_t)SPREAD_ALL * SPREAD_N;
             i++) {
            uint16_t found = c->host[r].x_all[(size_t)place * (size_t)c->n + (size_t)i],
                     expected = x ? as_sent(x, i) : (uint16_t)SPREAD_POISON_16;
            ok = checkkern_case(report, found == expected,
                                "rank %d of %d, place %d of %d, number %d of %d: %04x, expected %04x", r,
                                c->group->size, place, c->n_all, i, c->n, found, expected);
        }
    }
    return ok;
}

static float product_at(const struct spread_case *c, int rank, size_t slot, int i)
{
    const uint8_t *at = c->host[rank].each + slot * spread_product_bytes(c);
    uint16_t narrow;
    float wide;
    if (!c->is_bf16) {
        memcpy(&wide, at + (size_t)i * sizeof(wide), sizeof(wide));
        return wide;
    }
    memcpy(&narrow, at + (size_t)i * sizeof(narrow), sizeof(narrow));
    return bf16_to_float(narrow);
}

static bool check_sums(const struct spread_case *c, int r, struct checkkern_report *report)
{
    const struct spread_arrays *h = &c->host[r];
    int n_row = c->everywhere ? 0 : h->count[r];
    bool ok = true;
    for (size_t i = 0; i < SPREAD_MOST * SPREAD_N && ok; i++) {
        int row = (int)(i / (size_t)c->n), column = (int)(i % (size_t)c->n);
        uint32_t found, expected = SPREAD_POISON_32;
        float sum = 0.0f;
        for (int j = 0; j < c->n_used && row < n_row; j++) {
            int at = row * c->n_used + j, e = h->expert[at];
            size_t slot = (size_t)h->place[r * c->most + row] * (size_t)c->n_used + (size_t)j;
            sum = fmaf(h->weight[at], product_at(c, spread_owner_of(c, e), slot, column), sum);
        }
        if (row < n_row)
            memcpy(&expected, &sum, sizeof(expected));
        memcpy(&found, &h->out[i], sizeof(found));
        ok = checkkern_case(report, found == expected,
                            "rank %d of %d, sum of row %d of %d, number %d of %d: %08x, expected %08x", r,
                            c->group->size, row, n_row, column, c->n, found, expected);
    }
    return ok;
}

static bool check_loads(const struct spread_case *c, int r, struct checkkern_report *report)
{
    uint64_t expected[SPREAD_EXPERTS] = {0};
    bool ok = true;
    for (int s = 0; s < c->group->size && r % 2 == 0 && !c->everywhere; s++)
        for (int i = 0; i < c->host[0].count[s] * c->n_used; i++)
            expected[c->host[s].expert[i]] += (uint64_t)c->n_run;
    for (int e = 0; e < SPREAD_EXPERTS && ok; e++)
        ok = checkkern_case(report, c->host[r].load[e] == expected[e],
                            "rank %d of %d, expert %d: counted %llu, expected %llu", r, c->group->size, e,
                            (unsigned long long)c->host[r].load[e], (unsigned long long)expected[e]);
    return ok;
}

static bool run_and_check(struct spread_case *c, gpu_rank_fn *run, int n_run, struct checkkern_report *report)
{
    if (!gpu_group_run(c->group, spread_write, c) || !gpu_group_run(c->group, run, c) ||
        !gpu_group_run(c->group, spread_read_back, c))
        return checkkern_case(report, false, "%s", c->group->why);
    c->n_run += n_run;
    bool ok = true;
    for (int r = 0; r < c->group->size && ok; r++)
        ok = check_places(c, r, report) && check_sums(c, r, report) && check_loads(c, r, report);
    return ok;
}

/* One shape: directly, then as a graph that finds other rows, places and choices at each replay. */
static bool shape_case(struct spread_case *c, struct checkkern_report *report)
{
    spread_choose_shape(c);
    spread_choose_rows(c);
    spread_choose_data(c);
    bool ok = run_and_check(c, run_directly, 1, report);
    if (ok && !gpu_group_run(c->group, make_graph, c))
        ok = checkkern_case(report, false, "%s", c->group->why);
    for (int i = 0; i < 2 && ok; i++) {
        spread_choose_rows(c);
        spread_choose_data(c);
        ok = run_and_check(c, replay, REPLAYS, report);
    }
    for (int r = 0; r < c->group->size; r++) {
        if (c->graph[r])
            c->group->plugin->graph_free(c->group->gpu[r], c->graph[r]);
        c->graph[r] = NULL;
    }
    return ok;
}

/* ---- a rank that does not come --------------------------------------------------------------------- */

static bool come_or_not(void *arg, struct cuda_gpu *g, int r)
{
    const struct spread_case *c = arg;
    struct cuda_op op[2];
    if (r + 1 == c->group->size)
        return true;
    return c->group->plugin->run(g, op, plan(c, r, op)) && c->group->plugin->sync(g);
}

static bool lost_case(struct spread_case *c, struct checkkern_report *report)
{
    char missed[48];
    spread_choose_shape(c);
    c->everywhere = false;
    spread_choose_rows(c);
    c->host[0].count[0] = 1; /* or nobody has anything to say to anybody */
    c->host[0].place[0] = 0;
    for (int r = 1; r < c->group->size; r++) {
        c->host[0].count[r] = 0;
        memcpy(c->host[r].place, c->host[0].place, SPREAD_ALL * sizeof(int32_t));
    }
    for (int r = 1; r < c->group->size; r++)
        memcpy(c->host[r].count, c->host[0].count, CUDA_PEERS_MAX * sizeof(int32_t));
    spread_choose_data(c);
    if (!gpu_group_run(c->group, spread_write, c))
        return checkkern_case(report, false, "%s", c->group->why);
    snprintf(missed, sizeof(missed), "rank %d's part has not come", c->group->size - 1);
    return checkkern_case(report, !gpu_group_run(c->group, come_or_not, c), "nobody misses a rank") &&
           checkkern_case(report, strstr(c->group->why, missed) != NULL, "said was: %s", c->group->why);
}

/* ---- groups ---------------------------------------------------------------------------------------- */

static bool check_group(const struct checkkern_gpu *g, int size, bool apart, bool lost,
                        struct checkkern_report *report)
{
    const struct gpu_group_options o = {
        .size = size, .apart = apart, .bytes = BUFFER_BYTES, .timeout_ms = lost ? 200 : TIMEOUT_MS};
    struct gpu_group group;
    struct spread_case *c = mem_alloc(1, sizeof(*c));
    bool ok = gpu_group_open(&group, g->plugin, &o);
    c->group = &group;
    c->seed = g->seed + (uint64_t)(10 * size + apart);
    checkkern_case(report, ok, "%s", group.why);
    if (ok) {
        ok = spread_take_memory(c, g->arena);
        checkkern_case(report, ok, "no memory for %d ranks", size);
        for (int i = 0; i < g->rounds && ok && !lost; i++)
            ok = shape_case(c, report);
        ok = ok && (!lost || lost_case(c, report));
        spread_drop_memory(c);
    }
    gpu_group_close(&group);
    arena_reset(g->arena);
    free(c);
    return ok;
}

static bool present_group(const struct checkkern_gpu *g, int size, bool apart,
                          struct checkkern_report *report)
{
    return check_group(g, size, apart, false, report);
}

bool checkkern_cuda_dispatch(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    return gpu_group_each(g, 4, present_group, report) && check_group(g, 2, false, true, report) &&
           check_group(g, 3, false, true, report);
}
