/* RMSNorm, with the sum of ranks' parts and the residual addition that go before it. */
#include "kernels/ops.h"
#include "kernels/row.h"

/* One row of a sum of parts; `follows`: the next row is this worker's, too. */
static void sum_row(const struct norm_args *a, size_t t, bool follows)
{
    size_t n = (size_t)a->n;
    float *y = a->y + t * n;
    if (a->residual) {
        /* the other ranks' next row comes from memory: hide some of that */
        float *residual = a->residual + t * n;
        int n_next = follows ? a->n_part : 0;
        float squares = row_add_square_sum(residual, a->part, a->n_part, t * n, n, n_next);
        row_scale(y, residual, a->weight, squares, n, a->eps, a->part, n_next, (t + 1) * n);
    } else {
        row_sum(y, a->part, a->n_part, t * n, n);
        row_norm(y, y, NULL, a->weight, n, a->eps);
    }
}

static void run_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct norm_args *a = arg;
    size_t n = (size_t)a->n;
    for (int t = begin; t < end; t++) {
        size_t at = (size_t)t * n;
        if (!a->part) {
            row_norm(a->y + at, a->x + at, a->residual ? a->residual + at : NULL, a->weight, n, a->eps);
        } else if (!a->arrival) {
            sum_row(a, (size_t)t, t + 1 < end);
        } else if (a->arrival->come(a->arrival->own, t)) {
            sum_row(a, (size_t)t, t + 1 < end);
            a->arrival->used(a->arrival->own, t);
        } else {
            continue; /* it never comes */
        }
        if (a->use)
            a->use->row(a->use->own, t, a->y + at);
    }
}

void ROW_VARIANT(norm)(struct pool *pool, const struct norm_args *a)
{
    struct norm_args copy = *a;
    if (pool_size(pool) == 1)
        run_rows(&copy, 0, a->m, 0); /* in one piece: the next row is always this worker's */
    else
        pool_range(pool, a->m, 1, run_rows, &copy);
}
