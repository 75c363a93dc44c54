#include "comm/dispatch.h"

#include <string.h>

#include "base/mem.h"

#define LINE 128 /* what a backend may add to each receiver's message */

bool dispatch_init(struct dispatch *d, struct comm *comm, const struct dispatch_codec *codec, int hidden,
                   int top_k)
{
    *d = (struct dispatch){.comm = comm, .codec = codec, .hidden = hidden, .top_k = top_k};
    d->record_bytes = (size_t)top_k * sizeof(int32_t) + codec->bytes((size_t)hidden);
    size_t back = (size_t)top_k * (size_t)hidden * sizeof(float), size = (size_t)comm_size(comm);
    size_t row = back > d->record_bytes ? back : d->record_bytes;
    size_t slot = comm_slot_bytes(comm), rows = slot / size > LINE ? (slot / size - LINE) / row : 0;
    d->round_rows = rows < 1u << 20 ? (int)rows : 1 << 20;
    return d->round_rows > 0;
}

size_t dispatch_worst_bytes(const struct dispatch *d, int rows)
{
    size_t back = (size_t)d->top_k * (size_t)d->hidden * sizeof(float);
    return (size_t)comm_size(d->comm) * (size_t)rows * (d->record_bytes + back);
}

static int rounds(const struct dispatch_flight *f)
{
    return (f->most_rows + f->d->round_rows - 1) / f->d->round_rows;
}

static int round_begin(const struct dispatch_flight *f, int round)
{
    int64_t begin = (int64_t)round * f->d->round_rows;
    return begin < f->n_row ? (int)begin : f->n_row;
}

/* ---- out ----------------------------------------------------------------------------------------- */

/* Rows of a round, and where their records go. */
struct packing {
    const struct dispatch_flight *f;
    int begin, end;
    uint8_t **record; /* (end - begin, ranks): NULL: not wanted there */
};

static bool wanted_by(const struct dispatch_flight *f, int row, int rank)
{
    const struct dispatch_place *place = f->place + (size_t)row * (size_t)f->d->top_k;
    for (int s = 0; s < f->d->top_k; s++)
        if (place[s].rank == rank)
            return true;
    return false;
}

static void write_slots(const struct dispatch_flight *f, int row, int rank, uint8_t *to)
{
    const struct dispatch_place *place = f->place + (size_t)row * (size_t)f->d->top_k;
    int n = 0;
    for (int s = 0; s < f->d->top_k; s++)
        if (place[s].rank == rank) {
            int32_t slot = place[s].slot;
            memcpy(to + (size_t)n++ * sizeof(slot), &slot, sizeof(slot));
        }
    for (int32_t none = -1; n < f->d->top_k; n++)
        memcpy(to + (size_t)n * sizeof(none), &none, sizeof(none));
}

/* A row is encoded once and copied. */
static void pack_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct packing *p = arg;
    const struct dispatch *d = p->f->d;
    size_t ids = (size_t)d->top_k * sizeof(int32_t), hidden = (size_t)d->hidden;
    int size = comm_size(d->comm);
    for (int i = begin; i < end; i++) {
        const uint8_t *first = NULL;
        for (int r = 0; r < size; r++) {
            uint8_t *to = p->record[(size_t)i * (size_t)size + (size_t)r];
            if (!to)
                continue;
            write_slots(p->f, p->begin + i, r, to);
            if (first)
                memcpy(to + ids, first, d->record_bytes - ids);
            else
                d->codec->encode(to + ids, p->f->x + (size_t)(p->begin + i) * hidden, hidden);
            first = to + ids;
        }
    }
}

static void send_round(struct dispatch_flight *f, int round)
{
    const struct dispatch *d = f->d;
    int size = comm_size(d->comm), begin = round_begin(f, round), end = round_begin(f, round + 1);
    size_t n = (size_t)(end - begin);
    struct comm_part part[COMM_RANK_MAX];
    struct packing p = {.f = f,
                        .begin = begin,
                        .end = end,
                        .record = arena_alloc(f->room, n * (size_t)size + 1, sizeof(*p.record))};
    for (int r = 0; r < size; r++) {
        uint8_t *to = arena_alloc(f->room, n + 1, d->record_bytes);
        part[r] = (struct comm_part){.data = to};
        for (int i = begin; i < end; i++) {
            bool wanted = wanted_by(f, i, r);
            p.record[(size_t)(i - begin) * (size_t)size + (size_t)r] = wanted ? to + part[r].bytes : NULL;
            part[r].bytes += wanted ? d->record_bytes : 0;
        }
    }
    pool_range(f->pool, end - begin, 4, pack_rows, &p);
    comm_exchange_start(d->comm, f->channel, part);
}

void dispatch_send(struct dispatch_flight *f)
{
    const struct dispatch *d = f->d;
    size_t most = (size_t)f->sum_rows;
    f->n_received = f->n_pair = f->replied = 0;
    f->row = arena_alloc(f->room, most + 1, (size_t)d->hidden * sizeof(float));
    f->pair_row = arena_alloc(f->room, most * (size_t)d->top_k + 1, sizeof(int32_t));
    f->pair_slot = arena_alloc(f->room, most * (size_t)d->top_k + 1, sizeof(int32_t));
    f->round_pair =
        arena_calloc(f->room, (size_t)rounds(f) * (size_t)comm_size(d->comm) + 1, sizeof(int32_t));
    if (rounds(f) > 0)
        send_round(f, 0);
}

/* ---- in ------------------------------------------------------------------------------------------ */

struct unpacking {
    const struct dispatch_flight *f;
    const uint8_t *from; /* records */
    float *to;
};

static void decode_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct unpacking *u = arg;
    const struct dispatch *d = u->f->d;
    size_t ids = (size_t)d->top_k * sizeof(int32_t), hidden = (size_t)d->hidden;
    for (int i = begin; i < end; i++)
        d->codec->decode(u->to + (size_t)i * hidden, u->from + (size_t)i * d->record_bytes + ids, hidden);
}

/* One rank's message. Its pairs follow one another in the order of its records. */
static int take_message(struct dispatch_flight *f, const struct comm_part *in)
{
    const struct dispatch *d = f->d;
    int n = (int)(in->bytes / d->record_bytes), before = f->n_pair;
    ASSERT(in->bytes % d->record_bytes == 0 && n <= f->sum_rows - f->n_received);
    struct unpacking u = {f, in->data, f->row + (size_t)f->n_received * (size_t)d->hidden};
    pool_range(f->pool, n, 4, decode_rows, &u);
    for (int i = 0; i < n; i++) {
        const uint8_t *record = u.from + (size_t)i * d->record_bytes;
        for (int s = 0; s < d->top_k; s++) {
            int32_t slot;
            memcpy(&slot, record + (size_t)s * sizeof(slot), sizeof(slot));
            if (slot < 0)
                break;
            f->pair_row[f->n_pair] = f->n_received + i;
            f->pair_slot[f->n_pair++] = slot;
        }
    }
    f->n_received += n;
    return f->n_pair - before;
}

bool dispatch_receive(struct dispatch_flight *f)
{
    struct comm_part in[COMM_RANK_MAX];
    int size = comm_size(f->d->comm);
    for (int round = 0; round < rounds(f); round++) {
        if (round > 0)
            send_round(f, round);
        if (!comm_exchange_wait(f->d->comm, f->channel, in))
            return false;
        for (int r = 0; r < size; r++)
            f->round_pair[round * size + r] = take_message(f, &in[r]);
    }
    return true;
}

/* ---- back ---------------------------------------------------------------------------------------- */

struct copying {
    const struct dispatch_flight *f;
    float *to;
    int first;
};

static void copy_products(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct copying *c = arg;
    size_t hidden = (size_t)c->f->d->hidden;
    for (int i = begin; i < end; i++)
        memcpy(c->to + (size_t)i * hidden, c->f->part + (size_t)c->f->part_row[c->first + i] * hidden,
               hidden * sizeof(float));
}

static void reply_round(struct dispatch_flight *f, int round)
{
    const struct dispatch *d = f->d;
    struct comm_part part[COMM_RANK_MAX];
    int size = comm_size(d->comm), n_pair = 0;
    size_t row = (size_t)d->hidden * sizeof(float);
    for (int r = 0; r < size; r++)
        n_pair += f->round_pair[round * size + r];
    struct copying c = {f, arena_alloc(f->room, (size_t)n_pair + 1, row), f->replied};
    pool_range(f->pool, n_pair, 4, copy_products, &c);
    size_t at = 0;
    for (int r = 0; r < size; r++) {
        size_t n = (size_t)f->round_pair[round * size + r];
        part[r] = (struct comm_part){c.to + at * (size_t)d->hidden, n * row};
        at += n;
    }
    f->replied += n_pair;
    comm_exchange_start(d->comm, f->channel, part);
}

void dispatch_reply(struct dispatch_flight *f, const float *part, const int32_t *part_row)
{
    f->part = part;
    f->part_row = part_row;
    f->product = arena_alloc(f->room, (size_t)f->n_row * (size_t)f->d->top_k + 1,
                             (size_t)f->d->hidden * sizeof(float));
    if (rounds(f) > 0)
        reply_round(f, 0);
}

/* Rows of a round whose products have come. */
struct placing {
    struct dispatch_flight *f;
    const uint8_t *from[COMM_RANK_MAX];
    int32_t *at; /* (end - begin, top_k) place in the message of the choice's rank */
    int begin;
};

static void place_products(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct placing *p = arg;
    size_t top_k = (size_t)p->f->d->top_k, hidden = (size_t)p->f->d->hidden, bytes = hidden * sizeof(float);
    for (size_t i = (size_t)begin * top_k; i < (size_t)end * top_k; i++) {
        size_t choice = (size_t)p->begin * top_k + i;
        memcpy(p->f->product + choice * hidden, p->from[p->f->place[choice].rank] + (size_t)p->at[i] * bytes,
               bytes);
    }
}

static void take_products(struct dispatch_flight *f, int round, const struct comm_part *in)
{
    const struct dispatch *d = f->d;
    int begin = round_begin(f, round), end = round_begin(f, round + 1);
    size_t top_k = (size_t)d->top_k, n = (size_t)(end - begin) * top_k;
    int32_t next[COMM_RANK_MAX] = {0};
    struct placing p = {.f = f, .at = arena_alloc(f->room, n + 1, sizeof(*p.at)), .begin = begin};
    for (size_t i = 0; i < n; i++)
        p.at[i] = next[f->place[(size_t)begin * top_k + i].rank]++;
    for (int r = 0; r < comm_size(d->comm); r++) {
        p.from[r] = in[r].data;
        ASSERT(in[r].bytes == (size_t)next[r] * (size_t)d->hidden * sizeof(float));
    }
    pool_range(f->pool, end - begin, 4, place_products, &p);
}

bool dispatch_collect(struct dispatch_flight *f)
{
    struct comm_part in[COMM_RANK_MAX];
    for (int round = 0; round < rounds(f); round++) {
        if (round > 0)
            reply_round(f, round);
        if (!comm_exchange_wait(f->d->comm, f->channel, in))
            return false;
        take_products(f, round, in);
    }
    return true;
}
