/* Weights of at most 1 order as their bits do, so the cut is found by bisection over bits: one pass a step
 * that adds up what is at least the middle. Such a pass takes three instructions for 16 weights, but some
 * thirty are needed. So a sample of the row first says between which two weights the cut should lie; the one
 * pass that makes the weights adds them up and takes those out of the row, and the bisection reads them
 * alone. A sample that misleads costs one more pass and never changes the result. */
#include "engine/nucleus.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define SAMPLE_ERROR 0.125       /* of the mass that is left out: 3 sigma where 600 of the sample are in it */
#define ERROR_LEFT   0.05        /* of it at least are below the lower bound                             */
#define PEAKS_MET    64          /* of the sample; 8 are to be expected                                   */
#define ROUGH        (1u << 16)  /* bits: 1/128 of an octave                                            */
#define LEAST        0x00800000u /* 2^-126                                                              */
#define END          0x3f800001u /* just above 1                                                        */

static float from_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof(x));
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof(b));
    return b;
}

/* n weights below this together are less than what is left out: the cut is not among them. In bits. */
static uint32_t lowest(double left_out, int n)
{
    uint32_t least = to_bits((float)(0.999 * left_out / n));
    return least < LEAST ? LEAST : least;
}

/* Weights a (n) within [low, high) in bits, and the mass above them. */
struct range {
    float *a;
    int n;
    uint32_t low, high;
    double above;
};

/* Narrow to where the mass from the top reaches `target`, until it is no wider than `width`. */
static void narrow(const struct sampler_ops *ops, struct range *r, double target, uint32_t width)
{
    for (int step = 1; r->high - r->low > width; step++) {
        uint32_t middle = r->low + (r->high - r->low) / 2;
        if (r->above + ops->mass_from(r->a, r->n, from_bits(middle)) >= target)
            r->low = middle;
        else
            r->high = middle;
        if (step % 4 == 0 && r->n > SAMPLER_BLOCK) {
            double above;
            r->n = ops->band(r->a, r->n, from_bits(r->low), from_bits(r->high), r->a, &above);
            r->above += above;
        }
    }
}

/* ---- what a sample says ---------------------------------------------------------------------------- */

/* Of a row: its mass, and the standard deviation of that. */
struct estimate {
    double mass, error;
};

/* The heaviest weight of each block is known and counts for itself, the sample stands for the others: rows
 * are mostly the mass of a few. Where many of the sample are as heavy as their block's, it stands for all. */
static struct estimate estimate(const struct sampler_ops *ops, const float *sample, float *peak, int n,
                                float *work)
{
    int n_block = sampler_blocks(n), met = 0;
    for (int i = 0; i < SAMPLER_SAMPLE; i++) {
        bool is_peak =
            sample[i] > 0 && sample[i] == peak[(uint64_t)i * (uint64_t)n / SAMPLER_SAMPLE / SAMPLER_BLOCK];
        work[i] = is_peak ? 0 : sample[i];
        met += is_peak;
    }
    double known = ops->mass_from(peak, n_block, 0);
    if (met > PEAKS_MET) {
        memcpy(work, sample, SAMPLER_SAMPLE * sizeof(*work));
        known = 0;
    }
    double mass = ops->mass_from(work, SAMPLER_SAMPLE, 0), unit = (double)n / SAMPLER_SAMPLE;
    for (int i = 0; i < SAMPLER_SAMPLE; i++)
        work[i] *= work[i];
    double squares = ops->mass_from(work, SAMPLER_SAMPLE, 0) - mass * mass / SAMPLER_SAMPLE;
    return (struct estimate){known + unit * mass, unit * sqrt(squares > 0 ? squares : 0)};
}

/* A bound, in bits, of the weight below which `left_out` of the mass of the sample lies. */
static uint32_t guess(const struct sampler_ops *ops, const float *sample, double mass, double left_out,
                      bool upper, float *work)
{
    struct range r = {.a = work, .n = SAMPLER_SAMPLE, .low = lowest(left_out, SAMPLER_SAMPLE), .high = END};
    double target = mass - left_out;
    if (mass <= 0)
        return upper ? END : LEAST;
    if (target < mass / 64) { /* the cut is among weights too few for a sample */
        if (upper)
            return END;
        target = mass / 64;
    }
    memcpy(work, sample, SAMPLER_SAMPLE * sizeof(*work));
    narrow(ops, &r, target, ROUGH);
    return upper ? r.high : r.low;
}

/* Bounds of the cut where left_out of the row's mass is, give or take `error` of that. */
static void bound(const struct sampler_ops *ops, struct range *r, const struct nucleus_work *work, int n,
                  double left_out, double error)
{
    double mass = ops->mass_from(work->sample, SAMPLER_SAMPLE, 0);
    left_out *= (double)SAMPLER_SAMPLE / n;
    r->low = guess(ops, work->sample, mass, left_out * fmax(1 - error, ERROR_LEFT), false, work->narrow);
    r->high = guess(ops, work->sample, mass, left_out * (1 + error), true, work->narrow);
}

/* ---- the row --------------------------------------------------------------------------------------- */

/* What a pass over the row has made of r, and the mass of all of it back. */
static double took_band(const struct sampler_weights *w, const struct nucleus_work *work, struct range *r,
                        int n)
{
    r->n = n;
    r->above = sampler_total(work->sum.above, w->n);
    return sampler_total(work->sum.all, w->n);
}

/* One pass over the row: r's weights to the band, and the mass of all of them back. */
static double take_band(const struct sampler_spread *s, const struct sampler_weights *w,
                        const struct nucleus_work *work, struct range *r)
{
    int n = sampler_spread_band(s, w, from_bits(r->low), from_bits(r->high), work->band, &work->sum);
    return took_band(w, work, r, n);
}

/* The band's weights, in their order, to the sums of their blocks: what is above the cut joins sum.above,
 * what is equal to it is counted in sum.held. */
static void settle_blocks(const struct sampler_ops *ops, const struct nucleus_work *work, int n,
                          struct nucleus *out)
{
    const float *w = work->band;
    for (int b = 0; b < sampler_blocks(n); b++) {
        int32_t held = work->sum.held[b];
        work->sum.above[b] += ops->above(w, held, out->cut, &work->sum.held[b]);
        out->n_eq += work->sum.held[b];
        w += held;
    }
    out->mass = sampler_total(work->sum.above, n);
}

/* The cut is below the band (-1), above it (1) or in it (0). */
static int misses(const struct sampler_ops *ops, const struct range *r, const float *band, double target)
{
    if (r->high < END && r->above >= target)
        return 1;
    return r->low > LEAST && r->above + ops->mass_from(band, r->n, 0) < target ? -1 : 0;
}

void nucleus_bound(const struct sampler_ops *ops, const struct sampler_weights *w, float share,
                   const struct nucleus_work *work, struct nucleus_band *band)
{
    struct range r = {.low = LEAST, .high = END};
    if (nucleus_wants_sample(w->n)) {
        ops->weigh(work->sample, SAMPLER_SAMPLE, w->max, w->scale, w->least, work->sample, NULL);
        ops->weigh(work->peak, sampler_blocks(w->n), w->max, w->scale, w->least, work->peak, NULL);
        struct estimate e = estimate(ops, work->sample, work->peak, w->n, work->narrow);
        bound(ops, &r, work, w->n, (1 - (double)share) * e.mass, SAMPLE_ERROR + 3 * e.error / e.mass);
    }
    *band = (struct nucleus_band){.low = from_bits(r.low), .high = from_bits(r.high)};
}

/* The band that the cut is in, where the first one was r, and the mass of the whole row back. */
static double find_band(const struct sampler_spread *s, const struct sampler_weights *w, float share,
                        const struct nucleus_work *work, struct range *r, int n)
{
    const struct sampler_ops *ops = s->ops;
    double total = took_band(w, work, r, n);
    int miss = misses(ops, r, work->band, total * (double)share);
    if (miss && nucleus_wants_sample(w->n)) { /* now the mass is known */
        bound(ops, r, work, w->n, (1 - (double)share) * total, SAMPLE_ERROR);
        take_band(s, w, work, r);
        miss = misses(ops, r, work->band, total * (double)share);
    }
    if (miss) {
        uint32_t low = r->low;
        r->low = miss > 0 ? r->high : LEAST;
        r->high = miss > 0 ? END : low;
        take_band(s, w, work, r);
    }
    return total;
}

struct nucleus nucleus_settle(const struct sampler_spread *s, const struct sampler_weights *w, float share,
                              const struct nucleus_work *work, const struct nucleus_band *band)
{
    struct range r = {.low = to_bits(band->low), .high = to_bits(band->high)};
    double total = find_band(s, w, share, work, &r, band->n), target = total * (double)share;
    uint32_t least = lowest(total - target, w->n);
    r.low = least > r.low && least < r.high ? least : r.low;
    r.a = work->narrow;
    memcpy(r.a, work->band, (size_t)r.n * sizeof(*r.a));
    narrow(s->ops, &r, target, 1);
    struct nucleus out = {.cut = from_bits(r.low), .above = work->sum.above, .equal = work->sum.held};
    settle_blocks(s->ops, work, w->n, &out);
    double wanted = ceil((target - out.mass) / (double)out.cut);
    wanted = wanted < 1 ? 1 : wanted;
    out.n_eq = wanted < out.n_eq ? (int)wanted : out.n_eq;
    return out;
}

struct nucleus nucleus_find(const struct sampler_spread *s, const struct sampler_weights *w, float share,
                            const struct nucleus_work *work)
{
    struct nucleus_band band;
    nucleus_bound(s->ops, w, share, work, &band);
    band.n = sampler_spread_band(s, w, band.low, band.high, work->band, &work->sum);
    return nucleus_settle(s, w, share, work, &band);
}

bool nucleus_work_open(struct nucleus_work *w, int n)
{
    size_t n_float = (size_t)n + SAMPLER_SLACK, n_block = (size_t)sampler_blocks(n);
    *w = (struct nucleus_work){.sample = mem_try_aligned(SAMPLER_SAMPLE * sizeof(float)),
                               .peak = mem_try_aligned(n_block * sizeof(float)),
                               .band = mem_try_aligned(n_float * sizeof(float)),
                               .narrow = mem_try_aligned(n_float * sizeof(float)),
                               .sum = {.all = mem_try_aligned(n_block * sizeof(double)),
                                       .above = mem_try_aligned(n_block * sizeof(double)),
                                       .held = mem_try_aligned(n_block * sizeof(int32_t))}};
    return w->sample && w->peak && w->band && w->narrow && w->sum.all && w->sum.above && w->sum.held;
}

void nucleus_work_close(struct nucleus_work *w)
{
    free(w->sample);
    free(w->peak);
    free(w->band);
    free(w->narrow);
    free(w->sum.all);
    free(w->sum.above);
    free(w->sum.held);
}
