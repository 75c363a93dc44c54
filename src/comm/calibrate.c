/* What is faster between these ranks: measured once when they start. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/backend.h"

#define ROUNDS    5 /* the best of these */
#define CALLS     4 /* of one time */
#define SMALLEST  ((size_t)16 << 10)
#define BUDGET_NS 60000000u /* then what has been learned must do: slow networks */
#define NEARLY    1.05 /* less is within the noise, and one exchange, fused, has less that can go wrong */
#define COLUMNS   1024

struct trial {
    struct comm *c;
    const struct kernels *kernels;
    struct pool *pool;
    float *x, *residual, *y, *weight;
};

static bool call(struct trial *t, int rows)
{
    struct comm_add_norm a = {.kernels = t->kernels,
                              .pool = t->pool,
                              .x = t->x,
                              .residual = t->residual,
                              .weight = t->weight,
                              .y = t->y,
                              .m = rows,
                              .n = COLUMNS,
                              .eps = 1e-6f};
    comm_add_norm_start(t->c, 0, &a);
    return comm_add_norm_wait(t->c, 0, &a);
}

/* Nanoseconds of the best round on rank 0; the others' clocks do not count. 0: a rank is lost. */
static uint64_t best(struct trial *t, int rows, size_t one_shot_bytes, bool fused)
{
    uint64_t least = UINT64_MAX;
    comm_set_one_shot_bytes(t->c, one_shot_bytes);
    comm_set_fusion_rows(t->c, fused ? INT32_MAX : 0);
    for (int round = 0; round < ROUNDS; round++) {
        if (!comm_barrier(t->c))
            return 0;
        uint64_t begin = clock_ns();
        for (int i = 0; i < CALLS; i++)
            if (!call(t, rows))
                return 0;
        uint64_t ns = clock_ns() - begin;
        least = ns < least ? ns : least;
    }
    return least;
}

struct verdict {
    uint64_t one_shot_bytes;
    uint64_t fused_ns, composed_ns; /* at the smallest size */
    int32_t over;
};

/* Rank 0 decides and tells: all must go the same way. */
static bool agree(struct comm *c, struct verdict *v)
{
    return comm_broadcast(c, v, sizeof(*v));
}

static bool run(struct trial *t, struct verdict *v)
{
    uint64_t begin = clock_ns();
    size_t most = t->c->slot_bytes < COMM_CALIBRATE_MAX ? t->c->slot_bytes : COMM_CALIBRATE_MAX;
    int lost = 0; /* sizes in a row at which two exchanges were faster */
    /* two ranks send as many bytes either way, but twice as often with two exchanges */
    bool pair = t->c->size == 2;
    *v = (struct verdict){.one_shot_bytes = pair ? SIZE_MAX : SMALLEST};
    int rows = (int)(SMALLEST / (COLUMNS * sizeof(float)));
    v->fused_ns = best(t, rows, SIZE_MAX, true);
    v->composed_ns = best(t, rows, SIZE_MAX, false);
    for (size_t bytes = 2 * SMALLEST; bytes <= most && !pair; bytes *= 2) {
        rows = (int)(bytes / (COLUMNS * sizeof(float)));
        uint64_t one = best(t, rows, SIZE_MAX, true), two = best(t, rows, 0, false);
        if (!one || !two)
            return false;
        bool one_wins = (double)one <= NEARLY * (double)two;
        lost = one_wins ? 0 : lost + 1;
        if (one_wins)
            v->one_shot_bytes = bytes;
        v->over = lost == 2 || clock_ns() - begin > BUDGET_NS;
        if (!agree(t->c, v))
            return false;
        if (v->over)
            break;
    }
    return agree(t->c, v);
}

void comm_calibrate(struct comm *c, const struct kernels *kernels, struct pool *pool, bool fusion,
                    int fusion_rows)
{
    size_t n = COMM_CALIBRATE_MAX / sizeof(float);
    struct trial t = {.c = c, .kernels = kernels, .pool = pool};
    struct verdict v;
    if (c->size == 1)
        return;
    t.x = mem_alloc(n, sizeof(float));
    t.residual = mem_alloc(n, sizeof(float));
    t.y = mem_alloc(n, sizeof(float));
    t.weight = mem_alloc(COLUMNS, sizeof(float));
    bool ok = run(&t, &v);
    free(t.x), free(t.residual), free(t.y), free(t.weight);
    if (!ok)
        return; /* comm_status tells */
    comm_set_one_shot_bytes(c, v.one_shot_bytes);
    bool fused = fusion && (double)v.fused_ns <= NEARLY * (double)v.composed_ns;
    comm_set_fusion_rows(c, !fused ? 0 : fusion_rows > 0 ? fusion_rows : INT32_MAX);
    if (c->rank == 0)
        log_info("all-reduce of %d ranks: residual and norm %s (%.1f us fused, %.1f composed at 16 KB), one "
                 "exchange "
                 "up to %llu KB, two above",
                 c->size,
                 fused    ? "fused"
                 : fusion ? "not fused, which is faster"
                          : "not fused, as asked",
                 (double)v.fused_ns * 1e-3 / CALLS, (double)v.composed_ns * 1e-3 / CALLS,
                 (unsigned long long)(comm_one_shot_bytes(c) >> 10));
}
