#include "model/layer.h"

#include "base/mem.h"

static const struct layer_weights *weights_of(const struct micro_batch *mb)
{
    return &mb->pass->weights->layer[mb->layer];
}

float *layer_rows(struct micro_batch *mb, int cols)
{
    return arena_alloc(&mb->room, (size_t)mb->n_tok * (size_t)cols, sizeof(float));
}

void layer_add_norm(struct micro_batch *mb, const float *weight, float *y)
{
    const struct pass *p = mb->pass;
    const struct norm_args args = {
        .x = mb->has_delta ? mb->delta : mb->residual,
        .weight = weight,
        .residual = mb->has_delta ? mb->residual : NULL,
        .y = y,
        .m = mb->n_tok,
        .n = p->config->hidden,
        .eps = p->config->norm_eps,
    };
    p->kernels->rmsnorm(p->pool, &args);
    mb->has_delta = false;
}

static void norm_to_input(struct micro_batch *mb, const float *weight)
{
    const struct pass *p = mb->pass;
    layer_add_norm(mb, weight, mb->norm);
    gemm_prepare(p->pool, &mb->room, p->compute, mb->norm, mb->n_tok, p->config->hidden, &mb->input);
}

/* ---- attention ----------------------------------------------------------------------------------- */

/* What came out of the layer before is complete only here, where its last delta is added. */
static void attention_norm(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    mb->norm = layer_rows(mb, p->config->hidden);
    norm_to_input(mb, weights_of(mb)->attention_norm);
    if (mb->layer > 0 && p->probe && p->probe->hidden)
        p->probe->hidden(p->probe->arg, mb->layer - 1, mb->residual, mb->n_tok, p->config->hidden);
}

static struct gemm_job job_of(const struct micro_batch *mb, const struct linear *l, const struct operand *x,
                              float *y)
{
    return (struct gemm_job){.w = &l->w, .x = x, .m = mb->n_tok, .y = y, .ldy = l->w.n, .bias = l->bias};
}

static void attention_qkv(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct layer_weights *w = weights_of(mb);
    mb->q = layer_rows(mb, w->q.w.n);
    mb->k = layer_rows(mb, w->k.w.n);
    mb->v = layer_rows(mb, w->v.w.n);
    const struct gemm_job jobs[] = {
        job_of(mb, &w->q, &mb->input, mb->q),
        job_of(mb, &w->k, &mb->input, mb->k),
        job_of(mb, &w->v, &mb->input, mb->v),
    };
    gemm_run(p->pool, &mb->scratch, p->compute, jobs, COUNT_OF(jobs));
}

static void attention_rotate(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct model_config *c = p->config;
    const struct layer_weights *w = weights_of(mb);
    const struct qkv_args args = {
        .q = mb->q,
        .k = mb->k,
        .v = mb->v,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .norm_eps = c->norm_eps,
        .cos = p->rope->cos,
        .sin = p->rope->sin,
        .style = c->rope.style,
        .rotary_dim = c->rope.rotary_dim,
        .n_head = c->n_head,
        .n_kv_head = c->n_kv_head,
        .head_dim = c->head_dim,
        .n_tok = mb->n_tok,
        .pos = p->batch->pos,
        .slot = p->batch->slot,
        .kv = &p->kv[mb->layer],
    };
    p->kernels->qkv(p->pool, &args);
}

static void attention_attend(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    mb->attended = layer_rows(mb, p->config->n_head * p->config->head_dim);
    const struct attention_args args = {
        .q = mb->q,
        .y = mb->attended,
        .kv = &p->kv[mb->layer],
        .batch = p->batch,
        .n_head = p->config->n_head,
        .scale = p->config->attention_scale,
    };
    p->kernels->attention(p->pool, &mb->scratch, &args);
}

static void attention_output(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct layer_weights *w = weights_of(mb);
    struct operand x;
    gemm_prepare(p->pool, &mb->scratch, p->compute, mb->attended, mb->n_tok, w->o.w.k, &x);
    const struct gemm_job job = job_of(mb, &w->o, &x, mb->delta);
    gemm_run(p->pool, &mb->scratch, p->compute, &job, 1);
    mb->has_delta = true;
}

static void mlp_norm(struct micro_batch *mb)
{
    norm_to_input(mb, weights_of(mb)->mlp_norm);
}

/* ---- the lists ----------------------------------------------------------------------------------- */

/* clang-format off */
#define COMPUTE(name, start) {name, LANE_COMPUTE, start, NULL}
#define ATTENTION_STAGES                           \
    COMPUTE("attention norm", attention_norm),     \
    COMPUTE("q, k, v", attention_qkv),             \
    COMPUTE("rotate, store", attention_rotate),    \
    COMPUTE("attend", attention_attend),           \
    COMPUTE("attention output", attention_output), \
    COMPUTE("mlp norm", mlp_norm)

static const struct stage dense_layer[] = {
    ATTENTION_STAGES,
    COMPUTE("mlp", mlp_dense),
    {0},
};

static const struct stage moe_layer[] = {
    ATTENTION_STAGES,
    COMPUTE("route", moe_route),
    COMPUTE("experts", moe_experts),
    {0},
};
/* clang-format on */

const struct stage *layer_stages(const struct model_config *c, int layer)
{
    return c->layer_is_moe[layer] ? moe_layer : dense_layer;
}
