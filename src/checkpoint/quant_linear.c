/* quant_linear: what one linear layer really is, judged by the tensors that are there. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/quant_internal.h"

#define MAX_NAME 512

struct lookup {
    struct ckpt *c;
    const char *module;
    int64_t n, k;
    char name[MAX_NAME]; /* of the tensor asked for last */
    struct nyb_err *err;
};

static const struct ckpt_tensor *lookup_find(struct lookup *l, const char *suffix)
{
    snprintf(l->name, sizeof l->name, "%s.%s", l->module, suffix);
    return ckpt_find(l->c, l->name);
}

static const struct ckpt_tensor *lookup_take(struct lookup *l, const char *suffix)
{
    snprintf(l->name, sizeof l->name, "%s.%s", l->module, suffix);
    return ckpt_take(l->c, l->name);
}

static const char *path_of(const struct lookup *l, const struct ckpt_tensor *t)
{
    return l->c->file[t->file].path;
}

static void print_shape(char *dst, size_t cap, const struct ckpt_tensor *t)
{
    size_t at = (size_t)snprintf(dst, cap, "[");
    for (int i = 0; i < t->n_dim && at < cap; i++)
        at += (size_t)snprintf(dst + at, cap - at, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    if (at < cap)
        snprintf(dst + at, cap - at, "]");
}

static enum nyb_code check_shape(const struct lookup *l, const struct ckpt_tensor *t, int64_t rows,
                                 int64_t columns)
{
    char shape[200];

    if (t->n_dim == 2 && t->dim[0] == rows && t->dim[1] == columns)
        return NYB_OK;
    print_shape(shape, sizeof shape, t);
    return err_at(l->err, NYB_E_FORMAT, t->name, -1,
                  "in %s: has dtype %s and shape %s, expected [%lld, %lld]", path_of(l, t),
                  dtype_name(t->dtype), shape, (long long)rows, (long long)columns);
}

static enum nyb_code check_dtype(const struct lookup *l, const struct ckpt_tensor *t, enum dtype expected)
{
    if (t->dtype == expected)
        return NYB_OK;
    return err_at(l->err, NYB_E_FORMAT, t->name, -1, "in %s: has dtype %s, expected %s", path_of(l, t),
                  dtype_name(t->dtype), dtype_name(expected));
}

/* The tensor that must accompany another one. */
static enum nyb_code take_companion(struct lookup *l, const char *suffix, const struct ckpt_tensor *weight,
                                    const struct ckpt_tensor **out)
{
    *out = lookup_take(l, suffix);
    if (*out)
        return NYB_OK;
    return err_at(l->err, NYB_E_FORMAT, l->name, -1,
                  "is missing in %s, expected beside the %s weight of this module", l->c->folder,
                  dtype_name(weight->dtype));
}

/* Forms whose weights need more than a scale. */
static enum nyb_code refuse_extras(struct lookup *l)
{
    static const struct {
        const char *suffix, *what;
    } table[] = {
        {"pre_quant_scale", "NVFP4_AWQ (a scale for every input channel)"},
        {"svdquant_lora_a", "NVFP4_SVD (a low-rank part beside the weight)"},
        {"weight_scale_inv", "block-scaled FP8"},
        {"weight_zero_point", "weights with zero points"},
    };
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const struct ckpt_tensor *t = lookup_find(l, table[i].suffix);
        if (t)
            return err_at(l->err, NYB_E_UNSUPPORTED, t->name, -1, "in %s: %s is not supported", path_of(l, t),
                          table[i].what);
    }
    return NYB_OK;
}

/* No weight at all. Say so, and whether the file seems to have it in another form. */
static enum nyb_code report_missing(struct lookup *l)
{
    static const char *const other[] = {"qweight", "weight_blocks"};
    static const char *const fused[] = {"gate_up_proj", "gate_up_proj.weight", "qkv_proj.weight"};
    char name[MAX_NAME + 32];
    const char *hint = NULL;

    for (size_t i = 0; !hint && i < COUNT_OF(other); i++)
        if (lookup_find(l, other[i]))
            hint = l->name;
    const char *experts = strstr(l->module, ".experts.");
    const char *parent = experts ? experts + strlen(".experts") : strrchr(l->module, '.');
    for (size_t i = 0; !hint && parent && i < COUNT_OF(fused); i++) {
        snprintf(name, sizeof name, "%.*s.%s", (int)(parent - l->module), l->module, fused[i]);
        if (ckpt_find(l->c, name))
            hint = name;
    }

    char where[MAX_NAME + 32];
    snprintf(where, sizeof where, "%s.weight", l->module);
    return err_at(l->err, hint ? NYB_E_UNSUPPORTED : NYB_E_FORMAT, where, -1,
                  "is missing in %s, expected a weight of [%lld, %lld]%s%s%s", l->c->folder, (long long)l->n,
                  (long long)l->k, hint ? " (the file has '" : "", hint ? hint : "",
                  hint ? "', a form that is not supported)" : "");
}

/* A scale that multiplies; `inverse` ones are stored as their reciprocal. Zero is what an all-zero tensor
 * has. */
static enum nyb_code read_global(struct lookup *l, const struct ckpt_tensor *t, bool inverse, float *out)
{
    float stored;

    TRY(ckpt_read_scalar(l->c, t, &stored, l->err));
    *out = inverse ? 1.0F / stored : stored;
    if (isfinite(stored) && isfinite(*out) && *out >= 0)
        return NYB_OK;
    return err_at(l->err, NYB_E_FORMAT, t->name, -1, "in %s: is %g, expected a finite %s number",
                  path_of(l, t), (double)stored, inverse ? "positive" : "non-negative");
}

/* Experts that calibration never reached have none, zero, infinity or dust here: all mean "no scale". */
static enum nyb_code read_input_scale(struct lookup *l, const char *suffix, bool inverse, float *out)
{
    const struct ckpt_tensor *t = lookup_take(l, suffix);
    float stored;

    *out = 0;
    if (!t)
        return NYB_OK;
    TRY(ckpt_read_scalar(l->c, t, &stored, l->err));
    float scale = inverse ? 1.0F / stored : stored;
    if (isfinite(stored) && stored >= FLT_MIN && isfinite(scale) && scale >= FLT_MIN)
        *out = scale;
    return NYB_OK;
}

/* weight is (n, k/2) codes in either spelling. */
static enum nyb_code resolve_nvfp4(struct lookup *l, const struct ckpt_tensor *weight, bool packed,
                                   struct linear_source *out)
{
    const struct ckpt_tensor *global;

    out->kind = LINEAR_NVFP4;
    TRY(check_dtype(l, weight, DTYPE_U8));
    if (l->k % QUANT_GROUP)
        return err_at(l->err, NYB_E_UNSUPPORTED, weight->name, -1,
                      "in %s: NVFP4 needs a multiple of %d input features, this module has %lld",
                      path_of(l, weight), QUANT_GROUP, (long long)l->k);
    TRY(check_shape(l, weight, l->n, l->k / 2));
    TRY(take_companion(l, "weight_scale", weight, &out->scale));
    TRY(check_dtype(l, out->scale, DTYPE_F8_E4M3));
    TRY(check_shape(l, out->scale, l->n, l->k / QUANT_GROUP));
    TRY(take_companion(l, packed ? "weight_global_scale" : "weight_scale_2", weight, &global));
    TRY(read_global(l, global, packed, &out->global_scale));
    return read_input_scale(l, packed ? "input_global_scale" : "input_scale", packed, &out->input_scale);
}

static enum nyb_code resolve_fp8(struct lookup *l, const struct ckpt_tensor *weight,
                                 struct linear_source *out)
{
    const struct ckpt_tensor *scale;
    char shape[200];

    out->kind = LINEAR_FP8;
    TRY(check_shape(l, weight, l->n, l->k));
    TRY(take_companion(l, "weight_scale", weight, &scale));
    if (scale->n_dim > 1 || (scale->n_dim == 1 && scale->dim[0] != 1)) {
        bool per_channel = scale->dim[0] == l->n && (scale->n_dim == 1 || scale->dim[1] == 1);
        print_shape(shape, sizeof shape, scale);
        return err_at(
            l->err, NYB_E_UNSUPPORTED, scale->name, -1,
            "in %s: has shape %s: FP8 weights with a scale %s are not supported, expected one scale a "
            "tensor, [] or [1]",
            path_of(l, scale), shape, per_channel ? "a channel" : "a block");
    }
    TRY(read_global(l, scale, false, &out->global_scale));
    return read_input_scale(l, "input_scale", false, &out->input_scale);
}

static enum nyb_code resolve(struct lookup *l, struct linear_source *out)
{
    const struct ckpt_tensor *packed = lookup_take(l, "weight_packed");
    const struct ckpt_tensor *weight = lookup_take(l, "weight");

    if (!packed && !weight)
        return report_missing(l);
    if (packed && weight)
        return err_at(l->err, NYB_E_FORMAT, weight->name, -1,
                      "in %s: this module also has weight_packed, expected one", path_of(l, weight));
    TRY(refuse_extras(l));
    *out = (struct linear_source){
        .n = l->n, .k = l->k, .weight = packed ? packed : weight, .global_scale = 1.0F};
    if (packed)
        return resolve_nvfp4(l, packed, true, out);

    switch (weight->dtype) {
    case DTYPE_U8:
        return resolve_nvfp4(l, weight, false, out);
    case DTYPE_F8_E4M3:
        return resolve_fp8(l, weight, out);
    case DTYPE_BF16:
        out->kind = LINEAR_BF16;
        break;
    case DTYPE_F16:
        out->kind = LINEAR_F16;
        break;
    case DTYPE_F32:
        out->kind = LINEAR_F32;
        break;
    default:
        return err_at(l->err, NYB_E_UNSUPPORTED, weight->name, -1,
                      "in %s: has dtype %s, expected U8 (NVFP4), F8_E4M3, BF16, F16 or F32",
                      path_of(l, weight), dtype_name(weight->dtype));
    }
    return check_shape(l, weight, l->n, l->k);
}

static const char *kind_name(enum linear_kind kind)
{
    static const char *const name[] = {[LINEAR_NVFP4] = "NVFP4",
                                       [LINEAR_FP8] = "FP8",
                                       [LINEAR_BF16] = "BF16",
                                       [LINEAR_F16] = "F16",
                                       [LINEAR_F32] = "F32"};
    return name[kind];
}

/* Count a module whose tensors are not what the declaration says. */
static void note_difference(const struct quant *q, const char *module, enum linear_kind kind)
{
    static const char *const scheme_name[] = {
        [QUANT_NONE] = "unquantized", [QUANT_NVFP4] = "NVFP4", [QUANT_FP8] = "FP8"};
    enum quant_scheme stored = kind == LINEAR_NVFP4 ? QUANT_NVFP4
                               : kind == LINEAR_FP8 ? QUANT_FP8
                                                    : QUANT_NONE;
    enum quant_scheme declared = quant_scheme_of(q, module);

    if (stored != declared && atomic_fetch_add(&q->tally->n, 1) == 0)
        snprintf(q->tally->example, sizeof q->tally->example, "%.220s is declared %s and stored as %s",
                 module, scheme_name[declared], kind_name(kind));
}

enum nyb_code quant_linear(const struct quant *q, struct ckpt *c, const char *module, int64_t n, int64_t k,
                           struct linear_source *out, struct nyb_err *err)
{
    struct lookup l = {.c = c, .module = module, .n = n, .k = k, .err = err};

    ASSERT(strlen(module) < MAX_NAME - 32);
    TRY(resolve(&l, out));
    note_difference(q, module, out->kind);
    return NYB_OK;
}
