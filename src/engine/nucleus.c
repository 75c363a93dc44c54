/* Weights of at most 1 order as their bits do, so the cut is found by bisection over bits: one pass a step
 * that adds up what is at least the middle. Such a pass takes three instructions for 16 weights, but some
 * thirty are needed. So a sample of the row first says between which two weights the cut should lie; one pass
 * takes those out of the row, and the bisection reads them alone. A sample that misleads costs one more pass
 * and never changes the result. */
#include "engine/nucleus.h"

#include <string.h>

#define SAMPLE_ERROR 0.125       /* of the mass that is left out: 3 sigma where 600 of the sample are in it */
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
            r->n = ops->band(r->a, r->n, from_bits(r->low), from_bits(r->high), r->a, &above, NULL);
            r->above += above;
        }
    }
}

/* A bound, in bits, of the weight below which `left_out` of the row's mass lies, as a sample of it has it. */
static uint32_t guess(const struct sampler_ops *ops, const float *sample, int n, double left_out, bool upper,
                      uint32_t least, float *work)
{
    struct range r = {.a = work, .n = NUCLEUS_SAMPLE, .low = least, .high = END};
    memcpy(work, sample, NUCLEUS_SAMPLE * sizeof(*work));
    double mass = ops->mass_from(work, NUCLEUS_SAMPLE, 0);
    double target = mass - left_out * NUCLEUS_SAMPLE / n;
    if (mass <= 0)
        return upper ? END : least;
    if (target < mass / 64) { /* the cut is among weights too few for a sample */
        if (upper)
            return END;
        target = mass / 64;
    }
    narrow(ops, &r, target, ROUGH);
    return upper ? r.high : r.low;
}

float nucleus_cut(const struct sampler_spread *s, const float *w, int n, const float *sample, double total,
                  double target, float *band, double *sum)
{
    const struct sampler_ops *ops = s->ops;
    double left_out = total - target;
    /* All weights below this together are less than what is left out: the cut is not among them. */
    uint32_t least = to_bits((float)(0.999 * left_out / n));
    least = least < LEAST ? LEAST : least;
    struct range r = {.a = band, .low = least, .high = END};
    if (nucleus_wants_sample(n)) {
        r.low = guess(ops, sample, n, left_out * (1 - SAMPLE_ERROR), false, least, band);
        r.high = guess(ops, sample, n, left_out * (1 + SAMPLE_ERROR), true, least, band);
    }
    r.n = sampler_spread_band(s, w, n, from_bits(r.low), from_bits(r.high), band, &r.above, sum);
    bool higher = r.high < END && r.above >= target;
    bool lower = !higher && r.low > least && r.above + ops->mass_from(band, r.n, 0) < target;
    if (higher || lower) {
        uint32_t low = r.low;
        r.low = higher ? r.high : least;
        r.high = higher ? END : low;
        r.n = sampler_spread_band(s, w, n, from_bits(r.low), from_bits(r.high), band, &r.above, sum);
    }
    narrow(ops, &r, target, 1);
    return from_bits(r.low);
}
