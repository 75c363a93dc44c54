#include "engine/sampler_choice.h"

#include <stddef.h>

#define DRAW_GROUP 32 /* weights that are added up before a draw passes them */

/* Masses are added up in groups, and groups in their order: many can be added at once, and each place is
 * reached by few additions. GPUs take the same ones. */

static int32_t draw_from_block(const struct sampler_choice *c, int block, int eq_left, double target)
{
    /* The sums are fp32 and this walk is fp64: where they differ, the last possible one of the block is it.
     */
    float weight[SAMPLER_BLOCK];
    int32_t last = -1;
    int begin = block * SAMPLER_BLOCK, n = c->w->n - begin < SAMPLER_BLOCK ? c->w->n - begin : SAMPLER_BLOCK;
    double at = 0, before = 0;
    int first = 0;
    c->ops->weigh(c->w->x + begin, n, c->w->max, c->w->scale, c->w->least, weight, NULL);
    for (int i = 0; i < n; i++)
        weight[i] = weight[i] > c->cut || (weight[i] == c->cut && eq_left-- > 0) ? weight[i] : 0;
    for (int g = 0; g < n && at <= target; g += DRAW_GROUP) {
        double group = 0;
        for (int i = g; i < g + DRAW_GROUP && i < n; i++)
            group += (double)weight[i];
        if (group > 0) {
            first = g;
            before = at;
            at += group;
        }
    }
    for (int i = first; i < first + DRAW_GROUP && i < n && before <= target; i++) {
        if (weight[i] > 0)
            last = begin + i;
        before += (double)weight[i];
    }
    return last;
}

/* Of the next block b: what it has, and how many of the equals are left behind it. */
static double mass_of(const struct sampler_choice *c, int b, int *eq_left)
{
    int eq = c->n_eq_block ? c->n_eq_block[b] : 0;
    eq = eq < *eq_left ? eq : *eq_left;
    *eq_left -= eq;
    return c->sum[b] + eq * (double)c->cut;
}

int32_t sampler_choice_draw(const struct sampler_choice *c, double target)
{
    int n = sampler_blocks(c->w->n), first = -1, block = -1, eq_left = c->n_eq, eq_before = 0;
    double at = 0, before = 0; /* mass before and after what was found */
    for (int g = 0; g < n && at <= target; g += SAMPLER_GROUP) {
        int eq = eq_left;
        double group = 0;
        for (int b = g; b < g + SAMPLER_GROUP && b < n; b++)
            group += mass_of(c, b, &eq_left);
        if (group > 0) {
            first = g;
            eq_before = eq;
            before = at;
            at += group;
        }
    }
    if (first < 0)
        return -1;
    eq_left = eq_before;
    at = before;
    for (int b = first; b < first + SAMPLER_GROUP && b < n && at <= target; b++) {
        int eq = eq_left;
        double mass = mass_of(c, b, &eq_left);
        if (mass > 0) {
            block = b;
            eq_before = eq;
            before = at;
            at += mass;
        }
    }
    return draw_from_block(c, block, eq_before, target - before);
}
