/* The smallest set of weights that holds a share of their mass (top_p), found without sorting. */
#ifndef NYB_ENGINE_NUCLEUS_H
#define NYB_ENGINE_NUCLEUS_H

#include <stdbool.h>

#include "engine/sampler_spread.h"

/* Whether a row of n weights is sampled first. */
static inline bool nucleus_wants_sample(int n)
{
    return n >= 8 * SAMPLER_SAMPLE;
}

struct nucleus_work {
    float *sample, *peak;    /* (SAMPLER_SAMPLE), (sampler_blocks(n)) */
    float *band, *narrow;    /* (n + SAMPLER_SLACK) each              */
    struct sampler_sums sum; /* (sampler_blocks(n)) each              */
};

/* For rows of n logits; false: no memory, to be closed nevertheless. */
bool nucleus_work_open(struct nucleus_work *w, int n);
void nucleus_work_close(struct nucleus_work *w);

/* What sampler_spread_max should note about a row of that many for nucleus_find. */
static inline struct sampler_glance nucleus_glance(const struct nucleus_work *w)
{
    return (struct sampler_glance){w->sample, w->peak};
}

/* Weights above the cut are in, those below are out, and of those equal to it as many are in as the share
 * takes, the first of the row. */
struct nucleus {
    float cut;
    double mass;          /* of those above the cut                                   */
    int n_eq;             /* of those equal to it that are in                         */
    const double *above;  /* (blocks) mass above the cut, in work                     */
    const int32_t *equal; /* (blocks) how many are equal to it, in work               */
};

/* The weights of w, each 0 or from 2^-126 to 1; share: of their mass, at most 1. Where
 * nucleus_wants_sample(n), work must hold what sampler_spread_max noted, which is overwritten. */
struct nucleus nucleus_find(const struct sampler_spread *s, const struct sampler_weights *w, float share,
                            const struct nucleus_work *work);

/* The same in two halves, for who makes the pass over the row between them another way: where the cut should
 * be, and what is in once weigh_band has taken the n weights from low to below high into work. */
struct nucleus_band {
    float low, high;
    int n;
};
void nucleus_bound(const struct sampler_ops *ops, const struct sampler_weights *w, float share,
                   const struct nucleus_work *work, struct nucleus_band *band);
struct nucleus nucleus_settle(const struct sampler_spread *s, const struct sampler_weights *w, float share,
                              const struct nucleus_work *work, const struct nucleus_band *band);

#endif
