#include "engine/sampler_choice.h"

#include <stddef.h>

static int32_t draw_from_block(const struct sampler_choice *c, int block, int eq_left, double left)
{
    /* The sums are fp32 and this walk is fp64: where they differ, the last possible one of the block is it.
     */
    float weight[SAMPLER_BLOCK];
    int32_t last = -1;
    int begin = block * SAMPLER_BLOCK, n = c->w->n - begin < SAMPLER_BLOCK ? c->w->n - begin : SAMPLER_BLOCK;
    c->ops->weigh(c->w->x + begin, n, c->w->max, c->w->scale, c->w->least, weight, NULL);
    for (int i = 0; i < n && left >= 0; i++) {
        float w = weight[i];
        if (w > c->cut || (w == c->cut && eq_left-- > 0)) {
            last = begin + i;
            left -= (double)w;
        }
    }
    return last;
}

int32_t sampler_choice_draw(const struct sampler_choice *c, double target)
{
    double before = 0, at = 0; /* mass before and after `block` */
    int block = -1, eq_before = 0, eq_left = c->n_eq;
    for (int b = 0; b < sampler_blocks(c->w->n) && at <= target; b++) {
        int eq = c->n_eq_block ? c->n_eq_block[b] : 0;
        eq = eq < eq_left ? eq : eq_left;
        double mass = c->sum[b] + eq * (double)c->cut;
        if (mass > 0) {
            block = b;
            before = at;
            eq_before = eq_left;
            at += mass;
        }
        eq_left -= eq;
    }
    return block < 0 ? -1 : draw_from_block(c, block, eq_before, target - before);
}
