/* Collectives over exchanges; the same for every backend. */
#include <stdatomic.h>
#include <string.h>

#include "base/mem.h"

#include "comm/backend.h"

#define RANGE_GRAIN 4096 /* floats that are worth another worker */

bool comm_barrier(struct comm *c)
{
    struct comm_part in[COMM_RANK_MAX];
    comm_publish_start(c, 0, "", 0);
    return comm_exchange_wait(c, 0, in);
}

bool comm_broadcast(struct comm *c, void *data, size_t bytes)
{
    struct comm_part in[COMM_RANK_MAX];
    for (size_t at = 0; at < bytes && c->size > 1;) {
        size_t n = bytes - at < c->slot_bytes ? bytes - at : c->slot_bytes;
        uint8_t *piece = (uint8_t *)data + at;
        comm_publish_start(c, 0, piece, c->rank == 0 ? n : 0);
        if (!comm_exchange_wait(c, 0, in))
            return false;
        ASSERT(in[0].bytes == n);
        if (c->rank != 0)
            memcpy(piece, in[0].data, n);
        at += n;
    }
    return true;
}

bool comm_gather(struct comm *c, const void *own, size_t bytes, void *all)
{
    struct comm_part in[COMM_RANK_MAX];
    uint8_t *to = all;
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < c->slot_bytes ? bytes - at : c->slot_bytes;
        comm_publish_start(c, 0, (const uint8_t *)own + at, n);
        if (!comm_exchange_wait(c, 0, in))
            return false;
        for (int r = 0; r < c->size; r++) {
            ASSERT(in[r].bytes == n);
            memmove(to + (size_t)r * bytes + at, in[r].data, n);
        }
        at += n;
    }
    return true;
}

/* ---- sums ---------------------------------------------------------------------------------------- */

struct sum {
    float *y;
    const float *part[COMM_RANK_MAX];
    int n_part;
};

/* GCC vectors of what every x86-64 has: the memory is what limits them. */
typedef float lanes __attribute__((vector_size(16), aligned(4), may_alias));
#define LANES 4
#define GROUP 4 /* vectors on their way together */

/* y = ((part 0 + part 1) + part 2) + ...; y may be one of the parts, so its elements are read before they are
 * written. */
static void sum_range(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct sum *s = arg;
    int i = begin;
    for (; i + GROUP * LANES <= end; i += GROUP * LANES) {
        lanes total[GROUP];
        for (int u = 0; u < GROUP; u++)
            total[u] = *(const lanes *)(s->part[0] + i + u * LANES);
        for (int r = 1; r < s->n_part; r++)
            for (int u = 0; u < GROUP; u++)
                total[u] += *(const lanes *)(s->part[r] + i + u * LANES);
        for (int u = 0; u < GROUP; u++)
            *(lanes *)(s->y + i + u * LANES) = total[u];
    }
    for (; i < end; i++) {
        float total = s->part[0][i];
        for (int r = 1; r < s->n_part; r++)
            total += s->part[r][i];
        s->y[i] = total;
    }
}

static void sum_parts(struct comm *c, struct pool *pool, const struct comm_part *in, float *y, size_t n)
{
    struct sum s = {.y = y, .n_part = c->size};
    for (int r = 0; r < c->size; r++) {
        ASSERT(in[r].bytes == n * sizeof(float));
        s.part[r] = in[r].data;
    }
    pool_range(pool, (int)n, RANGE_GRAIN, sum_range, &s);
}

/* The share of rank r of a piece of n floats; whole lines, so that shares are written apart. */
static void share_of(const struct comm *c, size_t n, int r, size_t *begin, size_t *end)
{
    size_t share = ((n + (size_t)c->size - 1) / (size_t)c->size + 31) & ~(size_t)31;
    *begin = (size_t)r * share < n ? (size_t)r * share : n;
    *end = *begin + share < n ? *begin + share : n;
}

static size_t piece_floats(const struct comm *c, size_t n)
{
    /* of a two-shot piece all receivers' shares are in the slot, each rounded up to a line */
    size_t most = c->slot_bytes / sizeof(float);
    most = most > (size_t)c->size * 32 ? most - (size_t)c->size * 32 : 1;
    most = most < 1u << 30 ? most : 1u << 30;
    return n < most ? n : most;
}

static bool one_shot(const struct comm *c, size_t n)
{
    return n * sizeof(float) <= comm_one_shot_bytes(c);
}

static void start_piece(struct comm *c, int channel, const float *x, size_t n)
{
    struct comm_part part[COMM_RANK_MAX];
    if (one_shot(c, n)) {
        comm_publish_start(c, channel, x, n * sizeof(float));
        return;
    }
    for (int r = 0; r < c->size; r++) {
        size_t begin, end;
        share_of(c, n, r, &begin, &end);
        part[r] = (struct comm_part){x + begin, (end - begin) * sizeof(float)};
    }
    comm_exchange_start(c, channel, part);
}

/* Wait for everybody's parts of this rank's share, and send its sum out. */
static bool sum_share(struct comm *c, int channel, struct pool *pool, float *x, size_t n)
{
    struct comm_part in[COMM_RANK_MAX];
    size_t begin, end;
    if (!comm_exchange_wait(c, channel, in))
        return false;
    share_of(c, n, c->rank, &begin, &end);
    sum_parts(c, pool, in, x + begin, end - begin);
    comm_publish_start(c, channel, x + begin, (end - begin) * sizeof(float));
    return true;
}

static bool gather_shares(struct comm *c, int channel, float *x, size_t n)
{
    struct comm_part in[COMM_RANK_MAX];
    size_t begin, end;
    if (!comm_exchange_wait(c, channel, in))
        return false;
    for (int r = 0; r < c->size; r++) {
        share_of(c, n, r, &begin, &end);
        ASSERT(in[r].bytes == (end - begin) * sizeof(float));
        if (r != c->rank)
            memcpy(x + begin, in[r].data, in[r].bytes);
    }
    return true;
}

static bool finish_piece(struct comm *c, int channel, struct pool *pool, float *x, size_t n)
{
    struct comm_part in[COMM_RANK_MAX];
    if (!one_shot(c, n))
        return sum_share(c, channel, pool, x, n) && gather_shares(c, channel, x, n);
    if (!comm_exchange_wait(c, channel, in))
        return false;
    sum_parts(c, pool, in, x, n);
    return true;
}

void comm_allreduce_start(struct comm *c, int channel, struct comm_reduce *r)
{
    if (c->size > 1 && r->n > 0)
        start_piece(c, channel, r->x, piece_floats(c, r->n));
}

bool comm_allreduce_wait(struct comm *c, int channel, struct comm_reduce *r)
{
    if (c->size == 1)
        return true;
    for (size_t at = 0; at < r->n;) {
        size_t n = piece_floats(c, r->n - at);
        if (at > 0)
            start_piece(c, channel, r->x + at, n);
        if (!finish_piece(c, channel, r->pool, r->x + at, n))
            return false;
        at += n;
    }
    return true;
}

/* ---- all-reduce, residual and norm --------------------------------------------------------------- */

bool comm_add_norm_fused(const struct comm *c, int m, int n)
{
    size_t bytes;
    return c->size == 1 || (m <= c->fusion_rows && size_mul((size_t)m * sizeof(float), (size_t)n, &bytes) &&
                            bytes <= comm_one_shot_bytes(c));
}

static void start_composed(struct comm *c, int channel, struct comm_add_norm *a)
{
    a->gathering = false;
    a->reduce = (struct comm_reduce){.x = a->x, .n = (size_t)a->m * (size_t)a->n, .pool = a->pool};
    comm_allreduce_start(c, channel, &a->reduce);
}

void comm_add_norm_start(struct comm *c, int channel, struct comm_add_norm *a)
{
    if (c->size == 1)
        return;
    size_t n = (size_t)a->m * (size_t)a->n;
    a->announced = false;
    if (!comm_add_norm_fused(c, a->m, a->n)) {
        start_composed(c, channel, a);
        return;
    }
    size_t bytes = n * sizeof(float);
    const struct comm_backend_rows *rows = c->backend->rows;
    a->announced =
        rows && c->size == 2 && bytes <= rows->bytes_max && c->ways.announced & comm_size_class(bytes);
    if (a->announced)
        rows->start(c, channel, a->x, n);
    else
        comm_publish_start(c, channel, a->x, bytes);
}

bool comm_add_norm_middle(struct comm *c, int channel, struct comm_add_norm *a)
{
    struct comm_reduce *r = &a->reduce;
    if (c->size == 1 || comm_add_norm_fused(c, a->m, a->n) || one_shot(c, r->n) ||
        piece_floats(c, r->n) < r->n)
        return true;
    a->gathering = sum_share(c, channel, r->pool, r->x, r->n);
    return a->gathering;
}

/* x holds the sum afterwards. */
static bool finish_composed(struct comm *c, int channel, struct comm_add_norm *a)
{
    return a->gathering ? gather_shares(c, channel, a->reduce.x, a->reduce.n)
                        : comm_allreduce_wait(c, channel, &a->reduce);
}

struct arrival {
    struct comm *c;
    int channel;
    size_t n; /* floats of a row */
    atomic_bool lost;
};

static bool row_come(void *own, int row)
{
    struct arrival *a = own;
    if (!atomic_load_explicit(&a->lost, memory_order_relaxed) &&
        a->c->backend->rows->come(a->c, a->channel, (size_t)row * a->n, a->n))
        return true;
    atomic_store_explicit(&a->lost, true, memory_order_relaxed);
    return false;
}

static void row_used(void *own, int row)
{
    const struct arrival *a = own;
    a->c->backend->rows->used(a->c, a->channel, (size_t)row * a->n, a->n);
}

/* Add and normalize each row as soon as it has come. */
static bool finish_announced(struct comm *c, int channel, const struct comm_add_norm *a,
                             struct norm_args *norm)
{
    struct arrival arrival = {.c = c, .channel = channel, .n = (size_t)a->n};
    const struct norm_arrival calls = {row_come, row_used, &arrival};
    const float *part[2];
    part[c->rank] = a->x;
    part[1 - c->rank] = c->backend->rows->data(c, channel);
    norm->part = part;
    norm->n_part = 2;
    norm->arrival = &calls;
    row_come(&arrival, 0); /* so that the pool does not take a wait for another rank for work */
    a->kernels->rmsnorm(a->pool, norm);
    return !atomic_load(&arrival.lost);
}

bool comm_add_norm_wait(struct comm *c, int channel, struct comm_add_norm *a)
{
    struct comm_part in[COMM_RANK_MAX];
    const float *part[COMM_RANK_MAX] = {a->x};
    struct norm_args norm = {.x = a->x,
                             .weight = a->weight,
                             .residual = a->residual,
                             .y = a->y,
                             .use = a->use,
                             .m = a->m,
                             .n = a->n,
                             .eps = a->eps};
    if (c->size > 1 && a->announced)
        return finish_announced(c, channel, a, &norm);
    if (c->size > 1 && comm_add_norm_fused(c, a->m, a->n)) {
        if (!comm_exchange_wait(c, channel, in))
            return false;
        for (int r = 0; r < c->size; r++) {
            ASSERT(in[r].bytes == (size_t)a->m * (size_t)a->n * sizeof(float));
            part[r] = in[r].data;
        }
        norm.part = part;
        norm.n_part = c->size;
    } else if (c->size > 1 && !finish_composed(c, channel, a)) {
        return false;
    }
    a->kernels->rmsnorm(a->pool, &norm);
    return true;
}
