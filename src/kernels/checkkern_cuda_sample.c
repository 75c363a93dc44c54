/* Checks of the GPU's draws against float64: what is drawn may be drawn, and is where the uniform number
 * lies. That they are the CPU sampler's to the token is tests/golden/test_device_draws.c's business. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/checkkern_cuda_case.h"

#define ROUNDING 1e-5 /* of sums of weights, each within a few 1e-7 */

struct entry {
    double weight;
    float x;
    int id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *p = a, *q = b;
    return p->x != q->x ? (p->x < q->x) - (p->x > q->x) : (p->id > q->id) - (p->id < q->id);
}

static int by_id(const void *a, const void *b)
{
    const struct entry *p = a, *q = b;
    return (p->id > q->id) - (p->id < q->id);
}

/* What may be drawn of a row, in the order in which draws walk; returns how many. edge: the weight of the
 * last one in a nucleus, which equals of it may take the place of. */
static int candidates(const float *x, int n, const struct cuda_draw *d, struct entry *e, double *edge)
{
    int held = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > -INFINITY)
            e[held++] = (struct entry){0, x[i], i};
    qsort(e, (size_t)held, sizeof(*e), by_logit);
    *edge = 0;
    if (held == 0 || e[0].x == INFINITY)
        return 0;
    if (d->scale == 0)
        return 1;
    held = d->top_k > 0 && d->top_k < held ? d->top_k : held;
    double total = 0, at = 0;
    for (int i = 0; i < held; i++) {
        e[i].weight = exp(((double)e[i].x - (double)e[0].x) * (double)d->scale);
        if (e[i].weight < (double)d->min_p)
            held = i;
        else
            total += e[i].weight;
    }
    for (int i = 0; i < held && d->top_p < 1; i++) {
        at += e[i].weight;
        if (at >= total * (double)d->top_p) {
            held = i + 1;
            *edge = e[i].weight;
        }
    }
    if (d->top_k == 0)
        qsort(e, (size_t)held, sizeof(*e), by_id);
    return held;
}

static bool check_token(struct checkkern_report *r, const float *x, int n, const struct cuda_draw *d,
                        int token, struct entry *e)
{
    double edge, total = 0, at = 0;
    int held = candidates(x, n, d, e, &edge), found = -1;
    if (held == 0)
        return checkkern_case(r, token == -1, "token %d where no logit is finite", token);
    if (d->scale == 0)
        return checkkern_case(r, token == e[0].id, "token %d, the likeliest is %d", token, e[0].id);
    for (int i = 0; i < held; i++)
        total += e[i].weight;
    for (int i = 0; i < held && found < 0; i++) {
        if (e[i].id == token)
            found = i;
        else
            at += e[i].weight;
    }
    double slack = total * ROUNDING + edge, wanted = d->uniform * total;
    if (found < 0) { /* of those that equal the last one in all bits that weights have? */
        bool is = token >= 0 && token < n;
        double w = is ? exp(((double)x[token] - (double)x[e[0].id]) * (double)d->scale) : 0;
        return checkkern_case(
            r, is && edge > 0 && fabs(w - edge) < edge * ROUNDING,
            "token %d of %d is not among the %d that may be drawn (top_k %d, top_p %g, min_p %g)", token, n,
            held, d->top_k, (double)d->top_p, (double)d->min_p);
    }
    return checkkern_case(
        r, wanted >= at - slack && wanted <= at + e[found].weight + slack,
        "token %d of %d has the mass from %g to %g of %g, the draw is at %g (top_k %d, top_p %g)", token, n,
        at, at + e[found].weight, total, wanted, d->top_k, (double)d->top_p);
}

static double uniform(uint64_t *seed)
{
    return checkkern_int(seed, 0, (1 << 30) - 1) * 0x1p-30;
}

static struct cuda_draw random_draw(uint64_t *seed, int n)
{
    static const float temperature[] = {0, 0.3f, 0.7f, 1, 1, 2.5f},
                       top_p[] = {1, 1, 0.95f, 0.5f, 0.01f, 0.999f}, min_p[] = {0, 0, 0, 0.05f, 1};
    float t = temperature[checkkern_int(seed, 0, 5)];
    int top_k =
        checkkern_int(seed, 0, 2) ? 0 : checkkern_int(seed, 1, n < CUDA_SAMPLE_TOP_K ? n : CUDA_SAMPLE_TOP_K);
    return (struct cuda_draw){.uniform = checkkern_int(seed, 0, 9) ? uniform(seed) : 0,
                              .scale = t > 0 ? 1 / t : 0,
                              .top_p = top_p[checkkern_int(seed, 0, 5)],
                              .min_p = min_p[checkkern_int(seed, 0, 4)],
                              .top_k = checkkern_int(seed, 0, 3) ? top_k
                                       : top_k > 50              ? 50
                                                                 : top_k,
                              .wanted = checkkern_int(seed, 0, 7) > 0};
}

/* Bell-like, with few values and so many equals, flat, with bans, or with nothing to choose from. */
static void fill_row(uint64_t *seed, float *x, int n)
{
    int kind = checkkern_int(seed, 0, 7), bans = checkkern_int(seed, 0, 3);
    for (int i = 0; i < n; i++) {
        double bell = uniform(seed) + uniform(seed) + uniform(seed) + uniform(seed) - 2;
        x[i] = kind == 0   ? (float)checkkern_int(seed, -4, 4)
               : kind == 1 ? 3.0f
               : kind == 2 ? (float)(40 * bell)
                           : (float)(6 * bell);
        if (bans == 0 && checkkern_int(seed, 0, 2) == 0)
            x[i] = checkkern_int(seed, 0, 9) ? -INFINITY : NAN;
    }
    if (kind == 3 && checkkern_int(seed, 0, 5) == 0)
        x[0] = INFINITY;
    for (int i = 0; i < n && kind == 4 && bans == 1; i++)
        x[i] = i % 2 ? NAN : -INFINITY;
}

static bool sample_case(const struct checkkern_gpu *g, uint64_t *seed, int round, struct checkkern_report *r)
{
    struct gpu_case c;
    gpu_case_begin(&c, g, r);
    /* long rows are shared by several blocks */
    int most = round % 8 == 7 ? 40000 : round % 8 == 3 ? 9000 : round % 3 ? 2500 : 40;
    int n_row = checkkern_int(seed, 1, most > 2500 ? 2 : 5),
        n = checkkern_int(seed, most > 2500 ? most / 3 : 1, most);
    int real = checkkern_int(seed, 0, 2) ? n_row : checkkern_int(seed, 1, n_row);
    size_t bytes = (size_t)(n_row * n) * sizeof(float);
    float *x = arena_alloc(g->arena, (size_t)(n_row * n), sizeof(*x));
    struct cuda_draw *draw = arena_alloc(g->arena, (size_t)n_row, sizeof(*draw));
    struct entry *e = arena_alloc(g->arena, (size_t)n, sizeof(*e));
    for (int t = 0; t < n_row; t++) {
        fill_row(seed, x + (size_t)t * (size_t)n, n);
        draw[t] = random_draw(seed, n);
    }
    struct cuda_op op = {
        .kind = CUDA_OP_SAMPLE, .n_row = n_row, .count = gpu_case_in(&c, &real, sizeof(real))};
    float *there = gpu_case_in_out(&c, x, bytes);
    int32_t *id = gpu_case_out(&c, (size_t)n_row * sizeof(*id));
    op.as.sample = (struct cuda_sample){
        .x = there, .draw = gpu_case_in(&c, draw, (size_t)n_row * sizeof(*draw)), .id = id, .n = n};
    bool ok = gpu_case_run(&c, &op, 1);
    const float *left = gpu_case_result(&c, there);
    const int32_t *out = gpu_case_result(&c, id);
    for (int t = 0; t < n_row && ok; t++) {
        const float *row = x + (size_t)t * (size_t)n;
        if (t < real && draw[t].wanted)
            ok = check_token(r, row, n, &draw[t], out[t], e);
        else
            ok = checkkern_case(r, !memcmp(left + (size_t)t * (size_t)n, row, (size_t)n * sizeof(*row)),
                                "row %d, which is not wanted, was written to", t);
    }
    gpu_case_end(&c);
    return ok;
}

bool checkkern_cuda_sample(const struct checkkern_gpu *g, struct checkkern_report *r)
{
    uint64_t seed = g->seed;
    bool ok = true;
    for (int i = 0; i < 2 * g->rounds && ok; i++)
        ok = sample_case(g, &seed, i, r);
    return ok;
}
