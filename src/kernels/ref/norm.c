/* RMSNorm, with the residual addition that goes before it. */
#include "kernels/ops.h"
#include "kernels/row.h"

static void run_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct norm_args *a = arg;
    size_t n = (size_t)a->n;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        const float *x = a->x + t * n;
        if (a->part) {
            row_sum(a->y + t * n, a->part, a->n_part, t * n, n);
            x = a->y + t * n;
        }
        float *residual = a->residual ? a->residual + t * n : NULL;
        row_norm(a->y + t * n, x, residual, a->weight, n, a->eps);
    }
}

void ROW_VARIANT(norm)(struct pool *pool, const struct norm_args *a)
{
    struct norm_args copy = *a;
    pool_range(pool, a->m, 1, run_rows, &copy);
}
