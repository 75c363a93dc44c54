#include "engine/sampler_spread.h"

#include <math.h>
#include <string.h>

#define PIECE_BLOCKS 8 /* of a row that are worth a ticket */

int sampler_pass_cut(struct sampler_pass *p, int least)
{
    int n_block = sampler_blocks(p->w.n);
    p->piece = (n_block + SAMPLER_PIECES - 1) / SAMPLER_PIECES;
    p->piece = p->piece < least ? least : p->piece;
    return (n_block + p->piece - 1) / p->piece;
}

/* Where piece i begins. */
static int piece_at(const struct sampler_pass *p, int i)
{
    return i * p->piece * SAMPLER_BLOCK;
}

/* The logits of piece i. */
static struct sampler_weights weights_of(const struct sampler_pass *p, int i)
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

void sampler_pass_max(struct sampler_pass *p, int i)
{
    struct sampler_weights w = weights_of(p, i);
    int begin = piece_at(p, i);
    p->best[i] = p->ops->max(w.x, w.n, &p->at[i], p->glance ? p->glance->peak + begin / SAMPLER_BLOCK : NULL);
    p->at[i] += begin;
    if (p->glance)
        pick(p->glance, p->w.x, p->w.n, begin, w.n);
}

float sampler_pass_max_of(const struct sampler_pass *p, int n_piece, int *at)
{
    int first = 0;
    for (int i = 1; i < n_piece; i++)
        if (p->best[i] > p->best[first])
            first = i;
    *at = p->best[first] == -INFINITY ? 0 : p->at[first];
    return p->best[first];
}

static void max_piece(void *arg, int i, int worker)
{
    (void)worker;
    sampler_pass_max(arg, i);
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
    struct sampler_pass p = {.ops = s->ops, .w = {.x = x, .n = n}, .glance = glance};
    int n_piece = sampler_pass_cut(&p, PIECE_BLOCKS);
    pool_run(s->pool, n_piece, max_piece, &p);
    return sampler_pass_max_of(&p, n_piece, at);
}

double sampler_total(const double *sum, int n)
{
    double total = 0;
    for (int b = 0; b < sampler_blocks(n); b += SAMPLER_GROUP) {
        double group = 0;
        for (int i = b; i < b + SAMPLER_GROUP && i < sampler_blocks(n); i++)
            group += sum[i];
        total += group;
    }
    return total;
}

void sampler_pass_weigh(const struct sampler_pass *p, int i)
{
    struct sampler_weights w = weights_of(p, i);
    p->ops->weigh(w.x, w.n, w.max, w.scale, w.least, NULL, p->to.all + piece_at(p, i) / SAMPLER_BLOCK);
}

static void weigh_piece(void *arg, int i, int worker)
{
    (void)worker;
    sampler_pass_weigh(arg, i);
}

double sampler_spread_weigh(const struct sampler_spread *s, const struct sampler_weights *w, double *sum)
{
    if (!s->pool)
        return s->ops->weigh(w->x, w->n, w->max, w->scale, w->least, NULL, sum);
    struct sampler_pass p = {.ops = s->ops, .w = *w, .to.all = sum};
    pool_run(s->pool, sampler_pass_cut(&p, PIECE_BLOCKS), weigh_piece, &p);
    return sampler_total(sum, w->n);
}

/* Each piece into its own place of out. */
void sampler_pass_band(struct sampler_pass *p, int i)
{
    struct sampler_weights w = weights_of(p, i);
    int begin = piece_at(p, i), block = begin / SAMPLER_BLOCK;
    const struct sampler_sums to = {p->to.all + block, p->to.above + block, p->to.held + block};
    p->held[i] = p->ops->weigh_band(&w, p->low, p->high, p->out + begin, &to);
}

int sampler_pass_band_of(const struct sampler_pass *p, int n_piece)
{
    int held = p->held[0];
    for (int i = 1; i < n_piece; held += p->held[i++])
        memmove(p->out + held, p->out + piece_at(p, i), (size_t)p->held[i] * sizeof(*p->out));
    return held;
}

static void band_piece(void *arg, int i, int worker)
{
    (void)worker;
    sampler_pass_band(arg, i);
}

int sampler_spread_band(const struct sampler_spread *s, const struct sampler_weights *w, float low,
                        float high, float *out, const struct sampler_sums *to)
{
    if (!s->pool)
        return s->ops->weigh_band(w, low, high, out, to);
    struct sampler_pass p = {.ops = s->ops, .w = *w, .low = low, .high = high, .out = out, .to = *to};
    int n_piece = sampler_pass_cut(&p, PIECE_BLOCKS);
    pool_run(s->pool, n_piece, band_piece, &p);
    return sampler_pass_band_of(&p, n_piece);
}
