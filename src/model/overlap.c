#include "model/overlap.h"

#include <math.h>

#include "base/clock.h"

#define PREFILL_MIN 64
#define DECODE_MIN  16
/* Steps of a size that are tried each way, in turn, before one is chosen. Later one in RETRY goes the other
 * way, to see whether that has changed, and fewer where that costs much: all tries together may cost
 * TRY_COST. */
#define TRIES    4
#define RETRY    64
#define TRY_COST 0.01
#define GAIN     0.98 /* of the time without: less is within the noise */

/* ---- whether ------------------------------------------------------------------------------------- */

void overlap_init(struct overlap *o, const struct overlap_options *option)
{
    *o = (struct overlap){.option = *option};
    if (o->option.prefill_min <= 0)
        o->option.prefill_min = PREFILL_MIN;
    if (o->option.decode_min <= 0)
        o->option.decode_min = DECODE_MIN;
}

static bool is_decode(const struct batch *b)
{
    return b->n_seq == b->n_tok;
}

static struct overlap_score *score_of(struct overlap *o, const struct batch *b)
{
    unsigned n = (unsigned)b->n_tok, log = 31u - (unsigned)__builtin_clz(n);
    unsigned half = log > 0 ? n >> (log - 1) & 1 : 0, size = 2 * log + half;
    return &o->score[is_decode(b)][size < OVERLAP_SIZES ? size : OVERLAP_SIZES - 1];
}

/* Time with overlap by time without: the middle of the last pairs, so that a step that was held up by
 * something else decides nothing. 1 as long as there are none. */
static double ratio_of(const struct overlap_score *s)
{
    double sorted[OVERLAP_PAIRS];
    int n = s->n_pair < OVERLAP_PAIRS ? (int)s->n_pair : OVERLAP_PAIRS;
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > s->ratio[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = s->ratio[i];
    }
    return n ? sorted[n / 2] : 1;
}

static bool wants(const struct overlap_score *s)
{
    if (s->steps < 2 * TRIES)
        return s->steps % 2;
    double ratio = ratio_of(s);
    bool pays = ratio < GAIN;
    double loss = pays ? 1 / ratio - 1 : ratio - 1;
    uint64_t period = loss > RETRY * TRY_COST ? (uint64_t)fmin(loss / TRY_COST, 1e6) : RETRY;
    return s->steps % period ? pays : !pays;
}

int overlap_choose(struct overlap *o, const struct batch *b, int n_rank)
{
    bool always = o->option.mode == OVERLAP_ALWAYS;
    int least = is_decode(b) ? o->option.decode_min : o->option.prefill_min;
    if (o->option.mode == OVERLAP_OFF || b->n_tok < 2 || (!always && (n_rank == 1 || b->n_tok < least)))
        return 0;
    return always || wants(score_of(o, b)) ? b->n_tok / 2 : 0;
}

void overlap_learn(struct overlap *o, const struct batch *b, int cut, uint64_t ns)
{
    if (b->n_tok < 1)
        return;
    struct overlap_score *s = score_of(o, b);
    double row_ns = (double)ns / b->n_tok;
    s->whole_ns = cut > 0 ? s->whole_ns : row_ns;
    if (o->option.mode == OVERLAP_OFF)
        return;
    if (s->steps && (cut > 0) != s->last_cut && row_ns > 0 && s->last_ns > 0)
        s->ratio[s->n_pair++ % OVERLAP_PAIRS] = cut ? row_ns / s->last_ns : s->last_ns / row_ns;
    s->last_ns = row_ns;
    s->last_cut = cut > 0;
    s->steps++;
    *(cut ? &o->n_on : &o->n_off) += 1;
}

double overlap_whole_ns(struct overlap *o, const struct batch *b)
{
    return b->n_tok > 0 ? score_of(o, b)->whole_ns : 0;
}

/* ---- cutting ------------------------------------------------------------------------------------- */

/* Rows [begin, end) of b. A sequence that the cut goes through is in both halves. */
static struct batch part(const struct batch *b, int begin, int end, struct arena *step)
{
    int first = 0, last = 0;
    if (begin == end)
        return (struct batch){.n_block_max = b->n_block_max,
                              .seq_start = arena_calloc(step, 1, sizeof(int32_t))};
    while (b->seq_start[first + 1] <= begin)
        first++;
    for (last = first; last < b->n_seq && b->seq_start[last] < end; last++)
        ;
    int32_t *start = arena_alloc(step, (size_t)(last - first) + 1, sizeof(*start));
    for (int s = first; s <= last; s++) {
        int at = b->seq_start[s];
        start[s - first] = (at < begin ? begin : at > end ? end : at) - begin;
    }
    return (struct batch){.n_seq = last - first,
                          .n_tok = end - begin,
                          .n_block_max = b->n_block_max,
                          .tok = b->tok + begin,
                          .pos = b->pos + begin,
                          .slot = b->slot + begin,
                          .seq_start = start,
                          .block_table = b->block_table + (size_t)first * (size_t)b->n_block_max};
}

void overlap_cut(const struct batch *b, int cut, struct batch half[2], struct arena *step)
{
    ASSERT(cut >= 0 && cut <= b->n_tok);
    half[0] = part(b, 0, cut, step);
    half[1] = part(b, cut, b->n_tok, step);
}

/* ---- running ------------------------------------------------------------------------------------- */

static bool is_over(const struct micro_batch *mb)
{
    return mb->layer >= mb->pass->config->n_layer || mb->lost;
}

static const struct stage *stage_of(const struct micro_batch *mb)
{
    return &mb->pass->stages(mb->pass->config, mb->layer)[mb->stage];
}

static void next_stage(struct micro_batch *mb)
{
    mb->started = false;
    mb->stage++;
    arena_reset(&mb->scratch);
    if (stage_of(mb)->start)
        return;
    mb->stage = 0;
    mb->layer++;
    arena_reset(&mb->room);
}

static void show(const struct micro_batch *mb, const struct stage *s, uint64_t begin_ns)
{
    const struct model_probe *p = mb->pass->probe;
    if (p && p->span)
        p->span(p->arg, mb->channel, mb->layer, s->name, s->lane == LANE_COMM, begin_ns, clock_ns());
}

static void finish(struct micro_batch *mb)
{
    const struct stage *s = stage_of(mb);
    if (s->done && layer_takes_part(mb, s))
        s->done(mb);
    show(mb, s, mb->started_ns);
    next_stage(mb);
}

/* Its exchange, if it has one, is then under way. A turn ends there whether or not this rank has rows: ranks
 * with more and fewer stops would begin the exchanges of both channels in different orders, and each would
 * wait for what the other begins only later. */
static void begin(struct micro_batch *mb)
{
    const struct stage *s = stage_of(mb);
    mb->started_ns = clock_ns();
    if (layer_takes_part(mb, s))
        s->start(mb);
    mb->started = true;
    if (!s->done || s->lane == LANE_COMPUTE)
        finish(mb);
}

/* Finish what it waits for, then all that it can do until it has begun the next exchange. */
static void take_turn(struct micro_batch *mb)
{
    if (mb->started)
        finish(mb);
    while (!is_over(mb) && !mb->started)
        begin(mb);
}

/* In turns, whatever is there already and whoever has rows: all ranks then do the same in the same order, so
 * that none waits for an exchange that another begins only later, and neither half runs ahead of the other,
 * which would leave the other's last layers with nothing to hide their exchanges behind. */
void overlap_run(struct micro_batch *first, struct micro_batch *second)
{
    while ((!is_over(first) || !is_over(second)) && !first->lost && !second->lost) {
        if (!is_over(first))
            take_turn(first);
        if (!is_over(second) && !first->lost)
            take_turn(second);
    }
    second->lost |= first->lost;
    first->lost |= second->lost;
}
