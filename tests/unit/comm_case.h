/* Ranks as forked processes of a test. */
#ifndef NYB_COMM_CASE_H
#define NYB_COMM_CASE_H

#include <unistd.h>

#include "comm/comm.h"
#include "test.h"

/* cmocka's asserts jump to the parent's runner, so ranks beyond 0 check with this. */
#define CHECK(cond)                                                                           \
    do {                                                                                      \
        if (!(cond)) {                                                                        \
            fprintf(stderr, "rank %d: %s:%d: %s\n", comm_rank(c), __FILE__, __LINE__, #cond); \
            return false;                                                                     \
        }                                                                                     \
    } while (0)

typedef bool rank_fn(struct comm *c);

/* Run fn on `size` ranks; every one must say true. */
static inline void run_ranks(int size, size_t slot_bytes, rank_fn *fn)
{
    const struct comm_options o = {.slot_bytes = slot_bytes, .timeout_ms = 20000};
    struct nyb_err err = {0};
    struct comm *c;
    if (comm_fork(&c, size, &o, &err) != NYB_OK)
        fail_msg("%s", err.message);
    bool ok = fn(c) && comm_status(c, &err) == NYB_OK;
    if (!ok && comm_status(c, &err) == NYB_OK)
        comm_fail(c, "a check of rank %d failed", comm_rank(c));
    bool child = comm_rank(c) != 0;
    ok = ok && (comm_rank(c) != 0 || comm_status(c, &err) == NYB_OK);
    if (child) {
        comm_close(c);
        _exit(!ok);
    }
    /* the last word of everybody */
    comm_close(c);
    assert_true(ok);
}

/* What a fused sum takes: x, residual and y of (m, n), weight of (n). */
struct rows {
    float *x, *residual, *y, *weight;
};

static inline struct comm_add_norm add_norm_of(struct pool *pool, struct rows *t, int m, int n)
{
    return (struct comm_add_norm){.kernels = kernels_cpu(),
                                  .pool = pool,
                                  .x = t->x,
                                  .residual = t->residual,
                                  .weight = t->weight,
                                  .y = t->y,
                                  .m = m,
                                  .n = n,
                                  .eps = 1e-6f};
}

#endif
