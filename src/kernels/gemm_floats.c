#include "kernels/gemm_floats.h"

#include <string.h>

#include "fp4/fp4.h"

struct widen {
    const uint16_t *from;
    float *to;
    size_t width;
};

static void widen_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct widen *w = arg;
    for (size_t i = (size_t)begin * w->width; i < (size_t)end * w->width; i++)
        w->to[i] = bf16_to_float(w->from[i]);
}

static const struct operand *with_floats(struct pool *pool, struct arena *scratch, const struct operand *x)
{
    struct operand *op = arena_alloc(scratch, 1, sizeof(*op));
    float *rows = arena_alloc(scratch, (size_t)x->m * (size_t)x->k_pad, sizeof(*rows));
    struct widen w = {x->bf16, rows, (size_t)x->k_pad};
    pool_range(pool, x->m, 16, widen_rows, &w);
    *op = *x;
    op->f32 = rows;
    return op;
}

static bool lacks_floats(const struct gemm_table *table, enum compute mode, const struct gemm_job *j)
{
    return j->m > 0 && !j->x->f32 && gemm_form_for(table, j->w->type, mode) == GEMM_F32;
}

const struct gemm_job *gemm_floats(const struct gemm_table *table, struct pool *pool, struct arena *scratch,
                                   enum compute mode, const struct gemm_job *job, int n_job)
{
    struct gemm_job *copy = NULL;
    const struct operand *last = NULL, *made = NULL;
    for (int i = 0; i < n_job; i++) {
        if (!lacks_floats(table, mode, &job[i]))
            continue;
        if (!copy) {
            copy = arena_alloc(scratch, (size_t)n_job, sizeof(*copy));
            memcpy(copy, job, (size_t)n_job * sizeof(*copy));
        }
        if (job[i].x != last) { /* jobs with one operand are neighbours */
            last = job[i].x;
            made = with_floats(pool, scratch, last);
        }
        copy[i].x = made;
    }
    return copy ? copy : job;
}
