/* The experts' outputs of each token, weighted and added in slot order. */
#include "kernels/ops.h"
#include "kernels/row.h"

#define COLUMNS     1024 /* of an item                                                 */
#define COLUMNS_FEW 256  /* of few tokens, which still keep several workers busy       */
#define FEW         8

struct run {
    const struct combine_args *a;
    int pieces, columns; /* items a row, columns an item */
};

static void run_piece(void *arg, int item, int worker)
{
    (void)worker;
    const struct run *r = arg;
    const struct combine_args *a = r->a;
    size_t n = (size_t)a->n, t = (size_t)(item / r->pieces), k = (size_t)a->top_k;
    size_t columns = (size_t)r->columns, begin = (size_t)(item % r->pieces) * columns;
    size_t len = n - begin < columns ? n - begin : columns;
    float *y = a->y + t * n + begin;
    if (a->shared)
        memmove(y, a->shared + t * n + begin, len * sizeof(float));
    else
        memset(y, 0, len * sizeof(float));
    for (size_t s = 0; s < k; s++) {
        const float *part = a->part + (size_t)a->slot_row[t * k + s] * n + begin;
        row_add_scaled(y, part, a->weight[t * k + s], len);
    }
}

void ROW_VARIANT(combine)(struct pool *pool, const struct combine_args *a)
{
    int columns = a->m < FEW ? COLUMNS_FEW : COLUMNS;
    struct run r = {a, (a->n + columns - 1) / columns, columns};
    pool_run_kept(pool, a->m * r.pieces, run_piece, &r);
}
