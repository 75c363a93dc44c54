/* Where weights lie on a GPU: the walk over the model. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/device_placing.h"

static void place_layer(struct placing *p, struct layer_weights *l, int layer)
{
    const struct model_config *c = p->d->config;
    struct device_layer *out = &p->d->layer[layer];
    *out = (struct device_layer){.is_moe = c->layer_is_moe[layer]};
    out->attention_norm = placing_vector(p, &l->attention_norm);
    out->mlp_norm = placing_vector(p, &l->mlp_norm);
    out->q = placing_matrix(p, &l->q.w);
    out->k = placing_matrix(p, &l->k.w);
    out->v = placing_matrix(p, &l->v.w);
    out->o = placing_matrix(p, &l->o.w);
    out->q_bias = placing_vector(p, &l->q.bias);
    out->k_bias = placing_vector(p, &l->k.bias);
    out->v_bias = placing_vector(p, &l->v.bias);
    out->o_bias = placing_vector(p, &l->o.bias);
    out->adds_o_bias = l->o.adds_bias;
    out->q_norm = placing_vector(p, &l->q_norm);
    out->k_norm = placing_vector(p, &l->k_norm);
    if (!out->is_moe) {
        placing_dense(p, &l->mlp, &out->mlp);
        return;
    }
    if (c->moe.n_expert > CUDA_EXPERTS_MAX)
        placing_refuse(p, &l->router, "more than 512 experts");
    out->router = placing_plain(p, &l->router, 0, 1);
    out->correction_bias = placing_vector(p, &l->correction_bias);
    placing_experts(p, l, out);
}

static void place_all(struct placing *p)
{
    struct device *d = p->d;
    struct weights *w = d->weights;
    p->used = 0;
    d->n_scale = 0;
    d->embed = placing_plain(p, &w->embed, 0, 1);
    for (int i = 0; i < w->n_layer && p->code == NYB_OK; i++)
        place_layer(p, &w->layer[i], i);
    d->final_norm = placing_vector(p, &w->final_norm);
    if (w->head_is_embed && w->embed.type == WEIGHT_NVFP4 &&
        p->d->option.gemm_backend == DEVICE_BACKEND_CUBLASLT_NVFP4)
        placing_refuse(p, &w->embed, "an NVFP4 embedding that is the head too does not go through cuBLASLt");
    d->head = w->head_is_embed ? d->embed : placing_matrix(p, &w->head);
    int kv = placing_take_scales(p, 2 * w->n_layer);
    d->kv_scales = placing_scale_at(p, kv);
    for (int i = 0; i < w->n_layer; i++) {
        d->scale_of[kv + 2 * i] = (struct device_scale){&w->layer[i].k_scale, NULL};
        d->scale_of[kv + 2 * i + 1] = (struct device_scale){&w->layer[i].v_scale, NULL};
    }
}

static enum nyb_code take_memory(struct placing *p)
{
    struct device *d = p->d;
    struct cuda_gpu_info now;
    size_t scale_bytes = (size_t)d->n_scale * sizeof(float);
    d->plugin->info(d->gpu, &now);
    if (p->used + scale_bytes > now.free_bytes)
        return err_at(p->err, NYB_E_MEMORY, d->info.name, -1,
                      "the weights need %.2f GB, %.2f of its %.2f GB are free", (double)p->used * 1e-9,
                      (double)now.free_bytes * 1e-9, (double)now.memory_bytes * 1e-9);
    d->slab_bytes = p->used;
    TRY(device_alloc(d, (void **)&d->slab, p->used, "the weights", p->err));
    return device_alloc(d, (void **)&d->scales, scale_bytes, "scales", p->err);
}

static enum nyb_code check_all_placed(const struct placing *p)
{
    for (int i = 0; i < p->slots->n; i++)
        if (!p->slots->slot[i].place)
            return err_at(p->err, NYB_E_UNSUPPORTED, p->slots->slot[i].name, -1,
                          "has no place in a model on a GPU");
    return NYB_OK;
}

static enum nyb_code place_twice(struct placing *p)
{
    place_all(p);
    if (p->code != NYB_OK)
        return p->code;
    TRY(take_memory(p));
    p->base = (uintptr_t)p->d->slab;
    p->scales = (uintptr_t)p->d->scales;
    p->real = true;
    place_all(p);
    TRY(check_all_placed(p));
    return device_write_scales(p->d, p->err);
}

enum nyb_code device_place_weights(struct device *d, const struct model_config *c, struct weights *w,
                                   struct nyb_err *err)
{
    struct slots *s = &w->slots;
    d->config = c;
    d->weights = w;
    d->layer = mem_alloc((size_t)c->n_layer, sizeof(*d->layer));
    d->n_place = s->n;
    d->place = mem_alloc((size_t)s->n, sizeof(*d->place));
    struct placing p = {.d = d, .slots = s, .err = err, .code = NYB_OK};
    placing_find_owners(&p);
    enum nyb_code code = place_twice(&p);
    free(p.owner);
    return code;
}

uint64_t device_weight_bytes(const struct device *d)
{
    return d->slab_bytes;
}
