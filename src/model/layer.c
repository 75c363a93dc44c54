#include "model/layer.h"

#include <string.h>

#include "base/mem.h"
#include "kernels/attention.h"
#include "model/ep.h"

static const struct layer_weights *weights_of(const struct micro_batch *mb)
{
    return &mb->pass->weights->layer[mb->layer];
}

float *layer_rows(struct micro_batch *mb, int cols)
{
    return arena_alloc(&mb->room, (size_t)mb->n_tok * (size_t)cols, sizeof(float));
}

void layer_add_norm_start(struct micro_batch *mb, const float *weight, float *y)
{
    const struct pass *p = mb->pass;
    mb->add_norm = (struct comm_add_norm){
        .kernels = p->kernels,
        .pool = p->pool,
        .x = mb->delta,
        .residual = mb->residual,
        .weight = weight,
        .y = y,
        .m = mb->n_tok,
        .n = p->config->hidden,
        .eps = p->config->norm_eps,
    };
    if (mb->has_delta)
        comm_add_norm_start(p->sums, mb->channel, &mb->add_norm);
}

void layer_add_norm_middle(struct micro_batch *mb)
{
    if (mb->has_delta)
        mb->lost |= !comm_add_norm_middle(mb->pass->sums, mb->channel, &mb->add_norm);
}

void layer_add_norm_done(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct comm_add_norm *a = &mb->add_norm;
    if (mb->has_delta) {
        mb->lost |= !comm_add_norm_wait(p->sums, mb->channel, &mb->add_norm);
        mb->has_delta = false;
        return;
    }
    const struct norm_args args = {
        .x = a->residual, .weight = a->weight, .y = a->y, .use = a->use, .m = a->m, .n = a->n, .eps = a->eps};
    p->kernels->rmsnorm(p->pool, &args);
}

/* Whether this rank has no part in the half layer: then its partial sums are zeros. */
static bool nothing_to_add(struct micro_batch *mb, int features)
{
    if (features > 0)
        return false;
    memset(mb->delta, 0, (size_t)mb->n_tok * (size_t)mb->pass->config->hidden * sizeof(float));
    mb->has_delta = true;
    return true;
}

static void input_row(void *own, int row, const float *y)
{
    const struct micro_batch *mb = own;
    gemm_prepare_row(&mb->input, row, y);
}

/* Whoever normalizes a row makes the products' input of it. */
static void norm_to_input(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct norm_use use = {input_row, mb};
    gemm_prepare_open(&mb->room, p->compute, mb->n_tok, p->config->hidden, &mb->input);
    mb->add_norm.use = &use;
    layer_add_norm_done(mb);
    mb->add_norm.use = NULL;
}

/* ---- attention ----------------------------------------------------------------------------------- */

static void attention_norm(struct micro_batch *mb)
{
    mb->norm = layer_rows(mb, mb->pass->config->hidden);
    layer_add_norm_start(mb, weights_of(mb)->attention_norm, mb->norm);
}

/* What came out of the layer before is complete only here, where its last delta is added. */
static void attention_norm_done(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    norm_to_input(mb);
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
    if (w->q.w.n == 0) /* no head is this rank's */
        return;
    const struct gemm_job jobs[] = {
        job_of(mb, &w->q, &mb->input, mb->q),
        job_of(mb, &w->k, &mb->input, mb->k),
        job_of(mb, &w->v, &mb->input, mb->v),
    };
    gemm_run(p->pool, &mb->scratch, p->compute, jobs, COUNT_OF(jobs));
}

/* Without the place of its result. */
static struct attention_args attention_of(const struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    return (struct attention_args){
        .q = mb->q,
        .kv = &p->kv[mb->layer],
        .batch = p->batch,
        .n_head = p->config->shard.head.count,
        .scale = p->config->attention_scale,
        .round_q = p->compute == COMPUTE_INT8,
    };
}

static void attention_rotate(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct model_config *c = p->config;
    const struct layer_weights *w = weights_of(mb);
    mb->qkv = (struct qkv_args){
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
        .n_head = c->shard.head.count,
        .n_kv_head = c->shard.kv_head.count,
        .head_dim = c->head_dim,
        .n_tok = mb->n_tok,
        .pos = p->batch->pos,
        .slot = p->batch->slot,
        .kv = &p->kv[mb->layer],
    };
    mb->rotate_later = false;
    if (mb->qkv.n_head == 0) /* no head is this rank's */
        return;
    const struct attention_args attention = attention_of(mb);
    mb->rotate_later = attention_may_rotate(p->pool, &attention);
    if (!mb->rotate_later)
        p->kernels->qkv(p->pool, &mb->qkv);
}

static void attention_attend(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    mb->attended = layer_rows(mb, p->config->shard.head.count * p->config->head_dim);
    struct attention_args args = attention_of(mb);
    args.y = mb->attended;
    args.qkv = mb->rotate_later ? &mb->qkv : NULL;
    args.rotate = p->kernels->qkv_head;
    if (args.n_head > 0)
        p->kernels->attention(p->pool, &mb->scratch, &args);
}

static void attention_output(struct micro_batch *mb)
{
    const struct pass *p = mb->pass;
    const struct layer_weights *w = weights_of(mb);
    struct operand x;
    if (nothing_to_add(mb, w->o.w.k))
        return;
    gemm_prepare(p->pool, &mb->scratch, p->compute, mb->attended, mb->n_tok, w->o.w.k, &x);
    struct gemm_job job = job_of(mb, &w->o, &x, mb->delta);
    if (!w->o.adds_bias)
        job.bias = NULL;
    gemm_run(p->pool, &mb->scratch, p->compute, &job, 1);
    mb->has_delta = true;
}

static void mlp_norm(struct micro_batch *mb)
{
    layer_add_norm_start(mb, weights_of(mb)->mlp_norm, mb->norm);
}

static void mlp_norm_done(struct micro_batch *mb)
{
    norm_to_input(mb);
}

/* Where sums stay on the rank (ep.h) a norm is arithmetic like any other. */
static void attention_norm_here(struct micro_batch *mb)
{
    attention_norm(mb);
    attention_norm_done(mb);
}

static void mlp_norm_here(struct micro_batch *mb)
{
    mlp_norm(mb);
    mlp_norm_done(mb);
}

/* What a stage waits for was begun by the one before. */
static void nothing(struct micro_batch *mb)
{
    (void)mb;
}

/* ---- the lists ----------------------------------------------------------------------------------- */

/* clang-format off */
#define COMPUTE(name, start) {name, LANE_COMPUTE, start, NULL, false}
#define COMM(name, start, done) {name, LANE_COMM, start, done, false}
#define ALL_COMPUTE(name, start) {name, LANE_COMPUTE, start, NULL, true}
#define ALL_COMM(name, start, done) {name, LANE_COMM, start, done, true}
#define ATTENTION_STAGES                           \
    COMM("attention sum", attention_norm, layer_add_norm_middle), \
    COMM("attention norm", nothing, attention_norm_done), \
    COMPUTE("q, k, v", attention_qkv),             \
    COMPUTE("rotate, store", attention_rotate),    \
    COMPUTE("attend", attention_attend),           \
    COMPUTE("attention output", attention_output), \
    COMM("mlp sum", mlp_norm, layer_add_norm_middle), \
    COMM("mlp norm", nothing, mlp_norm_done)

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

/* Whose sums stay on the rank: only what ranks without rows take part in is communication. */
#define LOCAL_ATTENTION_STAGES                     \
    COMPUTE("attention norm", attention_norm_here), \
    COMPUTE("q, k, v", attention_qkv),             \
    COMPUTE("rotate, store", attention_rotate),    \
    COMPUTE("attend", attention_attend),           \
    COMPUTE("attention output", attention_output), \
    COMPUTE("mlp norm", mlp_norm_here)

static const struct stage local_dense_layer[] = {
    LOCAL_ATTENTION_STAGES,
    COMPUTE("mlp", mlp_dense),
    {0},
};

static const struct stage ep_layer[] = {
    LOCAL_ATTENTION_STAGES,
    COMPUTE("route", moe_route),
    ALL_COMPUTE("send", ep_send),
    COMPUTE("shared experts", ep_shared),
    ALL_COMM("dispatch", nothing, ep_receive),
    ALL_COMPUTE("experts", ep_experts_run),
    ALL_COMM("combine", ep_reply, ep_combine),
    {0},
};
/* clang-format on */

const struct stage *layer_stages(const struct model_config *c, int layer)
{
    if (c->shard.ep_size > 1)
        return c->layer_is_moe[layer] ? ep_layer : local_dense_layer;
    return c->layer_is_moe[layer] ? moe_layer : dense_layer;
}
