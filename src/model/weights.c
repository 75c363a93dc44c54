#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/arch.h"
#include "model/ep.h"

#define NAME_MAX_BYTES 256

struct declare {
    struct weights *w;
    const struct model_config *c;
    const struct arch_names *names;
    int layer;
    char name[NAME_MAX_BYTES]; /* of the slot being declared */
};

/* Append `from` to dst, its star replaced by `number`. */
static void append(char *dst, const char *from, int number)
{
    size_t n = strlen(dst), room = NAME_MAX_BYTES - n;
    const char *star = strchr(from, '*');
    int wrote = star ? snprintf(dst + n, room, "%.*s%d%s", (int)(star - from), from, number, star + 1)
                     : snprintf(dst + n, room, "%s", from);
    ASSERT(wrote >= 0 && (size_t)wrote < room);
}

/* The name of something in the layer being declared; `suffix` may be "". */
static const char *in_layer(struct declare *d, const char *name, int expert, const char *suffix)
{
    ASSERT(name);
    d->name[0] = 0;
    append(d->name, d->names->layer, d->layer);
    append(d->name, name, expert);
    append(d->name, suffix, 0);
    return d->name;
}

static void add_vector(struct declare *d, float **to, int n, float dummy, const char *name)
{
    slots_add_vector(&d->w->slots, to, n, dummy, in_layer(d, name, 0, ""));
}

/* A linear layer of which this rank computes some outputs. */
static void add_some_rows(struct declare *d, struct linear *to, int n, int k, struct shard_range rows,
                          bool bias, const char *name, int expert)
{
    struct slots *s = &d->w->slots;
    slots_add_matrix(s, &to->w, n, k, in_layer(d, name, expert, ""));
    slots_cut(s, rows.begin, rows.count, 0, k);
    if (!bias)
        return;
    slots_add_vector(s, &to->bias, n, 0, in_layer(d, name, expert, ".bias"));
    slots_cut(s, rows.begin, rows.count, 0, 1);
}

/* A linear layer of which this rank has some inputs: its outputs are parts of sums. */
static void add_some_columns(struct declare *d, struct linear *to, int n, int k, struct shard_range columns,
                             bool bias, const char *name, int expert)
{
    struct slots *s = &d->w->slots;
    slots_add_matrix(s, &to->w, n, k, in_layer(d, name, expert, ""));
    slots_cut(s, 0, n, columns.begin, columns.count);
    to->adds_bias = bias && columns.begin == 0 && columns.count > 0;
    if (bias)
        slots_add_vector(s, &to->bias, n, 0, in_layer(d, name, expert, ".bias"));
}

static void add_mlp(struct declare *d, struct mlp *to, int intermediate, const char *gate, const char *up,
                    const char *down, int expert)
{
    int hidden = d->c->hidden;
    bool bias = d->c->mlp_bias;
    struct shard_range some = shard_features(&d->c->shard, intermediate);
    add_some_rows(d, &to->gate, intermediate, hidden, some, bias, gate, expert);
    add_some_rows(d, &to->up, intermediate, hidden, some, bias, up, expert);
    add_some_columns(d, &to->down, hidden, intermediate, some, bias, down, expert);
}

static struct shard_range times(struct shard_range heads, int head_dim)
{
    return (struct shard_range){heads.begin * head_dim, heads.count * head_dim};
}

static void add_attention(struct declare *d, struct layer_weights *l)
{
    const struct model_config *c = d->c;
    const struct arch_names *n = d->names;
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
    add_vector(d, &l->attention_norm, c->hidden, 1, n->attention_norm);
    add_vector(d, &l->mlp_norm, c->hidden, 1, n->mlp_norm);
    struct shard_range some_q = times(c->shard.head, c->head_dim),
                       some_kv = times(c->shard.kv_head, c->head_dim);
    add_some_rows(d, &l->q, q, c->hidden, some_q, c->qkv_bias, n->q, 0);
    add_some_rows(d, &l->k, kv, c->hidden, some_kv, c->qkv_bias, n->k, 0);
    add_some_rows(d, &l->v, kv, c->hidden, some_kv, c->qkv_bias, n->v, 0);
    add_some_columns(d, &l->o, c->hidden, q, some_q, c->o_bias, n->o, 0);
    if (c->qk_norm) {
        add_vector(d, &l->q_norm, c->head_dim, 1, n->q_norm);
        add_vector(d, &l->k_norm, c->head_dim, 1, n->k_norm);
    }
}

static void add_expert(struct declare *d, struct mlp *to, int expert)
{
    const struct arch_names *n = d->names;
    add_mlp(d, to, d->c->moe.intermediate, n->expert_gate, n->expert_up, n->expert_down, expert);
}

/* The names of all experts' parameters, in the order in which they are declared: an expert may come here
 * later. */
static void name_experts(struct declare *d, struct layer_weights *l)
{
    struct slots *s = &d->w->slots;
    int n_expert = d->c->moe.n_expert, first = s->n;
    struct mlp none = {0};
    for (int e = 0; e < n_expert; e++) {
        add_expert(d, &none, e);
        l->expert_parts = s->n - first;
        if (!l->expert_name)
            l->expert_name = mem_alloc((size_t)n_expert * (size_t)l->expert_parts, sizeof(*l->expert_name));
        for (int i = 0; i < l->expert_parts; i++)
            l->expert_name[e * l->expert_parts + i] = s->slot[first + i].name;
        s->n = first; /* the names stay */
    }
}

static void add_experts(struct declare *d, struct layer_weights *l)
{
    const struct moe_config *m = &d->c->moe;
    const struct arch_names *n = d->names;
    slots_add_matrix(&d->w->slots, &l->router, m->n_expert, d->c->hidden, in_layer(d, n->router, 0, ""));
    if (m->has_correction_bias)
        add_vector(d, &l->correction_bias, m->n_expert, 0, n->correction_bias);
    l->expert = mem_alloc((size_t)m->n_expert, sizeof(*l->expert));
    if (d->c->shard.ep_size > 1)
        name_experts(d, l);
    struct shard_range own = ep_own_slots(&d->c->shard, m->n_expert);
    l->expert_slot = d->w->slots.n;
    for (int i = 0; i < own.count; i++)
        add_expert(d, &l->expert[i], (own.begin + i) % m->n_expert); /* as placement_init has it */
    if (m->shared_intermediate)
        add_mlp(d, &l->mlp, m->shared_intermediate, n->shared_gate, n->shared_up, n->shared_down, 0);
}

bool weights_own_head(const struct model_config *c, const struct ckpt *ckpt)
{
    static const char *const suffix[] = {".weight", ".weight_packed"};
    for (size_t i = 0; ckpt && i < COUNT_OF(suffix); i++) {
        char name[NAME_MAX_BYTES] = "";
        append(name, c->arch->names.head, 0);
        append(name, suffix[i], 0);
        if (ckpt_find(ckpt, name))
            return true;
    }
    return false;
}

void weights_declare(struct weights *w, const struct model_config *c, bool own_head)
{
    const struct arch_names *n = &c->arch->names;
    struct declare d = {.w = w, .c = c, .names = n};
    *w = (struct weights){.head_is_embed = c->tied_head && !own_head, .n_layer = c->n_layer};
    slots_init(&w->slots);
    w->layer = mem_alloc((size_t)c->n_layer, sizeof(*w->layer));
    slots_add_matrix(&w->slots, &w->embed, c->vocab, c->hidden, n->embed);
    for (d.layer = 0; d.layer < c->n_layer; d.layer++) {
        struct layer_weights *l = &w->layer[d.layer];
        l->k_scale = l->v_scale = 1;
        add_attention(&d, l);
        if (c->layer_is_moe[d.layer])
            add_experts(&d, l);
        else
            add_mlp(&d, &l->mlp, c->intermediate, n->gate, n->up, n->down, 0);
    }
    slots_add_vector(&w->slots, &w->final_norm, c->hidden, 1, n->final_norm);
    if (!w->head_is_embed) {
        struct shard_range columns = shard_units(&c->shard, c->vocab); /* of the logits */
        slots_add_matrix(&w->slots, &w->head, c->vocab, c->hidden, n->head);
        slots_cut(&w->slots, columns.begin, columns.count, 0, c->hidden);
    }
}

/* A tied head is some of the embedding's rows; panels lie one after the other. */
void weights_link(struct weights *w, const struct model_config *c)
{
    if (!w->head_is_embed)
        return;
    struct shard_range rows = shard_units(&c->shard, c->vocab);
    w->head = w->embed;
    w->head.n = rows.count;
    w->head.data += weight_data_bytes(w->embed.type, rows.begin, w->embed.k);
}

void weights_free(struct weights *w)
{
    for (int i = 0; w->layer && i < w->n_layer; i++) {
        free(w->layer[i].expert);
        free(w->layer[i].expert_name);
    }
    free(w->layer);
    slots_free(&w->slots);
    *w = (struct weights){0};
}

/* ---- scales of the KV cache ---------------------------------------------------------------------- */

struct kv_wanted {
    bool (*fn)(const void *arg, const char *tensor); /* NULL: all */
    const void *arg;
};

/* The first of `spelling` that the file has and that is wanted. */
static enum nyb_code read_kv_scale(struct declare *d, struct ckpt *ckpt, const struct kv_wanted *wanted,
                                   const char *const *spelling, float *out, struct nyb_err *err)
{
    for (; *spelling; spelling++) {
        const char *name = in_layer(d, *spelling, 0, "");
        if (wanted->fn && !wanted->fn(wanted->arg, name))
            continue;
        const struct ckpt_tensor *t = ckpt_take(ckpt, name);
        if (!t)
            continue;
        TRY(ckpt_read_scalar(ckpt, t, out, err));
        if (*out > 0 && isfinite(*out))
            return NYB_OK;
        return err_at(err, NYB_E_FORMAT, t->name, -1, "is %g, expected a positive number", (double)*out);
    }
    return NYB_OK;
}

enum nyb_code weights_read_kv_scales(float *k, float *v, const struct model_config *c, struct ckpt *ckpt,
                                     bool (*fn)(const void *arg, const char *tensor), const void *arg,
                                     struct nyb_err *err)
{
    static const char *const k_name[] = {"self_attn.k_proj.k_scale", "self_attn.k_scale",
                                         "self_attn.attn.k_scale",   "self_attn.qkv_proj.k_scale",
                                         "self_attn.kv_scale",       NULL};
    static const char *const v_name[] = {"self_attn.v_proj.v_scale", "self_attn.v_scale",
                                         "self_attn.attn.v_scale",   "self_attn.qkv_proj.v_scale",
                                         "self_attn.kv_scale",       NULL};
    const struct kv_wanted wanted = {fn, arg};
    struct declare d = {.c = c, .names = &c->arch->names};
    for (d.layer = 0; d.layer < c->n_layer; d.layer++) {
        TRY(read_kv_scale(&d, ckpt, &wanted, k_name, &k[d.layer], err));
        TRY(read_kv_scale(&d, ckpt, &wanted, v_name, &v[d.layer], err));
    }
    return NYB_OK;
}
