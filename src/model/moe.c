/* The sparse half of a layer: every token goes through its top_k experts, and each expert's weights are read
 * once for all the tokens of a chunk that chose it. */
#include <stdlib.h>

#include "model/layer.h"

/* Of intermediate rows: long prompts go through the experts in pieces of this. Smaller pieces give an expert
 * so few rows that decoding its weights shows: 2048 tokens of most models should be one. */
#define CHUNK_BYTES (400u << 20)
/* So many rows are routed where they lie: a copy, whose rows do not meet in one cache set, costs another run
 * of the pool. */
#define IN_PLACE 64

static const struct layer_weights *weights_of(const struct micro_batch *mb)
{
    return &mb->pass->weights->layer[mb->layer];
}

/* ---- routing ------------------------------------------------------------------------------------- */

/* Choices hang on small differences, so router logits are fp32 whatever the compute mode. */
static const float *router_logits(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct weight *router = &weights_of(mb)->router;
    struct operand x;
    float *logits = arena_alloc(&mb->scratch, (size_t)mb->n_tok * (size_t)router->n, sizeof(float));
    if (mb->n_tok > IN_PLACE || !gemm_operand_floats(mb->norm, mb->n_tok, router->k, &x))
        gemm_prepare(p->pool, &mb->scratch, COMPUTE_STRICT, mb->norm, mb->n_tok, router->k, &x);
    const struct gemm_job job = {.w = router, .x = &x, .m = mb->n_tok, .y = logits, .ldy = router->n};
    gemm_run(p->pool, &mb->scratch, COMPUTE_STRICT, &job, 1);
    return logits;
}

/* Readers look on from other threads, and one thread writes: a load and a store, without a locked add. */
static void count_load(const struct micro_batch *mb)
{
    const struct moe_config *m = &mb->pass->config->moe;
    if (!mb->pass->expert_load)
        return;
    atomic_ullong *load = mb->pass->expert_load + (size_t)mb->layer * (size_t)m->n_expert;
    for (size_t i = 0, n = (size_t)mb->n_tok * (size_t)m->top_k; i < n; i++) {
        atomic_ullong *at = &load[mb->expert[i]];
        atomic_store_explicit(at, atomic_load_explicit(at, memory_order_relaxed) + 1, memory_order_relaxed);
    }
}

void moe_route(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct moe_config *m = &p->config->moe;
    size_t n = (size_t)mb->n_tok * (size_t)m->top_k;
    mb->expert = arena_alloc(&mb->room, n, sizeof(*mb->expert));
    mb->weight = arena_alloc(&mb->room, n, sizeof(*mb->weight));
    const struct router_args args = {
        .logits = router_logits(mb),
        .bias = weights_of(mb)->correction_bias,
        .score = m->score,
        .m = mb->n_tok,
        .n_expert = m->n_expert,
        .top_k = m->top_k,
        .n_group = m->n_group,
        .top_group = m->top_group,
        .normalize = m->normalize,
        .softmax_topk = m->softmax_topk,
        .norm_min = m->norm_min,
        .norm_add = m->norm_add,
        .scaling = m->scaling,
        .expert = mb->expert,
        .weight = mb->weight,
    };
    p->kernels->router(p->pool, &args);
    count_load(mb);
    if (p->probe && p->probe->routing)
        p->probe->routing(p->probe->arg, mb->layer, mb->expert, mb->weight, mb->n_tok, m->top_k);
}

/* ---- sorting ------------------------------------------------------------------------------------- */

struct moe_sorted moe_sort(struct arena *scratch, int n_expert, size_t n, const int32_t *expert,
                           const int32_t *token)
{
    struct moe_sorted s = {.first = arena_calloc(scratch, (size_t)n_expert + 1, sizeof(int32_t)),
                           .token = arena_alloc(scratch, n, sizeof(int32_t)),
                           .row_of = arena_alloc(scratch, n, sizeof(int32_t))};
    int32_t *next = arena_alloc(scratch, (size_t)n_expert, sizeof(int32_t));
    for (size_t i = 0; i < n; i++)
        s.first[expert[i] + 1]++;
    for (int e = 0; e < n_expert; e++) {
        s.first[e + 1] += s.first[e];
        next[e] = s.first[e];
    }
    for (size_t i = 0; i < n; i++) {
        s.row_of[i] = next[expert[i]]++;
        s.token[s.row_of[i]] = token[i];
    }
    return s;
}

/* The pairs of tokens [begin, begin + n_tok). */
static struct moe_sorted sort_pairs(struct micro_batch *mb, int begin, int n_tok)
{
    const struct moe_config *m = &mb->pass->config->moe;
    size_t top_k = (size_t)m->top_k, n = (size_t)n_tok * top_k;
    int32_t *token = arena_alloc(&mb->scratch, n, sizeof(*token));
    for (size_t i = 0; i < n; i++)
        token[i] = begin + (int32_t)(i / top_k);
    return moe_sort(&mb->scratch, m->n_expert, n, mb->expert + (size_t)begin * top_k, token);
}

/* Most rows first, so that the longest product is not the last to start. Experts are in ascending order in
 * memory, which settles ties. */
static int by_load(const void *a, const void *b)
{
    const struct mlp_call *x = a, *y = b;
    if (x->m != y->m)
        return x->m > y->m ? -1 : 1;
    return (x->mlp > y->mlp) - (x->mlp < y->mlp);
}

int moe_calls(const struct micro_batch *mb, const struct moe_sorted *s, float *part, struct mlp_call *call)
{
    int n = 0;
    for (int e = 0; e < mb->pass->config->moe.n_expert; e++) {
        int first = s->first[e], m = s->first[e + 1] - first;
        if (m > 0)
            call[n++] = (struct mlp_call){.mlp = &weights_of(mb)->expert[e],
                                          .row = s->token + first,
                                          .first = first,
                                          .m = m,
                                          .y = part + (size_t)first * (size_t)mb->pass->config->hidden};
    }
    qsort(call, (size_t)n, sizeof(*call), by_load);
    return n;
}

/* ---- experts ------------------------------------------------------------------------------------- */

/* Each expert's part of a token has a row of its own, and combine adds them in the order of choice: the sum
 * does not depend on who was done first. */
static void run_chunk(struct micro_batch *mb, int begin, int n_tok)
{
    const struct pass *p = mb->pass;
    const struct moe_config *m = &p->config->moe;
    struct arena *scratch = &mb->scratch;
    size_t hidden = (size_t)p->config->hidden, n_pair = (size_t)n_tok * (size_t)m->top_k;
    struct moe_sorted s = sort_pairs(mb, begin, n_tok);
    float *part = arena_alloc(scratch, n_pair * hidden, sizeof(float)), *shared = NULL;
    struct mlp_call *call = arena_alloc(scratch, (size_t)m->n_expert, sizeof(*call)), shared_call;
    struct mlp_group group[2] = {{.x = &mb->input,
                                  .call = call,
                                  .intermediate = weights_of(mb)->expert[0].gate.w.n,
                                  .m = (int)n_pair}};
    group[0].n_call = moe_calls(mb, &s, part, call);
    if (m->shared_intermediate) {
        int32_t *row = arena_alloc(scratch, (size_t)n_tok, sizeof(*row));
        for (int i = 0; i < n_tok; i++)
            row[i] = begin + i;
        shared = arena_alloc(scratch, (size_t)n_tok * hidden, sizeof(float));
        shared_call = (struct mlp_call){.mlp = &weights_of(mb)->mlp, .row = row, .m = n_tok, .y = shared};
        group[1] = (struct mlp_group){.x = &mb->input,
                                      .call = &shared_call,
                                      .n_call = 1,
                                      .intermediate = weights_of(mb)->mlp.gate.w.n,
                                      .m = n_tok};
    }
    mlp_run(mb, group, shared ? 2 : 1);
    const struct combine_args combine = {
        .part = part,
        .slot_row = s.row_of,
        .weight = mb->weight + (size_t)begin * (size_t)m->top_k,
        .shared = shared,
        .y = mb->delta + (size_t)begin * hidden,
        .m = n_tok,
        .n = p->config->hidden,
        .top_k = m->top_k,
    };
    p->kernels->combine(p->pool, &combine);
    arena_reset(scratch);
}

/* Tokens whose pairs' gate, up and down rows fit CHUNK_BYTES. */
static int chunk_tokens(const struct model_config *c)
{
    size_t row = ((size_t)c->hidden + 3 * (size_t)c->moe.intermediate) * sizeof(float);
    size_t token = row * (size_t)c->moe.top_k + 3 * (size_t)c->moe.shared_intermediate * sizeof(float);
    size_t n = CHUNK_BYTES / token;
    return n < 1 ? 1 : n > 1 << 20 ? 1 << 20 : (int)n;
}

void moe_experts(struct micro_batch *mb)
{
    int most = chunk_tokens(mb->pass->config), n_chunk = (mb->n_tok + most - 1) / most;
    for (int i = 0, begin = 0; i < n_chunk; i++) { /* of equal length, give or take one */
        int n = (mb->n_tok - begin + n_chunk - i - 1) / (n_chunk - i);
        run_chunk(mb, begin, n);
        begin += n;
    }
    mb->has_delta = true;
}
