/* RMSNorm, with the sum of ranks' parts and the residual addition that go before it. */
#include "kernels/ops.h"
#include "kernels/row.h"

static void run_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct norm_args *a = arg;
    size_t n = (size_t)a->n;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        float *y = a->y + t * n, *residual = a->residual ? a->residual + t * n : NULL;
        if (a->part && residual) {
            /* the other ranks' next row comes from memory: hide some of that */
            int n_next = t + 1 < (size_t)end ? a->n_part : 0;
            float squares = row_add_square_sum(residual, a->part, a->n_part, t * n, n, n_next);
            row_scale(y, residual, a->weight, squares, n, a->eps, a->part, n_next, (t + 1) * n);
        } else if (a->part) {
            row_sum(y, a->part, a->n_part, t * n, n);
            row_norm(y, y, NULL, a->weight, n, a->eps);
        } else {
            row_norm(y, a->x + t * n, residual, a->weight, n, a->eps);
        }
    }
}

void ROW_VARIANT(norm)(struct pool *pool, const struct norm_args *a)
{
    struct norm_args copy = *a;
    pool_range(pool, a->m, 1, run_rows, &copy);
}
