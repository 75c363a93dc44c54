/* A step as operators. What changes from step to step is read from the batch in the GPU's memory, so a plan
 * is right for every batch of its shape. */
#include "base/mem.h"
#include "model/device_ep.h"

struct cuda_op *device_plan_add(struct device *d, int layer, enum cuda_op_kind kind, int n_row,
                                const int32_t *count)
{
    struct device_plan *p = &d->plan;
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 512;
        p->op = mem_grow(p->op, (size_t)p->cap, sizeof(*p->op));
        p->layer = mem_grow(p->layer, (size_t)p->cap, sizeof(*p->layer));
        p->half = mem_grow(p->half, (size_t)p->cap, sizeof(*p->half));
    }
    p->half[p->n] = -1;
    p->layer[p->n] = (int16_t)layer;
    p->op[p->n] = (struct cuda_op){.kind = (int32_t)kind, .n_row = n_row, .count = count};
    if (p->joins > 0)
        p->op[p->n].back = p->n - (p->joins - 1);
    p->joins = 0;
    return &p->op[p->n++];
}

void device_plan_clear(struct device *d)
{
    d->plan.n = d->plan.joins = 0;
}

void device_plan_norm(struct device *d, int layer, int n_row, const int32_t *count,
                      const struct cuda_add_norm *n, bool summed)
{
    if (summed || !device_has_parts(d) || d->no_fusion)
        device_plan_add(d, layer, CUDA_OP_ADD_NORM, n_row, count)->as.add_norm = *n;
    else
        device_plan_add(d, layer, CUDA_OP_ALL_REDUCE, n_row, count)->as.all_reduce =
            (struct cuda_all_reduce){.norm = *n, .way = d->sum_way};
}

/* From 17 to 64 rows one that is an MLP of its own was 2 % of a step faster as that (docs/SPEED.md). */
#define APART_FROM 17
#define APART_TO   64

bool device_joins_shared(const struct device_layer *l, int n_row)
{
    int n = l->experts.n_shared;
    return n > 1 || (n == 1 && (n_row < APART_FROM || n_row > APART_TO));
}

/* What the operators of one plan share. */
struct planning {
    struct device *d;
    struct device_part part;
    struct device_room room; /* its rows */
    int layer;
    int n_row; /* of the whole step */
    /* what this rank has left to be added to the stream: nothing where it has no part of the half layer */
    bool any;           /* a half layer has been planned                      */
    bool delta, shared; /* and has left something in room.delta, room.shared  */
};

static struct cuda_op *next(struct planning *p, enum cuda_op_kind kind)
{
    return device_plan_add(p->d, p->layer, kind, p->part.n_row, p->part.count);
}

static void plan_embed(struct planning *p)
{
    struct device *d = p->d;
    next(p, CUDA_OP_EMBED)->as.embed = (struct cuda_embed){.table = d->embed,
                                                           .tok = p->part.tok,
                                                           .residual = p->room.residual,
                                                           .vocab = d->config->vocab,
                                                           .hidden = d->config->hidden};
}

/* What the half layer before has left, where there is one. */
static void plan_norm(struct planning *p, const float *weight, bool unrounded)
{
    struct device *d = p->d;
    const struct device_room *r = &p->room;
    const struct cuda_add_norm n = {.residual = r->residual,
                                    .delta = {p->delta ? r->delta : NULL, p->shared ? r->shared : NULL},
                                    .weight = weight,
                                    .y = r->x,
                                    .y_float = unrounded ? r->x_float : NULL,
                                    .n = d->config->hidden,
                                    .eps = d->config->norm_eps};
    device_plan_norm(d, p->layer, p->part.n_row, p->part.count, &n, !p->any);
    p->any = p->delta = p->shared = false;
}

/* Several ranks without fusion: their parts are added up at once, and the norm is that of one. */
static void plan_sum(struct planning *p)
{
    struct device *d = p->d;
    const struct device_room *r = &p->room;
    p->any = true;
    if (!device_has_parts(d) || !d->no_fusion)
        return;
    next(p, CUDA_OP_ALL_REDUCE)->as.all_reduce = (struct cuda_all_reduce){
        .norm = {.delta = {p->delta ? r->delta : NULL, p->shared ? r->shared : NULL}, .n = d->config->hidden},
        .sum = r->delta,
        .way = d->sum_way};
    p->delta = true;
    p->shared = false;
}

/* What a product takes as its rows: bf16, or unrounded where they are there and it rounds them itself, or no
 * product rounds at all. */
struct plan_rows {
    const uint16_t *bf16;
    const float *unrounded; /* NULL: they are not there */
};

/* One more product of the same rows: in the operator before where that has room and the same type. */
static void plan_part(struct planning *p, bool join, const struct cuda_weight *w, int n_out, int K,
                      struct plan_rows x, const float *bias, float *out)
{
    struct device_plan *plan = &p->d->plan;
    struct cuda_linear *l = join ? &plan->op[plan->n - 1].as.linear : NULL;
    if (!l || l->part[0].w.type != w->type || l->n_part == CUDA_PARTS_MAX) {
        bool unrounded = x.unrounded && (w->type == CUDA_NVFP4_TILED || device_is_exact(p->d));
        l = &next(p, CUDA_OP_LINEAR)->as.linear;
        *l = (struct cuda_linear){
            .K = K, .x = unrounded ? NULL : x.bf16, .x_float = unrounded ? x.unrounded : NULL};
    }
    l->part[l->n_part++] = (struct cuda_linear_part){.w = *w, .bias = bias, .out = out, .n_out = n_out};
}

/* Images of n times CUDA_IMAGE_KEYS keys, or none if they take too much memory. */
static int images_of(const struct device *d, int n)
{
    const struct model_config *c = d->config;
    size_t bytes = cuda_kv_block_bytes(CUDA_KV_BF16, c->shard.kv_head.count, c->head_dim) / CUDA_KV_BLOCK *
                   2 * CUDA_IMAGE_KEYS;
    return bytes > 0 && (size_t)n <= DEVICE_IMAGE_BYTES / bytes ? n : 0;
}

static void plan_attention(struct planning *p, const struct device_layer *l)
{
    struct device *d = p->d;
    const struct model_config *c = d->config;
    const struct device_room *r = &p->room;
    int q = c->shard.head.count * c->head_dim, kv = c->shard.kv_head.count * c->head_dim;
    p->delta = q > 0;
    if (!p->delta)
        return;
    bool exact = device_is_exact(d), quantizes = device_quantizes(d);
    struct plan_rows x = {r->x, quantizes ? r->x_float : NULL},
                     y = {r->attended, exact ? r->attended_float : NULL};
    plan_part(p, false, &l->q, q, c->hidden, x, l->q_bias, r->q);
    plan_part(p, true, &l->k, kv, c->hidden, x, l->k_bias, r->k);
    plan_part(p, true, &l->v, kv, c->hidden, x, l->v_bias, r->v);
    next(p, CUDA_OP_QKV)->as.qkv = (struct cuda_qkv){.q = r->q,
                                                     .k = r->k,
                                                     .v = r->v,
                                                     .q_norm = l->q_norm,
                                                     .k_norm = l->k_norm,
                                                     .cos = d->cos,
                                                     .sin = d->sin,
                                                     .pos = p->part.pos,
                                                     .slot = p->part.slot,
                                                     .q_out = r->q_out,
                                                     .kv = d->kv[p->layer],
                                                     .n_head = c->shard.head.count,
                                                     .rotary_dim = c->rope.rotary_dim,
                                                     .interleaved = c->rope.style == ROPE_INTERLEAVED,
                                                     .eps = c->norm_eps,
                                                     .q_float = exact ? r->q : NULL};
    next(p, CUDA_OP_ATTENTION)->as.attention =
        (struct cuda_attention){.q = r->q_out,
                                .y = r->attended,
                                .kv = d->kv[p->layer],
                                .pos = p->part.pos,
                                .block_table = p->part.table,
                                .stride = p->part.stride,
                                .single = p->part.single,
                                .tile = p->part.tile,
                                .single_count = p->part.single_count,
                                .tile_count = p->part.tile_count,
                                .n_single = p->part.n_single,
                                .n_tile = p->part.n_tile,
                                .n_image = images_of(d, p->part.n_image),
                                .n_split = p->part.n_split,
                                .n_head = c->shard.head.count,
                                .scale = c->attention_scale,
                                .q_float = exact ? r->q : NULL,
                                .y_float = exact ? r->attended_float : NULL};
    plan_part(p, false, &l->o, c->hidden, q, y, l->adds_o_bias ? l->o_bias : NULL, r->delta);
}

/* n_used: experts of a row; of them and of all the last n_shared, which every row takes. */
static void plan_packed_mlp(struct planning *p, const struct device_mlp *m, const int32_t *id,
                            const float *weight, int n_used, int n_shared, float *out)
{
    next(p, CUDA_OP_MOE)->as.moe = (struct cuda_moe){.gate_up = m->gate_up,
                                                     .down = m->packed_down,
                                                     .gate_scale = m->gate.scale,
                                                     .up_scale = m->up.scale,
                                                     .down_scale = m->down.scale,
                                                     .x = p->room.x,
                                                     .id = id,
                                                     .weight = weight,
                                                     .out = out,
                                                     .n_used = n_used,
                                                     .n_expert = m->n_expert - m->n_shared + n_shared,
                                                     .hidden = p->d->config->hidden,
                                                     .inner = m->inner,
                                                     .n_shared = n_shared};
}

/* False: nothing of it is this rank's. */
static bool plan_dense(struct planning *p, const struct device_mlp *m, float *out)
{
    const struct device_room *r = &p->room;
    int hidden = p->d->config->hidden;
    if (m->inner == 0)
        return false;
    if (m->way == MLP_PACKED) {
        plan_packed_mlp(p, m, r->only, r->ones, 1, 0, out);
        return true;
    }
    bool unrounded =
        m->down.type == CUDA_NVFP4_TILED || device_is_exact(p->d); /* then h takes gate's place */
    struct plan_rows x = {r->x, device_quantizes(p->d) ? r->x_float : NULL},
                     h = {r->h, unrounded ? r->gate : NULL};
    plan_part(p, false, &m->gate, m->inner, hidden, x, m->gate_bias, r->gate);
    plan_part(p, true, &m->up, m->inner, hidden, x, m->up_bias, r->up);
    next(p, CUDA_OP_SWIGLU)->as.swiglu = (struct cuda_swiglu){
        .gate = r->gate, .up = r->up, .h = r->h, .n = m->inner, .h_float = unrounded ? r->gate : NULL};
    plan_part(p, false, &m->down, hidden, m->inner, h, m->adds_bias ? m->down_bias : NULL, out);
    return true;
}

static void plan_router(struct planning *p, const struct device_layer *l, int n_shared)
{
    struct device *d = p->d;
    const struct moe_config *m = &d->config->moe;
    const struct device_room *r = &p->room;
    next(p, CUDA_OP_ROUTER)->as.router =
        (struct cuda_router){.w = l->router,
                             .x = r->x_float,
                             .K = d->config->hidden,
                             .logits = r->router_logits,
                             .bias = l->correction_bias,
                             .sigmoid = m->score == ROUTER_SIGMOID,
                             .normalize = m->normalize,
                             .softmax_topk = m->softmax_topk,
                             .norm_add = m->norm_add,
                             .n_expert = m->n_expert,
                             .top_k = m->top_k,
                             .n_group = m->n_group,
                             .top_group = m->top_group,
                             .norm_min = m->norm_min,
                             .scaling = m->scaling,
                             .expert = r->expert,
                             .weight = r->expert_weight,
                             .load = d->ep ? NULL : d->load + (size_t)p->layer * (size_t)m->n_expert,
                             .n_shared = n_shared};
}

static void plan_plain_experts(struct planning *p, const struct device_mlp *m)
{
    const struct device_room *r = &p->room;
    next(p, CUDA_OP_MOE_PLAIN)->as.moe_plain =
        (struct cuda_moe_plain){.gate = m->gate,
                                .up = m->up,
                                .down = m->down,
                                .gate_bias = m->gate_bias,
                                .up_bias = m->up_bias,
                                .down_bias = m->adds_bias ? m->down_bias : NULL,
                                .x = r->x,
                                .id = r->expert,
                                .weight = r->expert_weight,
                                .out = r->delta,
                                .n_used = p->d->config->moe.top_k,
                                .n_expert = m->n_expert,
                                .hidden = p->d->config->hidden,
                                .inner = m->inner};
}

static void plan_w4a4_experts(struct planning *p, const struct device_mlp *m)
{
    const struct device_room *r = &p->room;
    next(p, CUDA_OP_MOE_W4A4)->as.moe_w4a4 = (struct cuda_moe_w4a4){.gate = m->gate,
                                                                    .up = m->up,
                                                                    .down = m->down,
                                                                    .x = r->x_float,
                                                                    .id = r->expert,
                                                                    .weight = r->expert_weight,
                                                                    .out = r->delta,
                                                                    .n_used = p->d->config->moe.top_k,
                                                                    .n_expert = m->n_expert,
                                                                    .hidden = p->d->config->hidden,
                                                                    .inner = m->inner};
}

/* Every rank routes all rows: the same numbers, and so the same choice. Or only its own, whose experts may be
 * anywhere. */
static void plan_experts(struct planning *p, const struct device_layer *l)
{
    const struct device_room *r = &p->room;
    bool joins = device_joins_shared(l, p->n_row);
    int n_shared = joins ? l->experts.n_shared : 0;
    plan_router(p, l, n_shared);
    if (p->d->ep)
        device_ep_plan_dispatch(p->d, &p->part, p->layer);
    p->delta = l->experts.inner > 0;
    if (!p->delta)
        ;
    else if (l->experts.way == MLP_PACKED)
        plan_packed_mlp(p, &l->experts, r->expert, r->expert_weight, p->d->config->moe.top_k + n_shared,
                        n_shared, r->delta);
    else if (l->experts.way == MLP_W4A4)
        plan_w4a4_experts(p, &l->experts);
    else
        plan_plain_experts(p, &l->experts);
    if (p->d->ep)
        device_ep_plan_combine(p->d, &p->part, p->layer);
    p->shared = !joins && plan_dense(p, &l->mlp, r->shared);
}

void device_plan_part(struct device *d, const struct device_shape *s, int half)
{
    struct planning p = {.d = d, .part = device_part_of(s, d->input, half), .layer = -1, .n_row = s->n_row};
    p.room = device_room_from(d, p.part.first);
    plan_embed(&p);
    for (p.layer = 0; p.layer < d->config->n_layer; p.layer++) {
        const struct device_layer *l = &d->layer[p.layer];
        plan_norm(&p, l->attention_norm, device_quantizes(d));
        plan_attention(&p, l);
        plan_sum(&p);
        plan_norm(&p, l->mlp_norm, l->is_moe || device_quantizes(d));
        if (l->is_moe)
            plan_experts(&p, l);
        else
            p.delta = plan_dense(&p, &l->mlp, p.room.delta);
        plan_sum(&p);
    }
}

void device_plan_layers(struct device *d, const struct device_shape *s)
{
    if (s->cut > 0)
        device_plan_halves(d, s);
    else
        device_plan_part(d, s, -1);
}
