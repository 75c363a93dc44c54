/* Steps of a device: a replayed graph where each sequence has one row, else operator by operator. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/device_ep.h"
#include "model/device_watch.h"

/* ---- before a step ------------------------------------------------------------------------------- */

static enum nyb_code extend_rope(struct device *d, const struct batch *b, struct nyb_err *err)
{
    struct rope *r = d->rope;
    int32_t last = 0;
    for (int i = 0; i < b->n_tok; i++)
        last = b->pos[i] > last ? b->pos[i] : last;
    rope_extend(r, last);
    size_t at = (size_t)d->rope_filled * (size_t)r->half, end = (size_t)r->filled * (size_t)r->half;
    if (at == end)
        return NYB_OK;
    if (!d->plugin->write(d->gpu, d->cos + at, r->cos + at, (end - at) * sizeof(float)) ||
        !d->plugin->write(d->gpu, d->sin + at, r->sin + at, (end - at) * sizeof(float)))
        return device_failed(d, "copying rotary tables", err);
    d->rope_filled = r->filled;
    return NYB_OK;
}

/* Longer steps than expected are possible as long as there is memory. */
static enum nyb_code make_room(struct device *d, int n_row, struct nyb_err *err)
{
    if (n_row <= d->room.n_row)
        return NYB_OK;
    log_debug("%s: making room for steps of %d tokens", d->info.name, n_row);
    int before = d->room.n_row;
    enum nyb_code code = device_room_reserve(d, n_row, err);
    if (code != NYB_OK && before > 0 && device_room_reserve(d, before, NULL) != NYB_OK)
        log_error("%s: there is no room for steps any more", d->info.name);
    return code;
}

#define SCRATCH_GROWS ((size_t)16 << 20)

/* Scratch for the plan. Recorded graphs have the old scratch's address: it grows by half, so that longer and
 * longer prompts seldom make it grow, where there is memory for that. */
static enum nyb_code make_scratch(struct device *d, struct nyb_err *err)
{
    size_t bytes, roomy = d->scratch_bytes + d->scratch_bytes / 2;
    if (!d->plugin->scratch(d->gpu, d->plan.op, d->plan.n, &bytes))
        return device_failed(d, "planning a step", err);
    if (bytes <= d->scratch_bytes)
        return NYB_OK;
    bytes = (bytes + SCRATCH_GROWS - 1) / SCRATCH_GROWS * SCRATCH_GROWS;
    device_forget_graphs(d);
    d->scratch_bytes = 0;
    if (roomy > bytes && d->plugin->reserve(d->gpu, roomy))
        bytes = roomy;
    else if (!d->plugin->reserve(d->gpu, bytes))
        return device_failed(d, "taking scratch memory", err);
    d->scratch_bytes = bytes;
    return NYB_OK;
}

/* What a caller wants of a step: device_forward's. */
struct outputs {
    float *logits;
    int32_t *best;
    const struct draw *draw;
};

static enum nyb_code upload(struct device *d, const struct device_shape *s, const struct batch *b,
                            const struct outputs *o, struct nyb_err *err)
{
    size_t bytes = device_input_bytes(s, b);
    TRY(device_input_reserve(d, bytes, err));
    device_input_write(s, b, d->staging);
    if (d->ep)
        device_ep_write(d, s, d->staging, 0, d->ep->whole->n_out);
    if (s->draws)
        device_input_write_draws(s, o->draw, d->ep ? d->ep->whole->n_out : b->n_out, d->staging);
    return d->plugin->upload(d->gpu, d->input, d->staging, bytes) ? NYB_OK
                                                                  : device_failed(d, "copying a batch", err);
}

/* ---- graphs -------------------------------------------------------------------------------------- */

int device_graph_rows(int n)
{
    if (n <= 4)
        return n <= 2 ? n : 4;
    int step = n <= 32 ? 8 : n <= 128 ? 16 : 32;
    return (n + step - 1) / step * step;
}

static bool has_graph(const struct device *d, const struct device_shape *s, const struct model_probe *probe)
{
    return !probe && !d->option.no_graphs && s->n_tile == 0 && s->n_row <= DEVICE_GRAPH_ROWS &&
           s->n_row <= d->room.n_row && s->n_out <= s->n_row && s->n_single == s->n_row;
}

static struct device_shape padded(const struct device *d, const struct device_shape *s)
{
    struct device_shape p = {.n_row = device_graph_rows(s->n_row), .n_split = 1};
    p.n_row = p.n_row > d->room.n_row ? d->room.n_row : p.n_row;
    p.cut = p.single_cut = s->cut > 0 ? device_cut(p.n_row, p.n_row / 2) : 0;
    p.n_single = p.n_row;
    p.n_out = s->n_out ? p.n_row : 0;
    while (p.n_split < s->n_split)
        p.n_split *= 2;
    return p;
}

/* Of a whole batch; where sequences are on one rank each, it has been taken (device_ep.h). Whether it is that
 * of a graph depends on what all ranks know. */
static struct device_shape shape_of(const struct device *d, const struct batch *b, int cut,
                                    const struct model_probe *probe, bool *graph)
{
    struct device_shape s = device_shape_of(b, device_cut(b->n_tok, cut));
    *graph = has_graph(d, &s, probe);
    if (*graph)
        s = padded(d, &s);
    else if (s.cut > 0)
        s.sends = device_sends(d, s.cut, s.n_row - s.cut);
    if (!d->ep)
        return s;
    const struct device_ep *e = d->ep;
    int rows = device_graph_rows(e->most_rows > e->most_out ? e->most_rows : e->most_out);
    return device_ep_shape(d, &s, !*graph ? 0 : rows < s.n_row ? rows : s.n_row);
}

struct device_shape device_step_shape(const struct device *d, const struct batch *b, int cut)
{
    bool graph;
    return shape_of(d, b, cut, NULL, &graph);
}

static bool same_shape(const struct device_shape *a, const struct device_shape *b)
{
    return a->n_row == b->n_row && a->n_out == b->n_out && a->n_single == b->n_single &&
           a->n_tile == b->n_tile && a->n_split == b->n_split && a->best == b->best && a->draws == b->draws &&
           a->cut == b->cut && a->n_all == b->n_all;
}

/* Room for one more: the one that has not been used for longest goes. */
static struct device_graph *new_graph(struct device *d)
{
    if (d->n_graph < DEVICE_GRAPHS_MAX)
        return &d->graph[d->n_graph++];
    struct device_graph *oldest = &d->graph[0];
    for (int i = 1; i < d->n_graph; i++)
        if (d->graph[i].used < oldest->used)
            oldest = &d->graph[i];
    d->plugin->graph_free(d->gpu, oldest->graph);
    return oldest;
}

static void plan_all(struct device *d, const struct device_shape *s)
{
    device_plan_clear(d);
    device_plan_layers(d, s);
    if (s->n_out)
        device_plan_head(d, s, 0, s->n_out, false);
    if (s->draws)
        device_plan_draw(d, s, 0, s->n_out, false);
    else if (s->best)
        device_plan_best(d, s->n_out);
}

static enum nyb_code record(struct device *d, const struct device_shape *s, struct cuda_graph **out,
                            struct nyb_err *err)
{
    plan_all(d, s);
    TRY(make_scratch(d, err));
    struct cuda_graph *graph = d->plugin->graph_make(d->gpu, d->plan.op, d->plan.n);
    if (!graph)
        return device_failed(d, "recording a step", err);
    struct device_graph *g = new_graph(d);
    *g = (struct device_graph){.shape = *s, .graph = graph, .used = d->n_step};
    *out = graph;
    return NYB_OK;
}

static enum nyb_code replay(struct device *d, const struct device_shape *s, struct nyb_err *err)
{
    struct cuda_graph *graph = NULL;
    for (int i = 0; i < d->n_graph && !graph; i++)
        if (same_shape(&d->graph[i].shape, s)) {
            graph = d->graph[i].graph;
            d->graph[i].used = d->n_step;
        }
    if (!graph)
        TRY(record(d, s, &graph, err));
    d->n_replayed++;
    return d->plugin->graph_run(d->gpu, graph) ? NYB_OK : device_failed(d, "a step", err);
}

/* ---- a step -------------------------------------------------------------------------------------- */

/* Where draws are made, logits of the other rows: those that follow each other in one piece. */
static bool read_other_logits(struct device *d, const struct outputs *o, int first, int n)
{
    size_t vocab = (size_t)d->config->vocab;
    bool ok = true;
    for (int i = 0, end; i < n && ok; i = end) {
        bool wanted = o->draw[first + i].wanted;
        for (end = i + 1; end < n && o->draw[first + end].wanted == wanted;)
            end++;
        if (!wanted)
            ok = d->plugin->read(d->gpu, o->logits + (size_t)(first + i) * vocab,
                                 d->room.logits + (size_t)i * vocab,
                                 (size_t)(end - i) * vocab * sizeof(float));
    }
    return ok;
}

/* Logits of rows [first, first + n) of out_row are in the room, and the likeliest tokens if they are wanted.
 */
static enum nyb_code take_outputs(struct device *d, const struct outputs *o, int first, int n,
                                  struct nyb_err *err)
{
    size_t vocab = (size_t)d->config->vocab;
    bool ok = !o->best || d->plugin->sync(d->gpu);
    if (ok && o->best)
        memcpy(o->best + first, d->best, (size_t)n * sizeof(*o->best));
    if (ok && o->draw)
        ok = read_other_logits(d, o, first, n);
    else if (ok && o->logits)
        ok = d->plugin->read(d->gpu, o->logits + (size_t)first * vocab, d->room.logits,
                             (size_t)n * vocab * sizeof(float));
    return ok ? NYB_OK : device_failed(d, "reading logits", err);
}

static enum nyb_code run_plan(struct device *d, const struct device_watch *w, struct nyb_err *err)
{
    TRY(make_scratch(d, err));
    if (w->probe)
        return device_run_watched(w);
    if (w->spans)
        return device_run_traced(w);
    return d->plugin->run(d->gpu, d->plan.op, d->plan.n) ? NYB_OK : device_failed(d, "a step", err);
}

static enum nyb_code run_directly(struct device *d, const struct device_shape *s, const struct outputs *o,
                                  const struct device_watch *w, struct nyb_err *err)
{
    device_plan_clear(d);
    device_plan_layers(d, s);
    TRY(run_plan(d, w, err));
    for (int first = 0; first < s->n_out; first += device_head_rows(d)) {
        int n = s->n_out - first < device_head_rows(d) ? s->n_out - first : device_head_rows(d);
        if (d->ep && first > 0)
            TRY(device_ep_next_out(d, s, first, n, err));
        device_plan_clear(d);
        device_plan_head(d, s, first, n, true);
        if (o->draw)
            device_plan_draw(d, s, first, n, true);
        else if (o->best)
            device_plan_best(d, n);
        TRY(run_plan(d, w, err));
        TRY(take_outputs(d, o, first, n, err));
    }
    return w->probe ? device_show_final(w, s) : NYB_OK;
}

/* By its graph, or what would be in it. */
static enum nyb_code run_graph(struct device *d, const struct device_shape *s, const struct device_watch *w,
                               struct nyb_err *err)
{
    if (!w->spans)
        return replay(d, s, err);
    plan_all(d, s);
    return run_plan(d, w, err);
}

enum nyb_code device_forward(struct device *d, const struct batch *b, int cut, float *logits, int32_t *best,
                             const struct draw *draw, const struct model_probe *probe, struct nyb_err *err)
{
    const struct outputs o = {logits, best, draw};
    const bool whole = device_looks_inside(probe);
    const struct batch *own = d->ep ? device_ep_take(d, b) : b;
    const struct device_watch w = {d, whole ? probe : NULL, whole || !probe || !probe->span ? NULL : probe,
                                   own->n_tok, err};
    bool graph;
    if (b->n_tok == 0)
        return NYB_OK;
    ASSERT(!whole || cut == 0);
    d->n_step++;
    TRY(make_room(d, b->n_tok, err));
    TRY(extend_rope(d, b, err));
    struct device_shape s = shape_of(d, b, cut, w.probe, &graph);
    s.draws = draw && s.n_out > 0;
    if (graph) {
        s.best = best && s.n_out > 0;
        TRY(upload(d, &s, own, &o, err));
        TRY(run_graph(d, &s, &w, err));
        TRY(b->n_out ? take_outputs(d, &o, 0, b->n_out, err) : NYB_OK);
    } else {
        TRY(upload(d, &s, own, &o, err));
        TRY(run_directly(d, &s, &o, &w, err));
    }
    /* The batch's memory is written again by the next step; and a failure belongs to this one. */
    return d->plugin->sync(d->gpu) ? NYB_OK : device_failed(d, "a step", err);
}

int device_most_top_k(const struct device *d)
{
    return d->config->vocab <= CUDA_SAMPLE_MAX ? CUDA_SAMPLE_TOP_K : 0;
}

/* Counters only grow, each is read whole, and a step that goes on may be in them or not yet. */
enum nyb_code device_read_load(struct device *d, atomic_ullong *count, struct nyb_err *err)
{
    size_t n = (size_t)d->config->n_layer * (size_t)d->config->moe.n_expert;
    uint64_t *now = mem_alloc(n + 1, sizeof(*now));
    pthread_mutex_lock(&d->load_lock);
    bool ok = n == 0 || d->plugin->peek(d->gpu, now, d->load, n * sizeof(*now));
    for (size_t i = 0; ok && i < n; i++)
        atomic_store_explicit(&count[i], now[i], memory_order_relaxed);
    pthread_mutex_unlock(&d->load_lock);
    free(now);
    return ok ? NYB_OK : device_failed(d, "reading counters", err);
}
