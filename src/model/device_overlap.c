/* Two-batch overlap on several GPUs: a step's rows in two halves, whose layers are planned apart and merged
 * into one array of two lanes. Arithmetic of both is on the main one, in turns; their sums are on the side,
 * where those of one half run beside the arithmetic of the other. Where the parts of sums are large, only
 * their way to the other GPUs is on the side, which copy engines go without SMs; adding up is arithmetic.
 *
 * A half's rows are rows of the same buffers, so nothing is needed twice. The second attends to keys that the
 * first has stored: its turn is always behind, on the same lane. The order is that of overlap.h's turns, and
 * the same on every rank. */
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/device_state.h"

/* Rows begin at addresses that kernels take: 8 of bf16 are 16 bytes, of any width; a tile of attention is
 * whole. */
#define FEW_ROWS 8

int device_cut(int n_row, int cut)
{
    int unit = n_row < 4 * CUDA_TILE_TOKENS ? FEW_ROWS : CUDA_TILE_TOKENS;
    return cut < unit ? 0 : cut / unit * unit;
}

/* The longer lane is how long a step takes: the arithmetic, on the SMs that are left, or the sums. */
int device_side_sm(const struct device_side *side, int n_sm, double sum_bytes, double whole_seconds)
{
    double arithmetic = side->n ? whole_seconds - sum_bytes / side->bytes * side->on_all : 0, best = 0;
    int chosen = 0;
    for (int i = 0; i < side->n && arithmetic > 0; i++) {
        double main_lane = arithmetic * n_sm / (n_sm - side->n_sm[i]),
               side_lane = sum_bytes / side->bytes * side->on[i],
               longer = main_lane > side_lane ? main_lane : side_lane;
        if (chosen == 0 || longer < best) {
            best = longer;
            chosen = side->n_sm[i];
        }
    }
    return chosen;
}

enum nyb_code device_keep_sm(struct device *d, int n_row, double row_ns, struct nyb_err *err)
{
    double bytes = 2.0 * d->config->n_layer * n_row * d->config->hidden * sizeof(float);
    int n_sm = device_side_sm(&d->side, d->info.n_sm, bytes, row_ns * n_row * 1e-9);
    if (n_sm == 0)
        n_sm = d->info.n_sm / 8 > 0 ? d->info.n_sm / 8 : 1;
    if (n_sm != d->side.now)
        log_debug("two-batch overlap of %d rows: %d of %d SMs are for sums", n_row, n_sm, d->info.n_sm);
    d->side.now = n_sm;
    return d->plugin->peers_reserve(d->gpu, n_sm) ? NYB_OK : device_failed(d, "keeping SMs for sums", err);
}

bool device_sends(const struct device *d, int first, int second)
{
    size_t row = (size_t)d->config->hidden * sizeof(float), less = (size_t)(first < second ? first : second),
           more = (size_t)(first < second ? second : first);
    return d->sent.bytes > 0 && less * row >= d->sent.from && more * row <= d->sent.bytes;
}

struct half {
    struct cuda_op *op;
    int16_t *layer;
    int n, at;
    int last; /* place of its last operator in the plan, or -1 */
    int last_lane;
    bool sent; /* the parts of its next sum are on their way, to this slot */
    int slot;
};

/* What device_plan_part appends, as an array of its own. */
static struct half take_half(struct device *d, const struct device_shape *s, int which)
{
    struct device_plan *p = &d->plan;
    int before = p->n;
    device_plan_part(d, s, which);
    struct half h = {.n = p->n - before, .last = -1};
    h.op = mem_alloc((size_t)h.n, sizeof(*h.op));
    h.layer = mem_alloc((size_t)h.n, sizeof(*h.layer));
    for (int i = 0; i < h.n; i++) {
        h.op[i] = p->op[before + i];
        h.layer[i] = p->layer[before + i];
    }
    p->n = before;
    return h;
}

/* One more operator of the half. Where the lane changes, it waits for the half's last one. */
static struct cuda_op *append(struct device *d, struct half *h, int which, enum cuda_op_kind kind, int lane)
{
    const struct cuda_op *from = &h->op[h->at];
    int at = d->plan.n;
    struct cuda_op *to = device_plan_add(d, h->layer[h->at], kind, from->n_row, from->count);
    d->plan.half[at] = (int8_t)which;
    to->lane = lane;
    to->back = h->last >= 0 && h->last_lane != lane ? at - h->last : 0;
    h->last = at;
    h->last_lane = lane;
    return to;
}

/* The parts of its next sum: as one array each, which may be the first of two. */
static void append_send(struct device *d, struct half *h, int which)
{
    struct cuda_add_norm *n = &h->op[h->at].as.all_reduce.norm;
    if (n->delta[0] && n->delta[1]) {
        append(d, h, which, CUDA_OP_ADD_NORM, CUDA_LANE_MAIN)->as.add_norm =
            (struct cuda_add_norm){.residual = (float *)(uintptr_t)n->delta[0],
                                   .delta = {n->delta[1], NULL},
                                   .weight = n->weight,
                                   .n = n->n,
                                   .eps = n->eps};
        n->delta[1] = NULL;
    }
    h->slot = 2 * which + d->sent.turn[which];
    d->sent.turn[which] ^= 1;
    h->sent = true;
    append(d, h, which, CUDA_OP_SEND, CUDA_LANE_SIDE)->as.send =
        (struct cuda_send){.part = n->delta[0] ? n->delta[0] : n->delta[1], .n = n->n, .slot = h->slot};
}

/* Up to its next sum, which is then under way. */
static void take_turn(struct device *d, struct half *h, int which, bool sends)
{
    for (bool sum = false; h->at < h->n && !sum; h->at++) {
        const struct cuda_op *from = &h->op[h->at];
        sum = from->kind == CUDA_OP_ALL_REDUCE;
        if (sum && sends && !h->sent) {
            append_send(d, h, which);
            return;
        }
        struct cuda_op *to = append(d, h, which, (enum cuda_op_kind)from->kind,
                                    sum && !sends ? CUDA_LANE_SIDE : CUDA_LANE_MAIN);
        to->as = from->as;
        if (h->sent) {
            to->as.all_reduce.way = CUDA_REDUCE_SENT;
            to->as.all_reduce.slot = h->slot;
            h->sent = sum = false;
        }
    }
}

void device_plan_halves(struct device *d, const struct device_shape *s)
{
    struct half half[2] = {take_half(d, s, 0), take_half(d, s, 1)};
    while (half[0].at < half[0].n || half[1].at < half[1].n)
        for (int i = 0; i < 2; i++)
            take_turn(d, &half[i], i, s->sends);
    /* sums that nothing has waited for yet: the side is in order */
    if (half[1].last_lane == CUDA_LANE_SIDE)
        d->plan.joins = 1 + half[1].last;
    for (int i = 0; i < 2; i++) {
        free(half[i].op);
        free(half[i].layer);
    }
}
