/* Where weights lie on a GPU. Placing is a walk over the model that is made twice: first from address zero
 * on, to learn how much memory it takes, then for real. */
#include <stdlib.h>

#include "base/mem.h"
#include "fp4/fp4.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_tiled.h"
#include "model/device_state.h"
#include "model/ep.h"

#define PLAIN_ALIGN  256u
#define PACKED_ALIGN 64u  /* q, k and v then lie one after the other */
#define PACKED_WIDE  8192 /* longest rows that the kernels for packed experts keep in shared memory */

/* A slot by what it fills. */
struct owner {
    const void *of;
    int slot;
};

struct placing {
    struct device *d;
    const struct slots *slots;
    struct owner *owner; /* (slots->n) by `of` */
    uintptr_t base, scales;
    size_t used;
    bool real; /* the second walk */
    struct nyb_err *err;
    enum nyb_code code;
};

/* ---- small parts --------------------------------------------------------------------------------- */

static int by_of(const void *a, const void *b)
{
    const struct owner *x = a, *y = b;
    return (x->of > y->of) - (x->of < y->of);
}

/* The slot that fills `of`, or NULL. */
static struct slot *slot_of(const struct placing *p, const void *of)
{
    const struct owner key = {of, 0};
    const struct owner *o = bsearch(&key, p->owner, (size_t)p->slots->n, sizeof(*p->owner), by_of);
    return o ? &p->slots->slot[o->slot] : NULL;
}

static void refuse(struct placing *p, const struct weight *w, const char *why)
{
    const struct slot *s = slot_of(p, w);
    if (p->code == NYB_OK)
        p->code = err_at(p->err, NYB_E_UNSUPPORTED, s ? s->name : "weights", -1, "on a GPU: %s", why);
}

static uint8_t *take(struct placing *p, size_t bytes, size_t align)
{
    size_t at = (p->used + align - 1) / align * align;
    p->used = at + bytes;
    return (uint8_t *)(p->base + at); /* NOLINT: zero plus an offset on the first walk, never read */
}

/* n scales that follow each other; the sources are set with set_scale. */
static int take_scales(struct placing *p, int n)
{
    struct device *d = p->d;
    int first = d->n_scale;
    d->n_scale += n;
    if (d->n_scale > d->cap_scale) {
        d->cap_scale = 2 * d->n_scale;
        d->scale_of = mem_grow(d->scale_of, (size_t)d->cap_scale, sizeof(*d->scale_of));
    }
    return first;
}

static float *scale_at(const struct placing *p, int i)
{
    return (float *)(p->scales + (uintptr_t)i * sizeof(float));
}

static void put(struct placing *p, const void *of, enum place_layout layout, uint8_t *data, uint8_t *block)
{
    struct slot *s = slot_of(p, of);
    ASSERT(s);
    if (!p->real)
        return;
    struct device_place *place = &p->d->place[s - p->slots->slot];
    *place = (struct device_place){p->d, of, layout, data, block};
    s->place = place;
    slot_set_address(s, data);
}

/* NULL where the model has no such vector. */
static float *place_vector(struct placing *p, float **v)
{
    const struct slot *s = slot_of(p, v);
    if (!s)
        return NULL;
    uint8_t *data = take(p, (size_t)s->n * sizeof(float), PLAIN_ALIGN);
    put(p, v, PLACE_VECTOR, data, NULL);
    return (float *)(void *)data;
}

/* ---- matrices ------------------------------------------------------------------------------------ */

static int32_t plain_type(enum weight_type t)
{
    static const int32_t type[WEIGHT_TYPE_COUNT] = {[WEIGHT_NVFP4] = CUDA_NVFP4,
                                                    [WEIGHT_FP8] = CUDA_FP8,
                                                    [WEIGHT_BF16] = CUDA_BF16,
                                                    [WEIGHT_F16] = CUDA_F16,
                                                    [WEIGHT_F32] = CUDA_F32};
    return type[t];
}

/* The i-th of several matrices that lie `stride` bytes apart in this process. */
static const struct weight *weight_at(const struct weight *first, size_t stride, int i)
{
    return (const struct weight *)(const void *)((const uint8_t *)first + (size_t)i * stride);
}

static bool same_kind(struct placing *p, const struct weight *first, size_t stride, int n)
{
    for (int i = 1; i < n; i++) {
        const struct weight *w = weight_at(first, stride, i);
        if (w->type != first->type || w->n != first->n || w->k != first->k) {
            refuse(p, w, "experts of one layer must have one type and shape");
            return false;
        }
    }
    return true;
}

static int place_scales(struct placing *p, const struct weight *first, size_t stride, int n)
{
    int at = take_scales(p, n);
    for (int i = 0; i < n; i++)
        p->d->scale_of[at + i] = (struct device_scale){&weight_at(first, stride, i)->global_scale, NULL};
    return at;
}

/* The scales of what is multiplied in NVFP4: of the products, and of the inputs. */
static int place_scale_pairs(struct placing *p, const struct weight *first, size_t stride, int n)
{
    int at = take_scales(p, 2 * n);
    for (int i = 0; i < n; i++) {
        const struct weight *w = weight_at(first, stride, i);
        p->d->scale_of[at + 2 * i] = (struct device_scale){&w->global_scale, &w->input_scale};
        p->d->scale_of[at + 2 * i + 1] = (struct device_scale){&w->input_scale, NULL};
    }
    return at;
}

/* n matrices of one kind, row-major, one after the other. */
static struct cuda_weight place_plain(struct placing *p, const struct weight *first, size_t stride, int n)
{
    size_t rows = (size_t)first->n, bytes = rows * weight_row_bytes(first->type, first->k);
    size_t block_bytes = first->type == WEIGHT_NVFP4 ? rows * (size_t)first->k / FP4_GROUP : 0;
    uint8_t *data = take(p, (size_t)n * bytes, PLAIN_ALIGN);
    uint8_t *block = block_bytes ? take(p, (size_t)n * block_bytes, PLAIN_ALIGN) : NULL;
    int scale = place_scales(p, first, stride, n);
    for (int i = 0; i < n; i++)
        put(p, weight_at(first, stride, i), PLACE_PLAIN, data + (size_t)i * bytes,
            block_bytes ? block + (size_t)i * block_bytes : NULL);
    return (struct cuda_weight){plain_type(first->type), data, block, scale_at(p, scale)};
}

/* n NVFP4 matrices of one shape as cuBLASLt takes them. */
static struct cuda_weight place_tiled(struct placing *p, const struct weight *first, size_t stride, int n)
{
    size_t code_bytes = cuda_tiled_code_bytes((size_t)first->n, (size_t)first->k),
           scale_bytes = cuda_tiled_scale_bytes((size_t)first->n, (size_t)first->k);
    uint8_t *data = take(p, (size_t)n * code_bytes, PLAIN_ALIGN),
            *block = take(p, (size_t)n * scale_bytes, PLAIN_ALIGN);
    int scale = place_scale_pairs(p, first, stride, n);
    for (int i = 0; i < n; i++)
        put(p, weight_at(first, stride, i), PLACE_TILED, data + (size_t)i * code_bytes,
            block + (size_t)i * scale_bytes);
    return (struct cuda_weight){CUDA_NVFP4_TILED, data, block, scale_at(p, scale)};
}

static bool can_pack(const struct placing *p, const struct weight *w)
{
    return w->type == WEIGHT_NVFP4 && w->k % CUDA_UNIT_K == 0 &&
           p->d->option.gemm_backend != DEVICE_BACKEND_REFERENCE;
}

static struct cuda_weight place_matrix(struct placing *p, const struct weight *w)
{
    if (w->type == WEIGHT_NVFP4 && p->d->option.gemm_backend == DEVICE_BACKEND_CUBLASLT_NVFP4)
        return place_tiled(p, w, 0, 1);
    if (!can_pack(p, w))
        return place_plain(p, w, 0, 1);
    uint8_t *data = take(p, cuda_layout_bytes((size_t)w->n, (size_t)w->k), PACKED_ALIGN);
    put(p, w, PLACE_PACKED, data, NULL);
    return (struct cuda_weight){CUDA_NVFP4_PACKED, data, NULL, scale_at(p, place_scales(p, w, 0, 1))};
}

/* ---- MLPs ---------------------------------------------------------------------------------------- */

static bool can_pack_mlp(const struct placing *p, const struct mlp *m, bool experts)
{
    const struct device_options *o = &p->d->option;
    enum device_backend backend = experts ? o->moe_backend : o->gemm_backend;
    int inner = m->gate.w.n, hidden = m->gate.w.k;
    return (backend == DEVICE_BACKEND_AUTO || backend == DEVICE_BACKEND_SM90_W4A16) &&
           m->gate.w.type == WEIGHT_NVFP4 && m->up.w.type == WEIGHT_NVFP4 && m->down.w.type == WEIGHT_NVFP4 &&
           !slot_of(p, &m->gate.bias) && hidden % CUDA_UNIT_K == 0 && inner % CUDA_UNIT_K == 0 &&
           hidden <= PACKED_WIDE && inner <= PACKED_WIDE;
}

static void place_packed_mlp(struct placing *p, const struct mlp *m, int n, struct device_mlp *out)
{
    size_t inner = (size_t)m->gate.w.n, hidden = (size_t)m->gate.w.k;
    size_t pair = cuda_layout_bytes(2 * inner, hidden), down = cuda_layout_bytes(hidden, inner);
    out->gate_up = take(p, (size_t)n * pair, PLAIN_ALIGN);
    out->packed_down = take(p, (size_t)n * down, PLAIN_ALIGN);
    out->gate.scale = scale_at(p, place_scales(p, &m->gate.w, sizeof(*m), n));
    out->up.scale = scale_at(p, place_scales(p, &m->up.w, sizeof(*m), n));
    out->down.scale = scale_at(p, place_scales(p, &m->down.w, sizeof(*m), n));
    for (int i = 0; i < n; i++) {
        put(p, &m[i].gate.w, PLACE_GATE, out->gate_up + (size_t)i * pair, NULL);
        put(p, &m[i].up.w, PLACE_UP, out->gate_up + (size_t)i * pair, NULL);
        put(p, &m[i].down.w, PLACE_PACKED, out->packed_down + (size_t)i * down, NULL);
    }
}

/* Experts whose products go through cuBLASLt. */
static bool is_w4a4(const struct placing *p, const struct mlp *m)
{
    return p->d->option.moe_backend == DEVICE_BACKEND_CUBLASLT_NVFP4 && m->gate.w.type == WEIGHT_NVFP4 &&
           m->up.w.type == WEIGHT_NVFP4 && m->down.w.type == WEIGHT_NVFP4;
}

static void place_w4a4_mlp(struct placing *p, const struct mlp *m, int n, struct device_mlp *out)
{
    if (slot_of(p, &m->gate.bias) || slot_of(p, &m->up.bias) || slot_of(p, &m->down.bias))
        refuse(p, &m->gate.w, "experts with biases do not go through cuBLASLt");
    out->way = MLP_W4A4;
    out->gate = place_tiled(p, &m->gate.w, sizeof(*m), n);
    out->up = place_tiled(p, &m->up.w, sizeof(*m), n);
    out->down = place_tiled(p, &m->down.w, sizeof(*m), n);
    p->d->option.no_graphs = true; /* the host waits for the choice of experts within a step */
}

/* (n, width) floats: of each expert its bias. */
static float *place_biases(struct placing *p, float *const *first, int n)
{
    const struct slot *s = slot_of(p, first);
    if (!s)
        return NULL;
    size_t bytes = (size_t)s->n * sizeof(float);
    uint8_t *data = take(p, (size_t)n * bytes, PLAIN_ALIGN);
    for (int i = 0; i < n; i++)
        put(p, (const uint8_t *)first + (size_t)i * sizeof(struct mlp), PLACE_VECTOR,
            data + (size_t)i * bytes, NULL);
    return (float *)(void *)data;
}

static void place_mlp(struct placing *p, const struct mlp *m, int n, bool experts, struct device_mlp *out)
{
    *out = (struct device_mlp){.n_expert = n, .inner = m->gate.w.n};
    if (!same_kind(p, &m->gate.w, sizeof(*m), n) || !same_kind(p, &m->up.w, sizeof(*m), n) ||
        !same_kind(p, &m->down.w, sizeof(*m), n))
        return;
    if (can_pack_mlp(p, m, experts)) {
        out->way = MLP_PACKED;
        place_packed_mlp(p, m, n, out);
        return;
    }
    if (experts && is_w4a4(p, m)) {
        place_w4a4_mlp(p, m, n, out);
        return;
    }
    if (experts) {
        if (m->up.w.type != m->gate.w.type || m->down.w.type != m->gate.w.type)
            refuse(p, &m->up.w, "gate, up and down of an expert must have one type");
        out->way = MLP_PLAIN;
        out->gate = place_plain(p, &m->gate.w, sizeof(*m), n);
        out->up = place_plain(p, &m->up.w, sizeof(*m), n);
        out->down = place_plain(p, &m->down.w, sizeof(*m), n);
    } else {
        out->way = MLP_LINEAR;
        out->gate = place_matrix(p, &m->gate.w);
        out->up = place_matrix(p, &m->up.w);
        out->down = place_matrix(p, &m->down.w);
    }
    out->gate_bias = place_biases(p, &m->gate.bias, n);
    out->up_bias = place_biases(p, &m->up.bias, n);
    out->down_bias = place_biases(p, &m->down.bias, n);
}

/* ---- the walk ------------------------------------------------------------------------------------ */

static void place_layer(struct placing *p, struct layer_weights *l, int layer)
{
    const struct model_config *c = p->d->config;
    struct device_layer *out = &p->d->layer[layer];
    *out = (struct device_layer){.is_moe = c->layer_is_moe[layer]};
    out->attention_norm = place_vector(p, &l->attention_norm);
    out->mlp_norm = place_vector(p, &l->mlp_norm);
    out->q = place_matrix(p, &l->q.w);
    out->k = place_matrix(p, &l->k.w);
    out->v = place_matrix(p, &l->v.w);
    out->o = place_matrix(p, &l->o.w);
    out->q_bias = place_vector(p, &l->q.bias);
    out->k_bias = place_vector(p, &l->k.bias);
    out->v_bias = place_vector(p, &l->v.bias);
    out->o_bias = place_vector(p, &l->o.bias);
    out->q_norm = place_vector(p, &l->q_norm);
    out->k_norm = place_vector(p, &l->k_norm);
    if (!out->is_moe) {
        place_mlp(p, &l->mlp, 1, false, &out->mlp);
        return;
    }
    if (c->moe.n_expert > CUDA_EXPERTS_MAX)
        refuse(p, &l->router, "more than 512 experts");
    out->router = place_plain(p, &l->router, 0, 1);
    out->correction_bias = place_vector(p, &l->correction_bias);
    place_mlp(p, l->expert, ep_own_slots(&c->shard, c->moe.n_expert).count, true, &out->experts);
    if (c->moe.shared_intermediate)
        place_mlp(p, &l->mlp, 1, false, &out->mlp);
}

static void place_all(struct placing *p)
{
    struct device *d = p->d;
    struct weights *w = d->weights;
    p->used = 0;
    d->n_scale = 0;
    d->embed = place_plain(p, &w->embed, 0, 1);
    for (int i = 0; i < w->n_layer && p->code == NYB_OK; i++)
        place_layer(p, &w->layer[i], i);
    d->final_norm = place_vector(p, &w->final_norm);
    if (w->head_is_embed && w->embed.type == WEIGHT_NVFP4 &&
        p->d->option.gemm_backend == DEVICE_BACKEND_CUBLASLT_NVFP4)
        refuse(p, &w->embed, "an NVFP4 embedding that is the head too does not go through cuBLASLt");
    d->head = w->head_is_embed ? d->embed : place_matrix(p, &w->head);
    int kv = take_scales(p, 2 * w->n_layer);
    d->kv_scales = scale_at(p, kv);
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
    p.owner = mem_alloc((size_t)s->n, sizeof(*p.owner));
    for (int i = 0; i < s->n; i++)
        p.owner[i] = (struct owner){s->slot[i].kind == SLOT_MATRIX ? (const void *)s->slot[i].weight
                                                                   : (const void *)s->slot[i].vector,
                                    i};
    qsort(p.owner, (size_t)s->n, sizeof(*p.owner), by_of);
    enum nyb_code code = place_twice(&p);
    free(p.owner);
    return code;
}

uint64_t device_weight_bytes(const struct device *d)
{
    return d->slab_bytes;
}
