#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/arch.h"

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

static void add_linear(struct declare *d, struct linear *to, int n, int k, bool bias, const char *name,
                       int expert)
{
    slots_add_matrix(&d->w->slots, &to->w, n, k, in_layer(d, name, expert, ""));
    if (bias)
        slots_add_vector(&d->w->slots, &to->bias, n, 0, in_layer(d, name, expert, ".bias"));
}

static void add_mlp(struct declare *d, struct mlp *to, int intermediate, const char *gate, const char *up,
                    const char *down, int expert)
{
    int hidden = d->c->hidden;
    add_linear(d, &to->gate, intermediate, hidden, d->c->mlp_bias, gate, expert);
    add_linear(d, &to->up, intermediate, hidden, d->c->mlp_bias, up, expert);
    add_linear(d, &to->down, hidden, intermediate, d->c->mlp_bias, down, expert);
}

static void add_attention(struct declare *d, struct layer_weights *l)
{
    const struct model_config *c = d->c;
    const struct arch_names *n = d->names;
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim;
    add_vector(d, &l->attention_norm, c->hidden, 1, n->attention_norm);
    add_vector(d, &l->mlp_norm, c->hidden, 1, n->mlp_norm);
    add_linear(d, &l->q, q, c->hidden, c->qkv_bias, n->q, 0);
    add_linear(d, &l->k, kv, c->hidden, c->qkv_bias, n->k, 0);
    add_linear(d, &l->v, kv, c->hidden, c->qkv_bias, n->v, 0);
    add_linear(d, &l->o, c->hidden, q, c->o_bias, n->o, 0);
    if (c->qk_norm) {
        add_vector(d, &l->q_norm, c->head_dim, 1, n->q_norm);
        add_vector(d, &l->k_norm, c->head_dim, 1, n->k_norm);
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
    for (int e = 0; e < m->n_expert; e++)
        add_mlp(d, &l->expert[e], m->intermediate, n->expert_gate, n->expert_up, n->expert_down, e);
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
    if (!w->head_is_embed)
        slots_add_matrix(&w->slots, &w->head, c->vocab, c->hidden, n->head);
}

void weights_link(struct weights *w)
{
    if (w->head_is_embed)
        w->head = w->embed;
}

void weights_free(struct weights *w)
{
    for (int i = 0; w->layer && i < w->n_layer; i++)
        free(w->layer[i].expert);
    free(w->layer);
    slots_free(&w->slots);
    *w = (struct weights){0};
}

/* ---- scales of the KV cache ---------------------------------------------------------------------- */

/* The first of `spelling` that the file has. */
static enum nyb_code read_kv_scale(struct declare *d, struct ckpt *ckpt, const char *const *spelling,
                                   float *out, struct nyb_err *err)
{
    for (; *spelling; spelling++) {
        const struct ckpt_tensor *t = ckpt_take(ckpt, in_layer(d, *spelling, 0, ""));
        if (!t)
            continue;
        TRY(ckpt_read_scalar(ckpt, t, out, err));
        if (*out > 0 && isfinite(*out))
            return NYB_OK;
        return err_at(err, NYB_E_FORMAT, t->name, -1, "is %g, expected a positive number", (double)*out);
    }
    return NYB_OK;
}

enum nyb_code weights_read_kv_scales(struct weights *w, const struct model_config *c, struct ckpt *ckpt,
                                     struct nyb_err *err)
{
    static const char *const k[] = {"self_attn.k_proj.k_scale", "self_attn.k_scale",
                                    "self_attn.attn.k_scale",   "self_attn.qkv_proj.k_scale",
                                    "self_attn.kv_scale",       NULL};
    static const char *const v[] = {"self_attn.v_proj.v_scale", "self_attn.v_scale",
                                    "self_attn.attn.v_scale",   "self_attn.qkv_proj.v_scale",
                                    "self_attn.kv_scale",       NULL};
    struct declare d = {.w = w, .c = c, .names = &c->arch->names};
    for (d.layer = 0; d.layer < c->n_layer; d.layer++) {
        TRY(read_kv_scale(&d, ckpt, k, &w->layer[d.layer].k_scale, err));
        TRY(read_kv_scale(&d, ckpt, v, &w->layer[d.layer].v_scale, err));
    }
    return NYB_OK;
}
