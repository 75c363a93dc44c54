#include "engine/sampler_spread.h"

#include <math.h>
#include <string.h>

#define PIECE_BLOCKS 8  /* of a row that are worth a ticket      */
#define PIECES_MAX   64 /* of a row, so that their maxima fit here */

struct pass {
    const struct sampler_ops *ops;
    const float *x;
    int n, piece; /* floats of the row, blocks of a piece */
    float max, scale, least, cut, low, high, *e, *sample;
    int n_sample;
    double *sum;
    int32_t *n_eq;
    float best[PIECES_MAX]; /* of each piece */
    int at[PIECES_MAX], held[PIECES_MAX];
};

static int pieces(struct pass *p)
{
    int n_block = sampler_blocks(p->n);
    p->piece = (n_block + PIECES_MAX - 1) / PIECES_MAX;
    p->piece = p->piece < PIECE_BLOCKS ? PIECE_BLOCKS : p->piece;
    return (n_block + p->piece - 1) / p->piece;
}

/* Where piece i begins; *n floats long. */
static int piece_at(const struct pass *p, int i, int *n)
{
    int begin = i * p->piece * SAMPLER_BLOCK, most = p->piece * SAMPLER_BLOCK;
    *n = p->n - begin < most ? p->n - begin : most;
    return begin;
}

static void max_piece(void *arg, int i, int worker)
{
    (void)worker;
    struct pass *p = arg;
    int n, begin = piece_at(p, i, &n);
    p->best[i] = p->ops->max(p->x + begin, n, &p->at[i]);
    p->at[i] += begin;
}

float sampler_spread_max(const struct sampler_spread *s, const float *x, int n, int *at)
{
    if (!s->pool)
        return s->ops->max(x, n, at);
    struct pass p = {.ops = s->ops, .x = x, .n = n};
    int n_piece = pieces(&p), first = 0;
    pool_run(s->pool, n_piece, max_piece, &p);
    for (int i = 1; i < n_piece; i++)
        if (p.best[i] > p.best[first])
            first = i;
    *at = p.best[first] == -INFINITY ? 0 : p.at[first];
    return p.best[first];
}

/* Element i of a sample is weight i * n / n_sample: those of them among the n_here weights from `begin` on.
 */
static void pick(const struct pass *p, int begin, int n_here)
{
    int64_t n = p->n, n_sample = p->n_sample;
    int64_t first = (begin * n_sample + n - 1) / n;
    for (int64_t i = first, at; i < n_sample && (at = i * n / n_sample) < begin + n_here; i++)
        p->sample[i] = p->e[at];
}

static void weigh_piece(void *arg, int i, int worker)
{
    (void)worker;
    const struct pass *p = arg;
    int n, begin = piece_at(p, i, &n);
    p->ops->weigh(p->x + begin, n, p->max, p->scale, p->least, p->e ? p->e + begin : NULL,
                  p->sum + begin / SAMPLER_BLOCK);
    if (p->sample)
        pick(p, begin, n);
}

static double total_of(const double *sum, int n)
{
    double total = 0;
    for (int b = 0; b < sampler_blocks(n); b++)
        total += sum[b];
    return total;
}

double sampler_spread_weigh(const struct sampler_spread *s, const float *x, int n, float max, float scale,
                            float least, float *e, double *sum, float *sample, int n_sample)
{
    struct pass p = {.ops = s->ops,
                     .x = x,
                     .n = n,
                     .max = max,
                     .scale = scale,
                     .least = least,
                     .e = e,
                     .sample = sample,
                     .n_sample = n_sample,
                     .sum = sum};
    if (s->pool) {
        pool_run(s->pool, pieces(&p), weigh_piece, &p);
        return total_of(sum, n);
    }
    double total = s->ops->weigh(x, n, max, scale, least, e, sum);
    if (sample)
        pick(&p, 0, n);
    return total;
}

/* Each piece into its own place of e. */
static void band_piece(void *arg, int i, int worker)
{
    (void)worker;
    struct pass *p = arg;
    int n, begin = piece_at(p, i, &n);
    double above;
    p->held[i] =
        p->ops->band(p->x + begin, n, p->low, p->high, p->e + begin, &above, p->sum + begin / SAMPLER_BLOCK);
}

int sampler_spread_band(const struct sampler_spread *s, const float *w, int n, float low, float high,
                        float *out, double *above, double *sum)
{
    if (!s->pool)
        return s->ops->band(w, n, low, high, out, above, sum);
    struct pass p = {.ops = s->ops, .x = w, .n = n, .low = low, .high = high, .e = out, .sum = sum};
    int n_piece = pieces(&p);
    pool_run(s->pool, n_piece, band_piece, &p);
    int held = p.held[0];
    for (int i = 1, ignored; i < n_piece; held += p.held[i++])
        memmove(out + held, out + piece_at(&p, i, &ignored), (size_t)p.held[i] * sizeof(*out));
    *above = total_of(sum, n);
    return held;
}

static void split_piece(void *arg, int i, int worker)
{
    (void)worker;
    const struct pass *p = arg;
    int n, begin = piece_at(p, i, &n);
    p->ops->split(p->x + begin, n, p->cut, p->sum + begin / SAMPLER_BLOCK, p->n_eq + begin / SAMPLER_BLOCK);
}

void sampler_spread_split(const struct sampler_spread *s, const float *w, int n, float cut, double *sum,
                          int32_t *n_eq)
{
    if (!s->pool) {
        s->ops->split(w, n, cut, sum, n_eq);
        return;
    }
    struct pass p = {.ops = s->ops, .x = w, .n = n, .cut = cut, .sum = sum, .n_eq = n_eq};
    pool_run(s->pool, pieces(&p), split_piece, &p);
}
