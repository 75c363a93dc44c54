#include "model/rebalance.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/ranks.h"
#include "model/update_ranks.h"

#define GAIN 0.95 /* of the busiest rank's load, or a layer stays as it is: moving has its price */
#define FADE 0.5  /* of what has counted before: the load of long ago says little about the next */

struct rebalance {
    struct expert_shape *shape; /* (n_layer) */
    double *load;               /* (n_layer, n_expert) of each expert, older ones fading */
    uint64_t *seen;             /* (n_layer, n_expert) counts that are in it             */
    int16_t *target;            /* (n_layer, n_slot)                                     */
    int layer;                  /* to be settled next; n_layer: none                     */
    struct placement scratch;   /* where moves that are not ordered yet will lead */
    struct model_rebalance plan;
    uint64_t begin_ns;
    bool loss_said; /* that an expert has come whose checkpoint is not open here */
    /* any thread reads */
    atomic_ullong n_done, n_move, bytes, stall_ns;
};

#define ORDER_MAX \
    4 /* moves that are ordered at once: a message for each would cost as much as a small expert */

_Static_assert(ORDER_MAX * 2 * EXPERT_PARTS_MAX <= ORIGINS_LEFT_MAX, "room for what an order leaves");

/* What travels to the other ranks. */
struct order {
    int32_t layer, n;
    int32_t first; /* of this turn: before it, all ranks say whether they can move anything now */
    struct {
        int32_t from, to, exchange;
    } move[ORDER_MAX];
};

void rebalance_open(struct model *m)
{
    const struct ep *ep = &m->ep;
    if (!ep->placement || m->device) /* on GPUs experts stay where they are */
        return;
    size_t n_layer = (size_t)ep->n_layer, n_expert = (size_t)ep->n_expert;
    struct rebalance *b = m->rebalance = mem_alloc(1, sizeof(*b));
    b->shape = mem_alloc(n_layer, sizeof(*b->shape));
    b->load = mem_alloc(n_layer * n_expert, sizeof(*b->load));
    b->seen = mem_alloc(n_layer * n_expert, sizeof(*b->seen));
    b->target = mem_alloc(n_layer * (size_t)ep->n_slot, sizeof(*b->target));
    b->layer = ep->n_layer;
    placement_init(&b->scratch, ep->n_expert, ep->n_slot, m->config.shard.ep_size);
    int n_fixed = 0;
    for (int l = 0; l < ep->n_layer; l++) {
        if (!ep->placement[l].n_slot)
            continue;
        b->shape[l] = expert_shape_agree(m, l);
        n_fixed += !b->shape[l].movable;
    }
    if (n_fixed && comm_rank(m->comm) == 0)
        log_info("the experts of %d layers are stored in different types and stay on their ranks", n_fixed);
}

void rebalance_close(struct model *m)
{
    struct rebalance *b = m->rebalance;
    if (!b)
        return;
    free(b->shape);
    free(b->load);
    free(b->seen);
    free(b->target);
    placement_free(&b->scratch);
    free(b);
    m->rebalance = NULL;
}

/* ---- planning ------------------------------------------------------------------------------------ */

static void gather_load(const struct model *m, int layer)
{
    struct rebalance *b = m->rebalance;
    size_t n = (size_t)m->ep.n_expert, at = (size_t)layer * n;
    for (size_t i = at; i < at + n; i++) {
        uint64_t count = atomic_load_explicit(&m->expert_load[i], memory_order_relaxed);
        b->load[i] = FADE * b->load[i] + (double)(count - b->seen[i]);
        b->seen[i] = count;
    }
}

static int count_moves(const struct placement *p, const int16_t *target)
{
    int n = 0;
    for (int s = 0; s < p->n_slot; s++)
        n += p->expert[s] != target[s];
    return n;
}

static void plan_layer(struct model *m, int layer)
{
    struct rebalance *b = m->rebalance;
    const struct placement *p = &m->ep.placement[layer];
    const double *load = b->load + (size_t)layer * (size_t)p->n_expert;
    int16_t *target = b->target + (size_t)layer * (size_t)m->ep.n_slot;
    gather_load(m, layer);
    double before = balance_of(p, p->expert, load), after = before;
    if (b->shape[layer].movable) {
        balance_plan(p, load, target);
        after = balance_of(p, target, load);
    }
    if (after > GAIN * before) {
        memcpy(target, p->expert, (size_t)p->n_slot * sizeof(*target));
        after = before;
    }
    b->plan.n_layer += count_moves(p, target) > 0;
    b->plan.before += before / m->ep.n_sparse;
    b->plan.after += after / m->ep.n_sparse;
}

bool model_rebalance_begin(struct model *m)
{
    struct rebalance *b = m->rebalance;
    if (!b || m->following)
        return false;
    b->plan = (struct model_rebalance){0};
    b->begin_ns = clock_ns();
    for (int l = 0; l < m->ep.n_layer; l++)
        if (m->ep.placement[l].n_slot)
            plan_layer(m, l);
    b->layer = 0;
    return true;
}

/* ---- moving -------------------------------------------------------------------------------------- */

/* All ranks. Whether they all can. False, too: a rank is lost. */
static bool all_can(struct model *m)
{
    const int32_t own = !m->following || update_follow_is_over(m);
    int32_t all[COMM_RANK_MAX];
    bool can = comm_gather(m->comm, &own, sizeof(own), all);
    for (int r = 0; r < comm_size(m->comm) && can; r++)
        can = all[r];
    return can;
}

static void say_loss(struct model *m, const char *name)
{
    struct rebalance *b = m->rebalance;
    if (!name || b->loss_said)
        return;
    b->loss_said = true;
    log_info(
        "rank %d cannot read %s again, which has moved here: the checkpoint that it is from is not open on "
        "this rank. An update of it needs staging; so do others like it, which are not named",
        comm_rank(m->comm), name);
}

/* All ranks. False: nothing is done, or not all, since a rank cannot or is lost. */
static bool carry_out(struct model *m, const struct order *o, uint64_t *bytes)
{
    struct origins_left left = {0};
    bool done = !o->first || all_can(m);
    for (int i = 0; i < o->n && done; i++) {
        const struct placement_move move = {o->move[i].from, o->move[i].to, o->move[i].exchange};
        done = expert_move(m, o->layer, &m->rebalance->shape[o->layer], &move, &left, bytes);
    }
    say_loss(m, left.lost);
    origins_left_drop(&left);
    return done;
}

/* The next moves of one layer. False: none are left in any. */
static bool next_order(const struct model *m, struct placement *scratch, struct order *o)
{
    struct rebalance *b = m->rebalance;
    struct placement_move move;
    *o = (struct order){0};
    for (; b->layer < m->ep.n_layer && o->n == 0; b->layer += o->n == 0) {
        const struct placement *p = &m->ep.placement[b->layer];
        const int16_t *target = b->target + (size_t)b->layer * (size_t)m->ep.n_slot;
        if (!p->n_slot)
            continue;
        placement_copy(scratch, p);
        for (o->layer = b->layer; o->n < ORDER_MAX && balance_next(scratch, target, &move); o->n++) {
            o->move[o->n].from = move.from;
            o->move[o->n].to = move.to;
            o->move[o->n].exchange = move.exchange;
            placement_apply(scratch, &move);
        }
    }
    return o->n > 0;
}

/* False: not now, or a rank is lost, which shows in comm_status. */
static bool order_moves(struct model *m, const struct order *o)
{
    struct rebalance *b = m->rebalance;
    uint64_t bytes = 0;
    ranks_do(m, TASK_EXPERT_MOVE, o, sizeof(*o));
    if (!carry_out(m, o, &bytes))
        return false;
    b->plan.n_move += (uint64_t)o->n;
    b->plan.bytes += bytes;
    atomic_fetch_add(&b->n_move, (unsigned)o->n);
    atomic_fetch_add(&b->bytes, bytes);
    return true;
}

static void conclude(struct model *m)
{
    struct rebalance *b = m->rebalance;
    const struct ep *ep = &m->ep;
    for (size_t i = 0, n = (size_t)ep->n_layer * (size_t)comm_size(m->comm); i < n; i++)
        atomic_store_explicit(&ep->load.before[i],
                              atomic_load_explicit(&ep->load.pairs[i], memory_order_relaxed),
                              memory_order_relaxed);
    atomic_fetch_add(&b->n_done, 1);
    b->plan.ns = clock_ns() - b->begin_ns;
    if (b->plan.n_move)
        log_info(
            "experts: %llu moves in %d layers, %.1f MB in %.3f s; busiest rank over the mean %.2f before, "
            "%.2f planned",
            (unsigned long long)b->plan.n_move, b->plan.n_layer, (double)b->plan.bytes * 1e-6,
            (double)b->plan.ns * 1e-9, b->plan.before, b->plan.after);
}

enum nyb_code model_rebalance_step(struct model *m, uint64_t budget_ns, bool *more,
                                   struct model_rebalance *out, struct nyb_err *err)
{
    struct rebalance *b = m->rebalance;
    struct order order;
    uint64_t begin = clock_ns();
    *more = b && b->layer < m->ep.n_layer;
    if (!*more || atomic_exchange(&m->updating, true))
        return NYB_OK; /* an update has the slots: later */
    update_say(m);     /* the others close the last one before they move anything */
    enum nyb_code code = NYB_OK;
    bool first = true, go_on = true;
    while (code == NYB_OK && go_on && (*more = next_order(m, &b->scratch, &order))) {
        order.first = first;
        first = false;
        go_on = order_moves(m, &order) && clock_ns() - begin < budget_ns;
        code = comm_status(m->comm, err);
    }
    atomic_store(&m->updating, false);
    atomic_fetch_add(&b->stall_ns, clock_ns() - begin);
    if (code == NYB_OK && !*more)
        conclude(m);
    if (out)
        *out = b->plan;
    return code;
}

void rebalance_follow(struct model *m, const uint8_t *data, size_t bytes)
{
    struct order order;
    uint64_t moved = 0;
    ASSERT(bytes == sizeof(order));
    memcpy(&order, data, sizeof(order));
    if (!carry_out(m, &order, &moved))
        log_debug("no experts moved: a rank closes an update, or is lost"); /* the next command tells */
}

/* ---- facts --------------------------------------------------------------------------------------- */

void model_experts(const struct model *m, struct model_experts *out)
{
    const struct rebalance *b = m->rebalance;
    *out = (struct model_experts){.n_rank = m->ep.placement ? m->config.shard.ep_size : 1,
                                  .n_slot = m->config.moe.n_expert};
    if (!b)
        return;
    *out = (struct model_experts){.n_rank = m->config.shard.ep_size,
                                  .n_slot = m->ep.n_slot,
                                  .rebalances = atomic_load(&b->n_done),
                                  .moves = atomic_load(&b->n_move),
                                  .moved_bytes = atomic_load(&b->bytes),
                                  .stall_ns = atomic_load(&b->stall_ns)};
}

bool model_expert_slots(const struct model *m, int layer, int *expert)
{
    const struct ep *ep = &m->ep;
    if (layer < 0 || layer >= m->config.n_layer || !m->config.layer_is_moe[layer])
        return false;
    for (int s = 0; s < (ep->holds ? ep->n_slot : m->config.moe.n_expert); s++)
        expert[s] = ep->holds
                        ? atomic_load_explicit(&ep->holds[(size_t)layer * (size_t)ep->n_slot + (size_t)s],
                                               memory_order_relaxed)
                        : s;
    return true;
}

bool model_rank_load(const struct model *m, int layer, uint64_t *all, uint64_t *recent)
{
    const struct ep_load *l = &m->ep.load;
    if (layer < 0 || layer >= m->config.n_layer || !m->config.layer_is_moe[layer] || !l->pairs)
        return false;
    size_t n = (size_t)m->config.shard.ep_size;
    for (size_t r = 0; r < n; r++) {
        size_t at = (size_t)layer * n + r;
        all[r] = atomic_load_explicit(&l->pairs[at], memory_order_relaxed);
        uint64_t before = atomic_load_explicit(&l->before[at], memory_order_relaxed);
        recent[r] = before < all[r] ? all[r] - before : 0; /* conclude may run between the two */
    }
    return true;
}
