/* What all ranks bring to rank 0 at the end of a step. */
#include <string.h>

#include "base/mem.h"
#include "model/ep.h"

#define ROUND_BYTES (64u << 20) /* of logits of one rank */

/* ---- reports ------------------------------------------------------------------------------------- */

/* A report is the pairs computed in each layer (uint32), then the choices: for few rows each one's place in
 * the table of layers and experts, else the whole table of counts (uint32 both). */
static size_t n_choice(const struct ep *ep, int n_row)
{
    return (size_t)n_row * (size_t)ep->n_sparse * (size_t)ep->dispatch.top_k;
}

static size_t n_count(const struct ep *ep)
{
    return (size_t)ep->n_layer * (size_t)ep->n_expert;
}

static bool as_list(const struct ep *ep, int n_row)
{
    return n_choice(ep, n_row) < n_count(ep);
}

size_t ep_report_bytes(const struct ep *ep, int n_row)
{
    size_t choices = as_list(ep, n_row) ? n_choice(ep, n_row) : n_count(ep);
    return ep->n_sparse ? ((size_t)ep->n_layer + choices) * sizeof(uint32_t) : 0;
}

static void write_report(const struct ep_gather *g, int n_row, uint32_t *to)
{
    const struct ep *ep = g->ep;
    bool list = as_list(ep, n_row);
    uint32_t *end = to + ep_report_bytes(ep, n_row) / sizeof(*to);
    memcpy(to, ep->load.computed, (size_t)ep->n_layer * sizeof(*to));
    memset(ep->load.computed, 0, (size_t)ep->n_layer * sizeof(*to));
    to += ep->n_layer;
    for (size_t i = 0; i < n_count(ep); i++) {
        uint64_t all = atomic_load_explicit(&g->expert_load[i], memory_order_relaxed);
        uint32_t more = (uint32_t)(all - ep->load.told[i]);
        ep->load.told[i] = all;
        if (!list)
            *to++ = more;
        for (; list && more > 0; more--) {
            ASSERT(to < end);
            *to++ = (uint32_t)i;
        }
    }
    ASSERT(to == end); /* each row has made its choices in each layer */
}

static void add(atomic_ullong *to, uint64_t n)
{
    atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + n, memory_order_relaxed);
}

static void take_computed(const struct ep *ep, int rank, const uint32_t *from)
{
    size_t n_rank = (size_t)comm_size(ep->dispatch.comm);
    for (size_t l = 0; l < (size_t)ep->n_layer; l++)
        add(&ep->load.pairs[l * n_rank + (size_t)rank], from[l]);
}

static void take_report(const struct ep_gather *g, int rank, const uint32_t *from)
{
    const struct ep *ep = g->ep;
    int n_row = g->part->n_row[rank];
    take_computed(ep, rank, from);
    from += ep->n_layer;
    if (as_list(ep, n_row)) {
        for (size_t i = 0; i < n_choice(ep, n_row); i++) {
            ASSERT(from[i] < n_count(ep));
            add(&g->expert_load[from[i]], 1);
        }
        return;
    }
    for (size_t i = 0; i < n_count(ep); i++)
        add(&g->expert_load[i], from[i]);
}

/* Rank 0's own choices are counted where all are (moe.c). */
static void take_own_report(const struct ep *ep)
{
    take_computed(ep, 0, ep->load.computed);
    memset(ep->load.computed, 0, (size_t)ep->n_layer * sizeof(*ep->load.computed));
}

/* ---- rounds -------------------------------------------------------------------------------------- */

int ep_gather_rows(int vocab)
{
    size_t row = (size_t)vocab * sizeof(float);
    return row < ROUND_BYTES ? (int)(ROUND_BYTES / row) : 1;
}

static int rows_of(const struct ep_gather *g, int rank, int first)
{
    int most = ep_gather_rows(g->vocab), left = g->part->n_out[rank] - first;
    return left < 0 ? 0 : left < most ? left : most;
}

/* What a rank has in this round. */
struct block {
    size_t report, all; /* bytes */
};

static struct block block_of(const struct ep_gather *g, int rank, int first)
{
    struct block b = {.report = first == 0 ? ep_report_bytes(g->ep, g->part->n_row[rank]) : 0};
    b.all = b.report + (size_t)rows_of(g, rank, first) * (size_t)g->vocab * sizeof(float);
    return b;
}

/* n bytes of whole rows from byte `at` on to where they belong. */
static void place_logits(const struct ep_gather *g, int rank, int first, size_t at, size_t n,
                         const uint8_t *from)
{
    size_t row_bytes = (size_t)g->vocab * sizeof(float);
    while (n > 0) {
        size_t row = at / row_bytes, begin = at % row_bytes, left = row_bytes - begin,
               run = left < n ? left : n;
        size_t to = (size_t)g->part->out[rank][(size_t)first + row] * row_bytes + begin;
        memcpy((uint8_t *)g->logits + to, from, run);
        at += run;
        from += run;
        n -= run;
    }
}

/* Bytes [at, at + n) of a rank's block. */
static void take_piece(const struct ep_gather *g, int rank, int first, size_t at, const struct comm_part *in,
                       uint8_t *report)
{
    struct block b = block_of(g, rank, first);
    size_t to_report = at < b.report ? b.report - at : 0;
    to_report = to_report < in->bytes ? to_report : in->bytes;
    if (to_report) {
        memcpy(report + at, in->data, to_report);
        if (at + to_report == b.report)
            take_report(g, rank, (const uint32_t *)(const void *)report);
    }
    place_logits(g, rank, first, at + to_report - b.report, in->bytes - to_report,
                 (const uint8_t *)in->data + to_report);
}

/* Pieces of the other ranks' blocks, until the longest is through. */
static bool exchange_blocks(const struct ep_gather *g, int first, const uint8_t *own, uint8_t **report)
{
    int size = comm_size(g->comm), rank = comm_rank(g->comm);
    size_t piece = comm_slot_bytes(g->comm) / 2 & ~(size_t)3, most = 0;
    for (int r = 1; r < size; r++) {
        struct block b = block_of(g, r, first);
        most = b.all > most ? b.all : most;
    }
    for (size_t at = 0; at < most; at += piece) {
        struct comm_part out[COMM_RANK_MAX] = {0}, in[COMM_RANK_MAX];
        size_t all = rank ? block_of(g, rank, first).all : 0, left = at < all ? all - at : 0;
        out[0] = (struct comm_part){left ? own + at : own, left < piece ? left : piece};
        comm_exchange_start(g->comm, 0, out);
        if (!comm_exchange_wait(g->comm, 0, in))
            return false;
        for (int r = 1; r < size && rank == 0; r++)
            take_piece(g, r, first, at, &in[r], report[r]);
    }
    return true;
}

bool ep_gather(const struct ep_gather *g, int first, void *own, struct arena *step)
{
    int size = comm_size(g->comm), rank = comm_rank(g->comm);
    struct block b = block_of(g, rank, first);
    uint8_t *report[COMM_RANK_MAX] = {0};
    if (rank > 0 && b.report)
        write_report(g, g->part->n_row[rank], own);
    if (rank == 0) {
        for (int r = 1; r < size; r++)
            report[r] = arena_alloc(step, block_of(g, r, first).report + 1, 1);
        if (b.report)
            take_own_report(g->ep);
        place_logits(g, 0, first, 0, b.all - b.report, (const uint8_t *)own + b.report);
    }
    return exchange_blocks(g, first, own, report);
}
