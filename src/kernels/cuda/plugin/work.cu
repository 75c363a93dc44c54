/* Operators on the stream: started one after another, or recorded once and replayed. */
#include <algorithm>
#include <new>

#include "kernels/cuda/plugin/cublaslt.h"
#include "kernels/cuda/plugin/peers.h"
#include "kernels/cuda/plugin/prefill.cuh"
#include "kernels/cuda/plugin/state.h"

thread_local bool gpu_only_check;

static struct packed_moe moe_of(const struct cuda_op *op)
{
    const struct cuda_moe *m = &op->as.moe;
    return {m->gate_up, m->down,   m->gate_scale, m->up_scale, m->down_scale, m->x,     m->id,   m->weight,
            m->out,     op->n_row, m->n_used,     m->n_expert, m->hidden,     m->inner, m->each, m->n_shared};
}

/* A dense MLP in few rows is two products: so many rows at a time; 0: it is none, or they do not fit. */
static int mlp_rows(const struct packed_moe *w, const struct gpu_limits *limits)
{
    if (w->n_expert != 1 || w->n_used != 1 || w->each)
        return 0;
    return std::min(linear_split_rows(2 * w->inner, w->hidden, limits),
                    linear_split_rows(w->hidden, w->inner, limits));
}

static const char *mlp_half_start(const struct packed_linear *w, const struct op_place *at)
{
    if (linear_single_takes(w, at->limits))
        return linear_single_start(w, at);
    return linear_wgmma_takes(w, at->limits) ? linear_wgmma_start(w, at) : linear_split_start(w, at);
}

static const char *mlp_start(const struct packed_moe *w, int most, uint16_t *h, const struct op_place *at)
{
    const char *why = nullptr;
    for (int row = 0; row < w->n_row && !why; row += most) {
        const size_t hidden = (size_t)w->hidden, n = (size_t)row;
        struct packed_linear up = {}, down = {};
        up.n_row = down.n_row = std::min(most, w->n_row - row);
        up.weight = w->gate_up;
        up.x = w->x + n * hidden;
        up.K = down.n_out = w->hidden;
        up.n_out = 2 * w->inner;
        up.mlp.gate_scale = w->gate_scale;
        up.mlp.up_scale = w->up_scale;
        up.mlp.h = h + n * (size_t)w->inner;
        down.weight = w->down;
        down.x = up.mlp.h;
        down.K = w->inner;
        down.n_part = 1;
        down.part[0] = {w->down_scale, nullptr, w->out + n * hidden, 0, w->hidden};
        down.mlp.weight = w->weight + n;
        down.mlp.id = w->id + n;
        why = mlp_half_start(&up, at);
        if (!why)
            why = mlp_half_start(&down, at);
    }
    return why;
}

/* Not for the kernel for few rows. That one has eight rows of an expert at a time: beyond 32 tokens it is the
 * faster as long as few experts have more, but for those that all tokens take. */
static bool is_prefill(const struct packed_moe *w, const struct gpu_limits *limits)
{
    if (w->n_row <= 2 * CUDA_ROWS_MAX && mlp_rows(w, limits) > 0)
        return false;
    if (!w->each && w->n_row <= 2 * CUDA_ROWS_MAX && moe_takes(w, limits) &&
        (int64_t)w->n_row * (w->n_used - w->n_shared) <= 6 * (int64_t)(w->n_expert - w->n_shared))
        return false;
    return cuda_moe_is_for_many(w->n_row, w->n_used);
}

/* Of the kernel for few rows; bytes, a multiple of 256. */
static size_t place_moe(const struct packed_moe *w, void *base, struct moe_scratch *s)
{
    const size_t n_slot = (size_t)w->n_row * (size_t)w->n_used;
    const size_t h = gpu_align(n_slot * (size_t)w->inner * sizeof(uint16_t));
    s->h = (uint16_t *)base;
    s->y = (float *)((uint8_t *)base + h);
    return h + gpu_align(n_slot * (size_t)w->hidden * sizeof(float));
}

/* Whether it is that kernel's, or a dense MLP's. */
static bool is_few(const struct cuda_op *op, const struct gpu_limits *limits)
{
    if (op->kind != CUDA_OP_MOE)
        return false;
    const struct packed_moe w = moe_of(op);
    return !is_prefill(&w, limits);
}

/* Its part of the scratch, at the end, which no other kernel uses. */
static void place_few(const struct packed_moe *w, const struct op_place *at, struct moe_scratch *s)
{
    const size_t bytes = place_moe(w, NULL, s);
    place_moe(w, at->scratch + (std::max(at->scratch_bytes, bytes) - bytes) / 256 * 256, s);
}

static bool scratch_of(struct cuda_gpu *g, const struct cuda_op *op, size_t *bytes)
{
    *bytes = 0;
    if (op->n_row < 1)
        return gpu_fail(g, "run", "an operator without rows");
    if (op->kind == CUDA_OP_LINEAR)
        *bytes = linear_op_scratch(op);
    else if (op->kind == CUDA_OP_ATTENTION)
        *bytes = attention_scratch(op, &g->limits);
    else if (op->kind == CUDA_OP_MOE_PLAIN)
        *bytes = moe_plain_scratch(op);
    if (op->kind == CUDA_OP_MOE_W4A4) {
        const char *why = lt_moe_check(op);
        if (why)
            return gpu_fail(g, "moe", why);
        *bytes = lt_moe_scratch(op);
    }
    if (op->kind != CUDA_OP_MOE)
        return true;
    const struct packed_moe w = moe_of(op);
    const char *why = prefill_check(&w);
    if (why)
        return gpu_fail(g, "moe", why);
    struct moe_scratch s;
    const size_t few = place_moe(&w, NULL, &s);
    *bytes = is_prefill(&w, &g->limits) ? prefill_bytes(&w) : few;
    if (w.n_expert == 1 &&
        op->n_row <= 2 * CUDA_ROWS_MAX) /* which of both kernels depends on a lane's SMs, too */
        *bytes = std::max(few, prefill_bytes(&w));
    return true;
}

bool gpu_reserve(struct cuda_gpu *g, size_t bytes)
{
    if (!gpu_enter(g) || !gpu_sync(g))
        return false;
    cudaFree(g->scratch);
    g->scratch = NULL;
    g->scratch_bytes = 0;
    if (bytes > 0 && !gpu_check(g, "memory", cudaMalloc(&g->scratch, bytes)))
        return false;
    g->scratch_bytes = bytes;
    return true;
}

/* early: memory for what goes from block to block is nobody's while the launch in front is at work. */
static const char *few_start(const struct cuda_op *op, bool early, const struct op_place *at)
{
    const struct packed_moe w = moe_of(op);
    if (!w.each && moe_single_takes(&w, at->limits))
        return moe_single_start(&w, at);
    struct moe_scratch s = {NULL, NULL, at->barrier + OP_MEET, early};
    place_few(&w, at, &s);
    const int mlp = mlp_rows(&w, at->limits);
    if (mlp > 0)
        return mlp_start(&w, mlp, s.h, at);
    if (w.each)
        s.y = (float *)w.each;
    return moe_start(&w, &s, at);
}

static const char *moe_start_either(const struct cuda_op *op, const struct op_place *at)
{
    const struct packed_moe w = moe_of(op);
    return is_prefill(&w, at->limits) ? prefill_start(&w, at->scratch, at->limits, at->stream)
                                      : few_start(op, false, at);
}

/* In the order of enum cuda_op_kind. */
static const char *(*const op_table[])(const struct cuda_op *op, const struct op_place *at) = {
    embed_start,      add_norm_start,  linear_op_start, qkv_start,    attention_start,  router_start,
    moe_start_either, moe_plain_start, swiglu_start,    argmax_start, all_reduce_start, gather_start,
    lt_moe_start,     dispatch_start,  combine_start,   sample_start, send_start,
};
static_assert(sizeof(op_table) / sizeof(op_table[0]) == CUDA_OP_KINDS, "a function for each kind");

/* Whether its function launches nothing but through gpu_launch, and calls no library. */
static bool can_only_check(const struct cuda_op *op, const struct gpu_limits *limits)
{
    if (op->kind == CUDA_OP_MOE) {
        const struct packed_moe w = moe_of(op);
        return !is_prefill(&w, limits);
    }
    if (op->kind == CUDA_OP_LINEAR)
        return op->as.linear.part[0].w.type != CUDA_NVFP4_TILED && !linear_op_is_prefill(op, limits);
    return op->kind != CUDA_OP_MOE_W4A4 &&
           (op->kind != CUDA_OP_ALL_REDUCE || op->as.all_reduce.way != CUDA_REDUCE_LIBRARY);
}

/* All that a launch would refuse, without one. */
static bool check_op(struct cuda_gpu *g, const struct cuda_op *op)
{
    if (op->kind < 0 || op->kind >= CUDA_OP_KINDS)
        return gpu_fail(g, "run", "no such operator");
    if (!can_only_check(op, &g->limits))
        return true;
    /* memory that nobody looks at: a place for the scratch's parts to be counted from */
    uint8_t *scratch = (uint8_t *)g->barrier;
    const struct op_place at = {&g->limits, scratch, 0, g->barrier, g->stream, g->peers, g->lt, false, {}};
    gpu_only_check = true;
    const char *why = op_table[op->kind](op, &at);
    gpu_only_check = false;
    return !why || gpu_fail(g, "launch", why);
}

bool gpu_scratch(struct cuda_gpu *g, const struct cuda_op *op, int n_op, size_t *bytes)
{
    size_t few = 0, other = 0; /* side by side: see place_few */
    *bytes = 0;
    if (!gpu_enter(g))
        return false;
    for (int i = 0; i < n_op; i++) {
        size_t one;
        if (!scratch_of(g, &op[i], &one) || !check_op(g, &op[i]))
            return false;
        size_t *most = is_few(&op[i], &g->limits) ? &few : &other;
        *most = std::max(*most, one);
    }
    *bytes = gpu_align(other) + gpu_align(few);
    return true;
}

/* Whether nothing else on this GPU can wait for a launch of ours: no other rank, whose sums wait for ours. */
static bool is_alone(const struct cuda_gpu *g)
{
    return g->alone && (!g->peers || !g->peers->memory.is_shared);
}

bool gpu_start_on(struct cuda_gpu *g, const struct cuda_op *op, const struct gpu_limits *limits,
                  cudaStream_t stream)
{
    size_t bytes;
    if (op->kind < 0 || op->kind >= CUDA_OP_KINDS)
        return gpu_fail(g, "run", "no such operator");
    if (!scratch_of(g, op, &bytes))
        return false;
    if (bytes > g->scratch_bytes)
        return gpu_fail(g, "run", "more scratch memory than was reserved");
    const bool alone = is_alone(g) && limits->n_sm == g->limits.n_sm; /* else the side has the other SMs */
    const struct op_place at = {
        limits, (uint8_t *)g->scratch, g->scratch_bytes, g->barrier, stream, g->peers, g->lt, alone, {}};
    const char *why = op_table[op->kind](op, &at);
    return !why || gpu_fail(g, "launch", why);
}

/* Experts of few rows behind their router, which may clear their words early: when they begin, no other
 * experts are at work, whose words would be the same memory. Launches that let the next in before they wait
 * do not say so: any number of them may have begun one in front of the other. But of the norm and the router
 * one has waited before it did: with one row the router, with more the norm, as it has unrounded rows
 * (norm.cu). So what precedes the norm has ended. */
static int start_chosen(struct cuda_gpu *g, const struct cuda_op *op, int i, const struct op_place *at)
{
    size_t bytes;
    if (i < 3 || op[i - 1].kind != CUDA_OP_ROUTER || op[i - 2].kind != CUDA_OP_ADD_NORM ||
        !op[i - 2].as.add_norm.y_float || op[i - 3].kind != CUDA_OP_LINEAR || !is_few(&op[i], at->limits) ||
        !scratch_of(g, &op[i], &bytes) || bytes > g->scratch_bytes)
        return 0;
    const char *why = few_start(&op[i], true, at);
    return !why || gpu_fail(g, "launch", why) ? 1 : -1;
}

/* Behind a product of one row in front of norm, router and experts in one launch, which begin with them. */
static struct op_ahead ahead_of(const struct cuda_op *op, int n_op)
{
    if (n_op < 4 || op[0].kind != CUDA_OP_LINEAR || op[1].kind != CUDA_OP_ADD_NORM ||
        op[2].kind != CUDA_OP_ROUTER || op[3].kind != CUDA_OP_MOE || op[0].n_row != 1 || op[0].back ||
        op[0].as.linear.part[0].w.type != CUDA_NVFP4_PACKED)
        return {};
    const struct cuda_router *r = &op[2].as.router;
    const size_t n = (size_t)r->n_expert * (size_t)r->K;
    if (r->w.type != CUDA_BF16 && r->w.type != CUDA_F32) /* no such launch takes others: moe_front.cuh */
        return {};
    return {{r->w.data, op[1].as.add_norm.weight},
            {n * (r->w.type == CUDA_F32 ? 4 : 2), (size_t)op[1].as.add_norm.n * sizeof(float)}};
}

int gpu_start_joined(struct cuda_gpu *g, const struct cuda_op *all, int i, int all_op)
{
    const struct op_place at = {
        &g->limits,  (uint8_t *)g->scratch,        g->scratch_bytes, g->barrier, g->stream, g->peers, g->lt,
        is_alone(g), ahead_of(all + i, all_op - i)};
    const struct cuda_op *op = all + i;
    const int n_op = all_op - i;
    if (attention_joined_takes(op, n_op) && attention_scratch(&op[1], &g->limits) <= g->scratch_bytes) {
        const char *why = attention_joined_start(op, &at);
        return !why || gpu_fail(g, "launch", why) ? 2 : -1;
    }
    if (op[0].kind == CUDA_OP_MOE)
        return start_chosen(g, all, i, &at);
    size_t bytes;
    if (at.ahead.bytes[0] > 0 && scratch_of(g, op, &bytes) && bytes <= g->scratch_bytes) {
        const char *why = linear_op_start(op, &at);
        return !why || gpu_fail(g, "launch", why) ? 1 : -1;
    }
    const int last = op[0].kind == CUDA_OP_ROUTER ? 1 : 2;
    if (n_op <= last || op[last].kind != CUDA_OP_MOE)
        return 0;
    const struct packed_moe w = moe_of(&op[last]);
    const int joined = moe_joined_takes(op, n_op, &w, at.limits);
    if (joined == 0)
        return 0;
    const char *why = moe_joined_start(op, &w, &at);
    return !why || gpu_fail(g, "launch", why) ? joined : -1;
}

bool gpu_start_one(struct cuda_gpu *g, const struct cuda_op *op)
{
    return gpu_start_on(g, op, &g->limits, g->stream);
}

bool gpu_run(struct cuda_gpu *g, const struct cuda_op *op, int n_op)
{
    return gpu_enter(g) && gpu_start_all(g, op, n_op);
}

/* The stream's next operators as a graph that can be replayed. */
bool gpu_record(struct cuda_gpu *g, const struct cuda_op *op, int n_op, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    if (!gpu_enter(g) ||
        !gpu_check(g, "graph", cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal)))
        return false;
    bool ok = gpu_start_all(g, op, n_op);
    const cudaError_t end = cudaStreamEndCapture(g->stream, &graph);
    if (!ok) /* what has been said then is the cause, and not what its end says */
        cudaGetLastError();
    else /* a lane's precedence is its kernels' */
        ok = gpu_check(g, "graph", end) &&
             gpu_check(g, "graph", cudaGraphInstantiate(out, graph, cudaGraphInstantiateFlagUseNodePriority));
    if (!graph)
        return false;
    cudaGraphDestroy(graph);
    return ok;
}

struct cuda_graph {
    cudaGraphExec_t exec;
};

struct cuda_graph *gpu_graph_make(struct cuda_gpu *g, const struct cuda_op *op, int n_op)
{
    struct cuda_graph *graph = new (std::nothrow) cuda_graph();
    if (!graph) {
        gpu_fail(g, "graph", "out of memory");
        return NULL;
    }
    if (gpu_record(g, op, n_op, &graph->exec))
        return graph;
    delete graph;
    return NULL;
}

bool gpu_graph_run(struct cuda_gpu *g, struct cuda_graph *graph)
{
    return gpu_enter(g) && gpu_check(g, "graph", cudaGraphLaunch(graph->exec, g->stream));
}

void gpu_graph_free(struct cuda_gpu *g, struct cuda_graph *graph)
{
    (void)g;
    if (graph)
        cudaGraphExecDestroy(graph->exec);
    delete graph;
}
