/* From a slot's name to the tensors that fill it. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/pool.h"
#include "model/slots.h"

#define RESOLVE_GRAIN 16 /* slots */

static enum weight_type type_of(enum linear_kind kind)
{
    static const enum weight_type type[] = {
        [LINEAR_NVFP4] = WEIGHT_NVFP4, [LINEAR_FP8] = WEIGHT_FP8, [LINEAR_BF16] = WEIGHT_BF16,
        [LINEAR_F16] = WEIGHT_F16,     [LINEAR_F32] = WEIGHT_F32,
    };
    return type[kind];
}

static bool is_there(const struct slot *s, const struct ckpt *c)
{
    if (s->kind == SLOT_VECTOR)
        return ckpt_find(c, s->name);
    char *plain = mem_printf("%s.weight", s->name), *packed = mem_printf("%s.weight_packed", s->name);
    bool there = ckpt_find(c, plain) || ckpt_find(c, packed);
    free(plain);
    free(packed);
    return there;
}

/* Any shape with n elements along one dimension: ERNIE's correction bias is (1, n). */
static enum nyb_code resolve_vector(struct slot *s, struct ckpt *c, struct nyb_err *err)
{
    const struct ckpt_tensor *t = ckpt_take(c, s->name);
    bool fits = t->n_dim >= 1 && dtype_is_float(t->dtype);
    for (int i = 0; i < t->n_dim; i++)
        fits = fits && t->dim[i] == (i + 1 == t->n_dim ? s->n_whole : 1);
    if (!fits)
        return err_at(
            err, NYB_E_FORMAT, s->name, -1,
            "in %s: has dtype %s, %d dimensions and %llu bytes, expected [%d] of F32, F16, BF16 or F64",
            c->file[t->file].path, dtype_name(t->dtype), t->n_dim, (unsigned long long)t->bytes, s->n_whole);
    s->tensor = t;
    return NYB_OK;
}

static enum nyb_code resolve_matrix(struct slot *s, struct ckpt *c, const struct quant *q,
                                    struct nyb_err *err)
{
    TRY(quant_linear(q, c, s->name, s->n_whole, s->k_whole, &s->source, err));
    s->weight->type = type_of(s->source.kind);
    s->weight->n = s->n;
    s->weight->k = s->k;
    s->weight->global_scale = s->source.global_scale;
    s->weight->input_scale = s->source.input_scale;
    return NYB_OK;
}

/* The first missing parameter's own error, which may carry a hint, and how many more there are. */
static enum nyb_code report_missing(const struct slot *s, struct ckpt *c, const struct quant *q,
                                    int n_missing, const struct slot *last, struct nyb_err *err)
{
    struct nyb_err first;
    struct linear_source unused;
    enum nyb_code code;
    if (s->kind == SLOT_VECTOR)
        code = err_at(&first, NYB_E_FORMAT, s->name, -1, "is missing in %s, expected a vector of [%d]",
                      c->folder, s->n_whole);
    else
        code = quant_linear(q, c, s->name, s->n_whole, s->k_whole, &unused, &first);
    ASSERT(code != NYB_OK);
    if (n_missing == 1)
        return err_at(err, code, first.where, -1, "%s", first.message);
    return err_at(err, code, first.where, -1, "%.480s; %d parameters are missing in all, the last is %.180s",
                  first.message, n_missing, last->name);
}

enum nyb_code source_resolve_slot(struct slot *s, struct ckpt *c, const struct quant *q, struct nyb_err *err)
{
    if (s->kind == SLOT_MATRIX)
        return resolve_matrix(s, c, q, err);
    if (!is_there(s, c))
        return report_missing(s, c, q, 1, s, err);
    return resolve_vector(s, c, err);
}

struct resolving {
    struct slots *s;
    struct ckpt *c;
    const struct quant *q;
    atomic_bool failed;
};

static void resolve_some(void *arg, int begin, int end, int worker)
{
    struct resolving *r = arg;
    struct nyb_err unused;
    (void)worker;
    for (int i = begin; i < end && !atomic_load_explicit(&r->failed, memory_order_relaxed); i++) {
        struct slot *slot = &r->s->slot[i];
        enum nyb_code code = slot->kind == SLOT_MATRIX ? resolve_matrix(slot, r->c, r->q, &unused)
                             : is_there(slot, r->c)    ? resolve_vector(slot, r->c, &unused)
                                                       : NYB_E_FORMAT;
        if (code != NYB_OK)
            atomic_store(&r->failed, true);
    }
}

/* By all threads: ten names a slot are looked up and two numbers read, some 10 us. */
static bool resolve_all(struct slots *s, struct ckpt *c, const struct quant *q, struct pool *pool)
{
    struct resolving r = {.s = s, .c = c, .q = q};
    pool_range(pool, s->n, RESOLVE_GRAIN, resolve_some, &r);
    return !atomic_load(&r.failed);
}

enum nyb_code source_resolve(struct slots *s, struct ckpt *c, const struct quant *q, struct pool *pool,
                             struct nyb_err *err)
{
    if (pool && resolve_all(s, c, q, pool))
        return NYB_OK;
    /* One after another, for the first error. */
    const struct slot *first = NULL, *last = NULL;
    int n_missing = 0;
    for (int i = 0; i < s->n; i++) {
        if (is_there(&s->slot[i], c))
            continue;
        first = first ? first : &s->slot[i];
        last = &s->slot[i];
        n_missing++;
    }
    if (n_missing)
        return report_missing(first, c, q, n_missing, last, err);
    for (int i = 0; i < s->n; i++)
        if (s->slot[i].kind == SLOT_VECTOR)
            TRY(resolve_vector(&s->slot[i], c, err));
        else
            TRY(resolve_matrix(&s->slot[i], c, q, err));
    return NYB_OK;
}

/* Random elements times this have a standard deviation of 1 / sqrt(k), so that outputs spread as inputs do:
 * e2m1 codes have a root mean square of 2.93, block scales and
 * FP8 magnitudes from 1 to 1.875 one of 1.46, bf16 magnitudes from 1 to 2 one of 1.52. */
static float dummy_scale(enum weight_type type, int k)
{
    double rms = type == WEIGHT_NVFP4 ? 2.93 * 1.46 : type == WEIGHT_FP8 ? 1.46 : 1.52;
    return (float)(1 / (rms * sqrt(k)));
}

enum nyb_code source_resolve_dummy(struct slots *s, const struct quant *q, struct nyb_err *err)
{
    static const enum weight_type type[] = {
        [QUANT_NONE] = WEIGHT_BF16, [QUANT_NVFP4] = WEIGHT_NVFP4, [QUANT_FP8] = WEIGHT_FP8};
    for (int i = 0; i < s->n; i++) {
        struct slot *slot = &s->slot[i];
        if (slot->kind == SLOT_VECTOR)
            continue;
        enum weight_type t = type[quant_scheme_of(q, slot->name)];
        if (t == WEIGHT_NVFP4 && slot->k_whole % 16)
            return err_at(err, NYB_E_UNSUPPORTED, slot->name, -1,
                          "NVFP4 needs a multiple of 16 input features, this module has %d", slot->k_whole);
        slot->source = (struct linear_source){0};
        slot->weight->type = t;
        slot->weight->n = slot->n;
        slot->weight->k = slot->k;
        slot->weight->global_scale = dummy_scale(t, slot->k_whole);
        slot->weight->input_scale = 6.0f / (6 * 448); /* inputs of unit spread stay below 6 */
    }
    return NYB_OK;
}

enum nyb_code source_check_input_scales(const struct slots *s, struct nyb_err *err)
{
    for (int i = 0; i < s->n; i++) {
        const struct slot *slot = &s->slot[i];
        if (slot->kind == SLOT_MATRIX && slot->weight->type == WEIGHT_NVFP4 &&
            !(slot->weight->input_scale > 0))
            return err_at(err, NYB_E_UNSUPPORTED, slot->name, -1,
                          "has no usable input scale, which compute w4a4 needs: use another compute mode");
    }
    return NYB_OK;
}
