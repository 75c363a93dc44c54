#include "engine/sampler_spread.h"

#include <math.h>
#include <string.h>

#define PIECE_BLOCKS 8  /* of a row that are worth a ticket      */
#define PIECES_MAX   64 /* of a row, so that their maxima fit here */

struct pass {
    const struct sampler_ops *ops;
    struct sampler_weights w;
    int piece; /* blocks of one */
    float low, high, *out;
    const struct sampler_glance *glance;
    struct sampler_sums to;
    float best[PIECES_MAX]; /* of each piece */
    int at[PIECES_MAX], held[PIECES_MAX];
};

static int pieces(struct pass *p)
{
    int n_block = sampler_blocks(p->w.n);
    p->piece = (n_block + PIECES_MAX - 1) / PIECES_MAX;
    p->piece = p->piece < PIECE_BLOCKS ? PIECE_BLOCKS : p->piece;
    return (n_block + p->piece - 1) / p->piece;
}

/* Where piece i begins. */
static int piece_at(const struct pass *p, int i)
{
    return i * p->piece * SAMPLER_BLOCK;
}

/* The logits of piece i. */
static struct sampler_weights weights_of(const struct pass *p, int i)
{
    struct sampler_weights w = p->w;
    int begin = piece_at(p, i), most = p->piece * SAMPLER_BLOCK;
    w.x += begin;
    w.n = w.n - begin < most ? w.n - begin : most;
    return w;
}

/* What the sample has of the n_here logits from `begin` on. */
static void pick(const struct sampler_glance *g, const float *x, int n, int begin, int n_here)
{
    uint64_t step = (uint64_t)n, end = (uint64_t)(begin + n_here) * SAMPLER_SAMPLE;
    uint64_t i = ((uint64_t)begin * SAMPLER_SAMPLE + step - 1) / step;
    for (uint64_t at = i * step; i < SAMPLER_SAMPLE && at < end; i++, at += step)
        g->sample[i] = x[at / SAMPLER_SAMPLE];
}

static void max_piece(void *arg, int i, int worker)
{
    (void)worker;
    struct pass *p = arg;
    struct sampler_weights w = weights_of(p, i);
    int begin = piece_at(p, i);
    p->best[i] = p->ops->max(w.x, w.n, &p->at[i], p->glance ? p->glance->peak + begin / SAMPLER_BLOCK : NULL);
    p->at[i] += begin;
    if (p->glance)
        pick(p->glance, p->w.x, p->w.n, begin, w.n);
}

float sampler_spread_max(const struct sampler_spread *s, const float *x, int n, int *at,
                         const struct sampler_glance *glance)
{
    if (!s->pool) {
        float max = s->ops->max(x, n, at, glance ? glance->peak : NULL);
        if (glance)
            pick(glance, x, n, 0, n);
        return max;
    }
    struct pass p = {.ops = s->ops, .w = {.x = x, .n = n}, .glance = glance};
    int n_piece = pieces(&p), first = 0;
    pool_run(s->pool, n_piece, max_piece, &p);
    for (int i = 1; i < n_piece; i++)
        if (p.best[i] > p.best[first])
            first = i;
    *at = p.best[first] == -INFINITY ? 0 : p.at[first];
    return p.best[first];
}

double sampler_total(const double *sum, int n)
{
    double total = 0;
    for (int b = 0; b < sampler_blocks(n); b++)
        total += sum[b];
    return total;
}

static void weigh_piece(void *arg, int i, int worker)
{
    (void)worker;
    const struct pass *p = arg;
    struct sampler_weights w = weights_of(p, i);
    p->ops->weigh(w.x, w.n, w.max, w.scale, w.least, NULL, p->to.all + piece_at(p, i) / SAMPLER_BLOCK);
}

double sampler_spread_weigh(const struct sampler_spread *s, const struct sampler_weights *w, double *sum)
{
    if (!s->pool)
        return s->ops->weigh(w->x, w->n, w->max, w->scale, w->least, NULL, sum);
    struct pass p = {.ops = s->ops, .w = *w, .to.all = sum};
    pool_run(s->pool, pieces(&p), weigh_piece, &p);
    return sampler_total(sum, w->n);
}

/* Each piece into its own place of out. */
static void band_piece(void *arg, int i, int worker)
{
    (void)worker;
    struct pass *p = arg;
    struct sampler_weights w = weights_of(p, i);
    int begin = piece_at(p, i), block = begin / SAMPLER_BLOCK;
    const struct sampler_sums to = {p->to.all + block, p->to.above + block, p->to.held + block};
    p->held[i] = p->ops->weigh_band(&w, p->low, p->high, p->out + begin, &to);
}

int sampler_spread_band(const struct sampler_spread *s, const struct sampler_weights *w, float low,
                        float high, float *out, const struct sampler_sums *to)
{
    if (!s->pool)
        return s->ops->weigh_band(w, low, high, out, to);
    struct pass p = {.ops = s->ops, .w = *w, .low = low, .high = high, .out = out, .to = *to};
    int n_piece = pieces(&p);
    pool_run(s->pool, n_piece, band_piece, &p);
    int held = p.held[0];
    for (int i = 1; i < n_piece; held += p.held[i++])
        memmove(out + held, out + piece_at(&p, i), (size_t)p.held[i] * sizeof(*out));
    return held;
}
