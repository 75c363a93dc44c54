/* What is faster between these ranks: measured once when they start. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/backend.h"

#define ROUNDS     5 /* the best of these */
#define CALLS      4 /* of one time */
#define SMALLEST   ((size_t)16 << 10)
#define BUDGET_NS  60000000u /* then what has been learned must do: slow networks */
#define NEARLY     1.05 /* less is within the noise, and one exchange, fused, has less that can go wrong */
#define COLUMNS    1024
#define WAY_ROUNDS 8
#define WAY_ROWS   64 /* of one time, in CALLS to WAY_CALLS calls */
#define WAY_CALLS  16
/* Streamed is good everywhere, cached twice as fast or half as fast with where the cores are, and on a
 * virtual machine they move. */
#define CACHED_BY    1.10
#define ANNOUNCED_BY 1.03

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

/* One round of calls; nanoseconds on rank 0, whose clock decides. 0: a rank is lost. Two calls before it
 * bring both of a rank's buffers into the state that this way of calling leaves them in. */
static uint64_t round_ns(struct trial *t, int rows, int calls)
{
    if (!call(t, rows) || !call(t, rows) || !comm_barrier(t->c))
        return 0;
    uint64_t begin = clock_ns();
    for (int i = 0; i < calls; i++)
        if (!call(t, rows))
            return 0;
    return clock_ns() - begin;
}

/* Nanoseconds of the best round on rank 0; the others' clocks do not count. 0: a rank is lost. */
static uint64_t best(struct trial *t, int rows, size_t one_shot_bytes, bool fused)
{
    uint64_t least = UINT64_MAX;
    comm_set_one_shot_bytes(t->c, one_shot_bytes);
    comm_set_fusion_rows(t->c, fused ? INT32_MAX : 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t ns = round_ns(t, rows, CALLS);
        if (!ns)
            return 0;
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

/* Two ranks send as many bytes either way, but twice as often with two exchanges. */
static bool is_pair(const struct comm *c)
{
    return c->size == 2;
}

/* Before anything is measured. */
static struct verdict first_verdict(const struct comm *c)
{
    return (struct verdict){.one_shot_bytes = is_pair(c) ? SIZE_MAX : SMALLEST};
}

static bool run(struct trial *t, struct verdict *v)
{
    uint64_t begin = clock_ns();
    size_t most = t->c->slot_bytes < COMM_CALIBRATE_MAX ? t->c->slot_bytes : COMM_CALIBRATE_MAX;
    int lost = 0; /* sizes in a row at which two exchanges were faster */
    bool pair = is_pair(t->c);
    *v = first_verdict(t->c);
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

/* ---- ways of a block ----------------------------------------------------------------------------- */

enum way { STREAMED, CACHED, ANNOUNCED, WAY_COUNT };

static struct comm_ways ways_of(enum way way)
{
    return (struct comm_ways){.cached = way == CACHED ? UINT32_MAX : 0,
                              .announced = way == ANNOUNCED ? UINT32_MAX : 0};
}

static bool announces(const struct comm *c, int rows)
{
    return c->size == 2 && (size_t)rows * COLUMNS * sizeof(float) <= c->backend->rows->bytes_max;
}

/* Best of all rounds of the first n_way ways, in turn. */
static bool time_ways(struct trial *t, int rows, int n_way, uint64_t *least)
{
    int calls = WAY_ROWS / rows;
    calls = calls < CALLS ? CALLS : calls > WAY_CALLS ? WAY_CALLS : calls;
    for (int w = 0; w < n_way; w++)
        least[w] = UINT64_MAX;
    for (int round = 0; round < WAY_ROUNDS; round++)
        for (int w = 0; w < n_way; w++) {
            comm_set_ways(t->c, ways_of((enum way)w));
            uint64_t ns = round_ns(t, rows, calls);
            if (!ns)
                return false;
            least[w] = ns < least[w] ? ns : least[w];
        }
    return true;
}

/* Of one size; false: the communicator failed. The composed path is not to pay for what the fused one gains.
 */
static bool try_size(struct trial *t, int rows, bool *cached, bool *announced)
{
    uint64_t fused[WAY_COUNT] = {0}, composed[WAY_COUNT];
    int n_way = announces(t->c, rows) ? WAY_COUNT : ANNOUNCED;
    comm_set_fusion_rows(t->c, 0);
    if (!time_ways(t, rows, ANNOUNCED, composed))
        return false;
    comm_set_fusion_rows(t->c, INT32_MAX);
    if (!time_ways(t, rows, n_way, fused))
        return false;
    *cached =
        (double)fused[CACHED] * CACHED_BY < (double)fused[STREAMED] && composed[CACHED] <= composed[STREAMED];
    uint64_t flagged = fused[*cached ? CACHED : STREAMED];
    *announced = n_way > ANNOUNCED && (double)fused[ANNOUNCED] * ANNOUNCED_BY < (double)flagged;
    return true;
}

struct way_verdict {
    struct comm_ways ways;
    int32_t over;
};

static bool try_ways(struct trial *t, struct way_verdict *v)
{
    uint64_t begin = clock_ns();
    *v = (struct way_verdict){0};
    for (int i = 0; i < COMM_SIZE_CLASSES && !v->over; i++) {
        bool cached, announced;
        size_t bytes = (size_t)4096 << i;
        if (bytes > t->c->slot_bytes || bytes > COMM_CALIBRATE_MAX)
            break;
        if (!try_size(t, (int)(bytes / (COLUMNS * sizeof(float))), &cached, &announced))
            return false;
        v->ways.cached |= (uint32_t)cached << i;
        v->ways.announced |= (uint32_t)announced << i;
        v->over = clock_ns() - begin > BUDGET_NS;
        if (!comm_broadcast(t->c, v, sizeof(*v)))
            return false;
    }
    return true;
}

static void open_trial(struct trial *t)
{
    size_t n = COMM_CALIBRATE_MAX / sizeof(float);
    t->x = mem_alloc(n, sizeof(float));
    t->residual = mem_alloc(n, sizeof(float));
    t->y = mem_alloc(n, sizeof(float));
    t->weight = mem_alloc(COLUMNS, sizeof(float));
}

static void close_trial(struct trial *t)
{
    free(t->x), free(t->residual), free(t->y), free(t->weight);
}

#define WAY_TEXT (8 * COMM_SIZE_CLASSES + 8)

/* "4K 8K", or "none". */
static void name_sizes(char *text, uint32_t classes)
{
    int at = 0;
    for (int i = 0; i < COMM_SIZE_CLASSES; i++)
        if (classes >> i & 1)
            at += snprintf(text + at, WAY_TEXT - (size_t)at, "%s%dK", at ? " " : "", 4 << i);
    if (!at)
        snprintf(text, WAY_TEXT, "none");
}

bool comm_measure_ways(struct comm *c, const struct kernels *kernels, struct pool *pool)
{
    struct trial t = {.c = c, .kernels = kernels, .pool = pool};
    struct way_verdict v;
    if (c->size == 1 || !c->backend->rows) /* only shared memory has more than one way */
        return true;
    size_t one_shot_bytes = c->one_shot_bytes;
    int fusion_rows = c->fusion_rows;
    comm_set_one_shot_bytes(c, SIZE_MAX);
    comm_set_fusion_rows(c, INT32_MAX);
    open_trial(&t);
    bool ok = try_ways(&t, &v);
    close_trial(&t);
    comm_set_one_shot_bytes(c, one_shot_bytes);
    comm_set_fusion_rows(c, fusion_rows);
    comm_set_ways(c, ok ? v.ways : ways_of(STREAMED));
    if (ok && c->rank == 0) {
        char cached[WAY_TEXT], announced[WAY_TEXT];
        name_sizes(cached, v.ways.cached);
        name_sizes(announced, v.ways.announced);
        log_info("blocks between %d ranks go past the cache; into it, by size: %s; fused rows that announce "
                 "themselves: %s",
                 c->size, cached, announced);
    }
    return ok;
}

/* ---- sums ---------------------------------------------------------------------------------------- */

/* Returns whether rows are fused. */
static bool apply(struct comm *c, const struct verdict *v, bool fusion, int fusion_rows)
{
    bool fused = fusion && (double)v->fused_ns <= NEARLY * (double)v->composed_ns;
    comm_set_one_shot_bytes(c, v->one_shot_bytes);
    comm_set_fusion_rows(c, !fused ? 0 : fusion_rows > 0 ? fusion_rows : INT32_MAX);
    return fused;
}

bool comm_measure_sums(struct comm *c, const struct kernels *kernels, struct pool *pool, bool fusion,
                       int fusion_rows)
{
    struct trial t = {.c = c, .kernels = kernels, .pool = pool};
    struct verdict v;
    if (c->size == 1)
        return true;
    open_trial(&t);
    bool ok = run(&t, &v);
    close_trial(&t);
    if (!ok)
        return false;
    bool fused = apply(c, &v, fusion, fusion_rows);
    if (c->rank == 0)
        log_info("all-reduce of %d ranks: residual and norm %s (%.1f us fused, %.1f composed at 16 KB), one "
                 "exchange up to %llu KB, two above",
                 c->size,
                 fused    ? "fused"
                 : fusion ? "not fused, which is faster"
                          : "not fused, as asked",
                 (double)v.fused_ns * 1e-3 / CALLS, (double)v.composed_ns * 1e-3 / CALLS,
                 (unsigned long long)(comm_one_shot_bytes(c) >> 10));
    return true;
}

/* ---- all of it ------------------------------------------------------------------------------------ */

/* Whether other ranks run on rank 0's cores: then times say who was waiting for one. */
static bool is_crowded(struct comm *c, bool *crowded)
{
    *crowded = c->cores.crowded;
    return comm_broadcast(c, crowded, sizeof(*crowded));
}

void comm_calibrate(struct comm *c, const struct kernels *kernels, struct pool *pool, bool fusion,
                    int fusion_rows)
{
    bool crowded;
    if (c->size == 1 || !is_crowded(c, &crowded))
        return; /* comm_status tells */
    if (!crowded) {
        if (comm_measure_ways(c, kernels, pool))
            (void)comm_measure_sums(c, kernels, pool, fusion, fusion_rows);
        return;
    }
    struct verdict v = first_verdict(c);
    bool fused = apply(c, &v, fusion, fusion_rows);
    if (c->rank == 0)
        log_info("all-reduce of %d ranks: residual and norm %s; nothing is measured, as ranks share cores",
                 c->size, fused ? "fused" : "not fused, as asked");
}
