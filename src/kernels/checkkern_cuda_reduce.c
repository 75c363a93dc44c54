/* Sums of several GPUs: they must be those of a scalar loop in rank order, to the bit, and all else the same
 * bits on all ranks, whichever way they travel and in whatever order the ranks come. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fp4/fp4.h"
#include "kernels/checkkern_cuda_peers.h"

#define ROUNDING 0x1p-20 /* of a norm's few operations */
#define OPS      12      /* without a pause, and again as a graph */
#define ROUNDS   64      /* beyond which rounds are calls in one row, of two ranks */

/* ---- the reference --------------------------------------------------------------------------------- */

/* Which of its two deltas a rank has in this operator. */
static bool has_delta(const struct cuda_op *op, int i)
{
    return op->as.all_reduce.norm.delta[i] != NULL;
}

static float sum_at(const struct peers_case *c, int op, size_t at)
{
    float sum = 0.0f;
    for (int r = 0; r < c->group.size; r++) {
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
    for (int r = 0; r < c->group.size; r++) {
        const struct peers_arrays *m = &c->at[r];
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
    for (int r = 1; r < c->group.size; r++)
        if (!checkkern_case(report,
                            memcmp(c->after[r], c->after[0], PEERS_FLOATS * sizeof(float)) == 0 &&
                                memcmp(c->y_float[r], c->y_float[0], PEERS_FLOATS * sizeof(float)) == 0 &&
                                memcmp(c->sum[r], c->sum[0], PEERS_FLOATS * sizeof(float)) == 0 &&
                                memcmp(c->y[r], c->y[0], PEERS_FLOATS * sizeof(uint16_t)) == 0,
                            "ranks 0 and %d of %d have different bits", r, c->group.size))
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
                            "%d ranks, row %d of %d, column %d of %d: %g, expected %g", c->group.size, t,
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
                       c->group.size, t, s->n_row, i, s->n, (double)found, expected);
    }
    return ok;
}

/* Rows behind the real ones, of which there must be none written. */
static bool check_rest(const struct peers_case *c, const struct reduce_shape *s, int real,
                       struct checkkern_report *report)
{
    size_t first = (size_t)real * (size_t)s->n;
    bool ok = true;
    for (size_t i = first; i < PEERS_FLOATS && ok; i++)
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
    for (int t = 0; t < PEERS_ROWS; t++)
        c->row[t] = checkkern_int(&c->seed, 0, (int)(PEERS_FLOATS / (size_t)s->n) - 1);
    peers_randomize(c);
    plan_reduce(c, 0, s);
    c->n_op = 1;
    if (!peers_run(c, report))
        return false;
    bool ok = same_on_all(c, report) && check_rest(c, s, real, report);
    for (int t = 0; t < real && ok; t++)
        ok = check_row(c, s, t, report);
    return ok;
}

static struct reduce_shape any_shape(uint64_t *seed)
{
    int n =
        checkkern_int(seed, 0, 3) ? checkkern_int(seed, 1, 700) : 4 * checkkern_int(seed, 100, PEERS_N / 4);
    return (struct reduce_shape){.n_row = checkkern_int(seed, 1, PEERS_ROWS),
                                 .n = n,
                                 .way = checkkern_int(seed, CUDA_REDUCE_AUTO, CUDA_REDUCE_TWO_SHOT),
                                 .gather = !checkkern_int(seed, 0, 3),
                                 .counted = checkkern_int(seed, 0, 1)};
}

bool peers_check_sum(struct peers_case *c, bool only_sum, struct checkkern_report *report)
{
    struct reduce_shape s = any_shape(&c->seed);
    s.only_sum = !s.gather && only_sum;
    return reduce_case(c, &s, report);
}

/* ---- many, one after another ----------------------------------------------------------------------- */

/* How many rows it really has. */
static int real_rows(const struct peers_case *c, const struct reduce_shape *s)
{
    return s->counted && c->count < s->n_row ? c->count : s->n_row;
}

/* The stream after operators that each add their sums to it, `times` over. */
static bool check_stream(struct peers_case *c, const struct reduce_shape *s, int times,
                         struct checkkern_report *report)
{
    float *v = c->residual;
    for (int k = 0; k < times; k++)
        for (int o = 0; o < c->n_op; o++) {
            size_t n = s[o].only_sum || s[o].gather ? 0 : (size_t)real_rows(c, &s[o]) * (size_t)s[o].n;
            for (size_t i = 0; i < n; i++)
                v[i] = v[i] + sum_at(c, o, i);
        }
    size_t i = 0;
    while (i < PEERS_FLOATS && c->after[0][i] == v[i])
        i++;
    return checkkern_case(
        report, i == PEERS_FLOATS, "%d ranks, element %zu after %d operators, %d times: %g, expected %g",
        c->group.size, i, c->n_op, times, (double)c->after[0][i % PEERS_FLOATS], (double)v[i % PEERS_FLOATS]);
}

/* n operators of all sizes. */
static void plan_many(struct peers_case *c, int n, struct reduce_shape *s)
{
    c->n_op = n;
    c->count = checkkern_int(&c->seed, 1, PEERS_ROWS);
    for (int t = 0; t < PEERS_ROWS; t++)
        c->row[t] = t % 3;
    for (int i = 0; i < n; i++) {
        s[i] = any_shape(&c->seed);
        s[i].counted &= c->count <= s[i].n_row;
        s[i].only_sum = !s[i].gather && i % 5 == 4;
        plan_reduce(c, i, &s[i]);
    }
    peers_randomize(c);
}

/* Without a pause, directly and as a graph that is replayed. */
static bool stress(struct peers_case *c, struct checkkern_report *report)
{
    struct reduce_shape s[OPS];
    c->replays = 3;
    plan_many(c, OPS, s);
    return peers_run_and_replay(c, report) && same_on_all(c, report) &&
           check_stream(c, s, 1 + c->replays, report);
}

/* So many calls of random shapes, each directly and in a graph; how many were made. */
static long many_calls(struct peers_case *c, long n, struct checkkern_report *report)
{
    struct reduce_shape s[PEERS_OPS];
    long done = 0;
    bool ok = true;
    while (done < n && ok) {
        plan_many(c, PEERS_OPS, s);
        c->replays = 1;
        ok = peers_run_and_replay(c, report) && same_on_all(c, report) &&
             check_stream(c, s, 1 + c->replays, report);
        done += ok ? 2 * c->n_op : 0;
    }
    return done;
}

static bool check_group(const struct checkkern_gpu *g, int size, bool apart, struct checkkern_report *report)
{
    struct peers_case *c = peers_case_open(g, size, apart, g->seed + (uint64_t)size, report);
    bool ok = c;
    int rounds = g->rounds < ROUNDS ? g->rounds : ROUNDS;
    for (int i = 0; i < rounds && ok; i++)
        ok = peers_check_sum(c, i % 4 == 3, report) && (i % 3 != 2 || stress(c, report));
    peers_case_close(c, g->arena);
    return ok;
}

/* As many calls as rounds in one row, between two GPUs where there are two. */
static bool check_many(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    bool apart = gpu_group_has(g, 1);
    struct peers_case *c = peers_case_open(g, 2, apart, g->seed + 77, report);
    long done = c ? many_calls(c, g->rounds, report) : 0;
    bool ok = done >= g->rounds;
    peers_case_close(c, g->arena);
    if (ok)
        snprintf(report->detail, sizeof(report->detail), "%ld calls in a row between %s, none wrong", done,
                 apart ? "two GPUs" : "two ranks of one GPU");
    return ok;
}

bool checkkern_cuda_all_reduce(const struct checkkern_gpu *g, struct checkkern_report *report)
{
    return gpu_group_each(g, 4, check_group, report) && (g->rounds <= ROUNDS || check_many(g, report));
}
