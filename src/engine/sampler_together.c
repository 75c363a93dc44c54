#include "engine/sampler_together.h"

#include <math.h>

#include "engine/sampler_choice.h"

#define PIECE_BLOCKS 16 /* of a row: some 5 to 10 us */

struct together {
    const struct sampler_ops *ops;
    struct sampler_row *row;
    int n_row, n_piece; /* of each row */
};

static bool has_nucleus(const struct sampler_row *r)
{
    return r->draw->top_p < 1;
}

/* After the first pass: the token, or what the second has to look for. */
static void bound_row(const struct together *t, struct sampler_row *r)
{
    int at;
    r->pass.w.max = sampler_pass_max_of(&r->pass, t->n_piece, &at);
    r->decided = !isfinite(r->pass.w.max) || r->draw->scale == 0;
    if (r->decided) {
        r->token = isfinite(r->pass.w.max) ? at : -1;
    } else if (has_nucleus(r)) {
        struct nucleus_band band;
        nucleus_bound(t->ops, &r->pass.w, r->draw->top_p, r->work, &band);
        r->pass.low = band.low;
        r->pass.high = band.high;
    }
}

/* After the second. */
static void draw_row(const struct together *t, struct sampler_row *r)
{
    const struct sampler_weights *w = &r->pass.w;
    struct sampler_choice from = {.ops = t->ops, .w = w, .sum = r->work->sum.all};
    double mass;
    if (has_nucleus(r)) {
        const struct sampler_spread alone = {t->ops, NULL};
        const struct nucleus_band band = {r->pass.low, r->pass.high,
                                          sampler_pass_band_of(&r->pass, t->n_piece)};
        struct nucleus in = nucleus_settle(&alone, w, r->draw->top_p, r->work, &band);
        from.cut = in.cut;
        from.n_eq = in.n_eq;
        from.sum = in.above;
        from.n_eq_block = in.equal;
        mass = in.mass + in.n_eq * (double)in.cut;
    } else {
        mass = sampler_total(r->work->sum.all, w->n);
    }
    r->token = sampler_choice_draw(&from, r->draw->uniform * mass);
}

/* Whether this was the last piece: then what the others wrote is there. */
static bool ends(atomic_int *done, int n_piece)
{
    return atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) + 1 == n_piece;
}

static void look_at_piece(void *arg, int item, int worker)
{
    (void)worker;
    const struct together *t = arg;
    struct sampler_row *r = &t->row[item / t->n_piece];
    sampler_pass_max(&r->pass, item % t->n_piece);
    if (ends(&r->looked, t->n_piece))
        bound_row(t, r);
}

static void weigh_piece(void *arg, int item, int worker)
{
    (void)worker;
    const struct together *t = arg;
    struct sampler_row *r = &t->row[item / t->n_piece];
    if (r->decided)
        return;
    if (has_nucleus(r))
        sampler_pass_band(&r->pass, item % t->n_piece);
    else
        sampler_pass_weigh(&r->pass, item % t->n_piece);
    if (ends(&r->weighed, t->n_piece))
        draw_row(t, r);
}

void sampler_together(const struct sampler_ops *ops, struct pool *pool, int n, struct sampler_row *row,
                      int n_row)
{
    struct together t = {.ops = ops, .row = row, .n_row = n_row};
    for (int i = 0; i < n_row; i++) {
        struct sampler_row *r = &row[i];
        r->glance = nucleus_glance(r->work);
        r->pass.ops = ops;
        r->pass.w = (struct sampler_weights){
            .x = r->logits, .n = n, .scale = r->draw->scale, .least = r->draw->min_p};
        r->pass.glance = r->draw->scale != 0 && has_nucleus(r) && nucleus_wants_sample(n) ? &r->glance : NULL;
        r->pass.out = r->work->band;
        r->pass.to = r->work->sum;
        t.n_piece = sampler_pass_cut(&r->pass, PIECE_BLOCKS);
        r->token = -1;
        atomic_init(&r->looked, 0);
        atomic_init(&r->weighed, 0);
    }
    pool_run_kept(pool, n_row * t.n_piece, look_at_piece, &t);
    pool_run_kept(pool, n_row * t.n_piece, weigh_piece, &t);
}
