/* An expert from one rank's slot into another's. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "model/rebalance.h"

#define CHANNEL 0
#define SLACK   4096 /* of a message: what a backend may add */

/* Rows of a parameter in a message: all elements, then all block scales. */
struct piece {
    int part, row, n_row;
    size_t at; /* where they begin */
};

/* The first message begins with the facts of all parameters. */
struct message {
    struct piece piece[EXPERT_PARTS_MAX];
    int n_piece;
    size_t bytes;
};

/* One end of a move: a slot of a rank, and whether it is this one. */
struct end {
    int slot, rank, expert;
    bool here;
    uint8_t *buffer;                             /* what it sends */
    struct expert_facts facts[EXPERT_PARTS_MAX]; /* that have come here */
};

struct moving {
    struct model *m;
    const struct layer_weights *layer;
    const struct expert_shape *shape;
    struct end from, to;
    bool exchange;
    struct origins_left *left;
};

/* ---- shapes -------------------------------------------------------------------------------------- */

static size_t elements(const struct part_shape *p)
{
    return p->kind == SLOT_MATRIX ? weight_row_bytes((enum weight_type)p->type, p->k)
                                  : (size_t)p->n * sizeof(float);
}

static size_t scales(const struct part_shape *p)
{
    return p->kind == SLOT_MATRIX && p->type == WEIGHT_NVFP4 ? (size_t)p->k / FP4_GROUP : 0;
}

static size_t row_bytes(const struct part_shape *p)
{
    return elements(p) + scales(p);
}

static int rows(const struct part_shape *p)
{
    return p->kind == SLOT_MATRIX ? p->n : 1;
}

static size_t message_room(const struct model *m)
{
    return comm_slot_bytes(m->comm) - SLACK;
}

/* A panel of every parameter beside all facts. */
static bool fits_messages(const struct model *m, const struct expert_shape *e)
{
    size_t most = 0;
    for (int i = 0; i < e->n_part; i++) {
        size_t panel = row_bytes(&e->part[i]) * (e->part[i].kind == SLOT_MATRIX ? WEIGHT_PANEL : 1);
        most = panel > most ? panel : most;
    }
    return comm_slot_bytes(m->comm) > SLACK &&
           most + (size_t)e->n_part * sizeof(struct expert_facts) <= message_room(m);
}

static struct part_shape shape_of(const struct slot *s)
{
    return (struct part_shape){(int32_t)s->kind, s->kind == SLOT_MATRIX ? (int32_t)s->weight->type : 0, s->n,
                               s->k};
}

/* What this rank's experts look like. */
static struct expert_shape own_shape(const struct model *m, int layer)
{
    const struct layer_weights *l = &m->weights.layer[layer];
    const struct slot *slot = &m->weights.slots.slot[l->expert_slot];
    int n = ep_own_slots(&m->config.shard, m->config.moe.n_expert).count;
    struct expert_shape e = {
        .n_part = l->expert_parts, .known = n > 0, .movable = l->expert_parts <= EXPERT_PARTS_MAX};
    for (int i = 0; i < n * l->expert_parts && e.movable; i++) {
        struct part_shape p = shape_of(&slot[i]), *first = &e.part[i % l->expert_parts];
        if (i < l->expert_parts)
            *first = p;
        e.movable = !memcmp(first, &p, sizeof(p));
    }
    e.movable = e.movable && fits_messages(m, &e);
    return e;
}

struct expert_shape expert_shape_agree(const struct model *m, int layer)
{
    size_t size = (size_t)comm_size(m->comm);
    struct expert_shape own = own_shape(m, layer), *all = mem_alloc(size, sizeof(*all)), result = {0};
    bool movable = comm_gather(m->comm, &own, sizeof(own), all);
    for (size_t r = 0; r < size && movable; r++) {
        if (!all[r].known)
            continue;
        if (!result.known)
            result = all[r];
        movable = all[r].movable && !memcmp(all[r].part, result.part, sizeof(result.part));
    }
    result.movable = movable && result.known;
    free(all);
    return result;
}

/* ---- messages ------------------------------------------------------------------------------------ */

/* As many rows as fit, from a row of a part on, which then are what comes next. All ranks cut alike. */
static bool next_message(const struct moving *v, int *part, int *row, struct message *msg)
{
    size_t room = message_room(v->m);
    bool first = *part == 0 && *row == 0;
    *msg = (struct message){.bytes = first ? (size_t)v->shape->n_part * sizeof(struct expert_facts) : 0};
    while (*part < v->shape->n_part) {
        const struct part_shape *p = &v->shape->part[*part];
        size_t fit = row_bytes(p) ? (room - msg->bytes) / row_bytes(p) : (size_t)rows(p);
        int left = rows(p) - *row, n = left;
        if (fit < (size_t)left)
            n = (int)(fit - fit % WEIGHT_PANEL);
        if (n > 0)
            msg->piece[msg->n_piece++] = (struct piece){*part, *row, n, msg->bytes};
        msg->bytes += (size_t)n * row_bytes(p);
        *row += n;
        if (n < left)
            break;
        ++*part;
        *row = 0;
    }
    return msg->bytes > 0;
}

static struct slot *slot_of(const struct moving *v, const struct end *e, int part)
{
    int own = e->slot - ep_own_slots(&v->m->config.shard, v->m->config.moe.n_expert).begin;
    return &v->m->weights.slots.slot[v->layer->expert_slot + own * v->shape->n_part + part];
}

/* ---- rows ---------------------------------------------------------------------------------------- */

struct copying {
    const struct slot *slot;
    const struct piece *piece;
    const struct part_shape *shape;
    uint8_t *rows, *scales;
};

static struct copying copying(const struct moving *v, const struct end *e, const struct piece *p,
                              uint8_t *message)
{
    const struct part_shape *shape = &v->shape->part[p->part];
    uint8_t *first = message + p->at;
    return (struct copying){slot_of(v, e, p->part), p, shape, first,
                            first + (size_t)p->n_row * elements(shape)};
}

static void read_rows(void *arg, int begin, int end, int worker)
{
    (void)worker;
    const struct copying *c = arg;
    size_t row = elements(c->shape), scale = scales(c->shape);
    for (int i = begin; i < end; i++)
        weight_read(c->slot->weight, c->piece->row + i, c->rows + (size_t)i * row,
                    scale ? c->scales + (size_t)i * scale : NULL);
}

static void write_panel(void *arg, int item, int worker)
{
    (void)worker;
    const struct copying *c = arg;
    size_t row = elements(c->shape), scale = scales(c->shape);
    int begin = item * WEIGHT_PANEL, left = c->piece->n_row - begin,
        n = left < WEIGHT_PANEL ? left : WEIGHT_PANEL;
    weight_write(c->slot->weight, c->piece->row + begin, n, c->rows + (size_t)begin * row,
                 scale ? c->scales + (size_t)begin * scale : NULL);
}

static void fill_message(const struct moving *v, const struct end *e, const struct message *msg)
{
    if (msg->piece[0].at) /* the first */
        for (int i = 0; i < v->shape->n_part; i++) {
            const struct expert_facts f = expert_facts_of(slot_of(v, e, i));
            memcpy(e->buffer + (size_t)i * sizeof(f), &f, sizeof(f));
        }
    for (int i = 0; i < msg->n_piece; i++) {
        struct copying c = copying(v, e, &msg->piece[i], e->buffer);
        if (c.slot->kind == SLOT_VECTOR)
            memcpy(c.rows, *c.slot->vector, elements(c.shape));
        else
            pool_range(v->m->pool, msg->piece[i].n_row, WEIGHT_PANEL, read_rows, &c);
    }
}

static void take_message(const struct moving *v, struct end *e, const struct message *msg, const void *from)
{
    uint8_t *bytes = (uint8_t *)(uintptr_t)from; /* only read */
    if (msg->piece[0].at)
        memcpy(e->facts, bytes, (size_t)v->shape->n_part * sizeof(e->facts[0]));
    for (int i = 0; i < msg->n_piece; i++) {
        struct copying c = copying(v, e, &msg->piece[i], bytes);
        if (c.slot->kind == SLOT_VECTOR)
            memcpy(*c.slot->vector, c.rows, elements(c.shape));
        else
            pool_run(v->m->pool, (msg->piece[i].n_row + WEIGHT_PANEL - 1) / WEIGHT_PANEL, write_panel, &c);
    }
}

/* One message from each end that sends; ranks between which nothing goes only take part in the exchange. */
static bool carry(struct moving *v, const struct message *msg)
{
    struct comm_part out[COMM_RANK_MAX], in[COMM_RANK_MAX];
    bool apart = v->from.rank != v->to.rank;
    const void *to_there = v->from.buffer, *back = v->to.buffer;
    if (v->from.here)
        fill_message(v, &v->from, msg);
    if (v->to.here && v->exchange)
        fill_message(v, &v->to, msg);
    for (int r = 0; r < comm_size(v->m->comm); r++)
        out[r] = (struct comm_part){"", 0};
    if (apart) {
        if (v->from.here)
            out[v->to.rank] = (struct comm_part){v->from.buffer, msg->bytes};
        if (v->to.here && v->exchange)
            out[v->from.rank] = (struct comm_part){v->to.buffer, msg->bytes};
        comm_exchange_start(v->m->comm, CHANNEL, out);
        if (!comm_exchange_wait(v->m->comm, CHANNEL, in))
            return false;
        to_there = in[v->from.rank].data;
        back = in[v->to.rank].data;
        ASSERT(!v->to.here || in[v->from.rank].bytes == msg->bytes);
    }
    if (v->to.here)
        take_message(v, &v->to, msg, to_there);
    if (v->from.here && v->exchange)
        take_message(v, &v->from, msg, back);
    return true;
}

/* The end's slot holds the expert now. */
static void take_facts(const struct moving *v, const struct end *e, int expert)
{
    for (int i = 0; i < v->shape->n_part; i++) {
        struct slot *s = slot_of(v, e, i);
        s->name = v->layer->expert_name[expert * v->shape->n_part + i];
        expert_facts_take(s, &e->facts[i], &v->m->weights.slots, v->left);
    }
}

/* ---- a move -------------------------------------------------------------------------------------- */

static void set_end(const struct model *m, const struct placement *p, int slot, struct end *e)
{
    *e = (struct end){.slot = slot, .rank = placement_rank(p, slot), .expert = p->expert[slot]};
    e->here = e->rank == comm_rank(m->comm);
    if (e->here)
        e->buffer = mem_alloc(message_room(m), 1);
}

static bool move_rows(struct moving *v, uint64_t *bytes)
{
    struct message msg;
    int part = 0, row = 0;
    if (v->from.rank == v->to.rank && !v->from.here)
        return true;
    while (next_message(v, &part, &row, &msg)) {
        if (!carry(v, &msg))
            return false;
        if (v->from.rank != v->to.rank)
            *bytes += v->exchange ? 2 * msg.bytes : msg.bytes;
    }
    return true;
}

bool expert_move(struct model *m, int layer, const struct expert_shape *shape,
                 const struct placement_move *move, struct origins_left *left, uint64_t *bytes)
{
    struct placement *p = &m->ep.placement[layer];
    struct moving v = {
        .m = m, .layer = &m->weights.layer[layer], .shape = shape, .exchange = move->exchange, .left = left};
    set_end(m, p, move->from, &v.from);
    set_end(m, p, move->to, &v.to);
    bool there = move_rows(&v, bytes);
    free(v.from.buffer);
    free(v.to.buffer);
    if (!there)
        return false;
    if (v.to.here)
        take_facts(&v, &v.to, v.from.expert);
    if (v.from.here && v.exchange)
        take_facts(&v, &v.from, v.to.expert);
    placement_apply(p, move);
    atomic_short *holds = m->ep.holds + (size_t)layer * (size_t)m->ep.n_slot;
    atomic_store_explicit(&holds[move->to], p->expert[move->to], memory_order_relaxed);
    atomic_store_explicit(&holds[move->from], p->expert[move->from], memory_order_relaxed);
    return true;
}
