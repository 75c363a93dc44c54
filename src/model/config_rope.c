/* Rotary embedding as configs spell it. Two spellings: `rope_theta` with an optional `rope_scaling` object,
 * and transformers 5's `rope_parameters`, which holds everything; in both the kind is `rope_type`, formerly
 * `type`. Meaning of the fields: transformers modeling_rope_utils.py. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "model/arch.h"

struct reader {
    const struct hfconfig *hf;
    const json_t *obj; /* where the fields are, or NULL        */
    const char *name;  /* of that object, for messages         */
    struct nyb_err *err;
};

/* A finite number greater than zero. dflt NAN: required. */
static enum nyb_code read_positive(const struct reader *r, const char *key, double dflt, double *out)
{
    TRY(hfconfig_float_or(r->hf, r->obj, key, dflt, out, r->err));
    if (isnan(dflt) && isnan(*out))
        return err_at(r->err, NYB_E_FORMAT, r->hf->path, -1, "%s has no %s, expected a number", r->name, key);
    if (!(*out > 0) || !isfinite(*out))
        return err_at(r->err, NYB_E_FORMAT, r->hf->path, -1, "%s in %s is %g, expected a positive number",
                      key, r->name, *out);
    return NYB_OK;
}

/* A finite number, zero when absent. */
static enum nyb_code read_optional(const struct reader *r, const char *key, double *out)
{
    TRY(hfconfig_float_or(r->hf, r->obj, key, 0, out, r->err));
    if (!(*out >= 0) || !isfinite(*out))
        return err_at(r->err, NYB_E_FORMAT, r->hf->path, -1,
                      "%s in %s is %g, expected a number of at least 0", key, r->name, *out);
    return NYB_OK;
}

static enum nyb_code read_type(const struct reader *r, enum rope_scaling *out)
{
    static const struct {
        const char *name;
        enum rope_scaling scaling;
    } known[] = {
        {"default", ROPE_PLAIN}, {"linear", ROPE_LINEAR}, {"llama3", ROPE_LLAMA3}, {"yarn", ROPE_YARN}};
    const char *type;
    TRY(hfconfig_string_or(r->hf, r->obj, "type", "default", &type, r->err));
    TRY(hfconfig_string_or(r->hf, r->obj, "rope_type", type, &type, r->err));
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (!strcmp(type, known[i].name)) {
            *out = known[i].scaling;
            return NYB_OK;
        }
    return err_at(r->err, NYB_E_UNSUPPORTED, r->hf->path, -1,
                  "rope_type in %s is '%.80s', expected default, linear, llama3 or yarn", r->name, type);
}

static enum nyb_code read_llama3(struct rope_config *rope, const struct reader *r)
{
    TRY(read_positive(r, "factor", NAN, &rope->factor));
    TRY(read_positive(r, "low_freq_factor", NAN, &rope->low_freq_factor));
    TRY(read_positive(r, "high_freq_factor", NAN, &rope->high_freq_factor));
    if (rope->high_freq_factor <= rope->low_freq_factor)
        return err_at(r->err, NYB_E_FORMAT, r->hf->path, -1,
                      "high_freq_factor in %s is %g, expected more than low_freq_factor, which is %g",
                      r->name, rope->high_freq_factor, rope->low_freq_factor);
    return hfconfig_int(r->hf, r->obj, "original_max_position_embeddings", 1, INT32_MAX,
                        &rope->original_max_position, r->err);
}

/* Without a factor it is the ratio of the two context lengths. The stretched context may be longer than
 * max_position_embeddings says: files of both habits exist. */
static enum nyb_code read_yarn(struct model_config *c, const struct reader *r)
{
    struct rope_config *rope = &c->rope;
    if (rope->theta <= 1)
        return err_at(r->err, NYB_E_FORMAT, r->hf->path, -1, "rope_theta is %g, yarn needs more than 1",
                      rope->theta);
    TRY(hfconfig_int_or(r->hf, r->obj, "original_max_position_embeddings", 1, INT32_MAX, c->max_position,
                        &rope->original_max_position, r->err));
    double ratio = (double)c->max_position / (double)rope->original_max_position;
    TRY(read_positive(r, "factor", ratio, &rope->factor));
    TRY(read_positive(r, "beta_fast", 32, &rope->beta_fast));
    TRY(read_positive(r, "beta_slow", 1, &rope->beta_slow));
    TRY(read_optional(r, "attention_factor", &rope->attention_factor));
    TRY(read_optional(r, "mscale", &rope->mscale));
    TRY(read_optional(r, "mscale_all_dim", &rope->mscale_all_dim));
    TRY(hfconfig_bool_or(r->hf, r->obj, "truncate", true, &rope->truncate, r->err));
    double reach = rope->factor * (double)rope->original_max_position;
    if (reach > (double)c->max_position)
        c->max_position = reach < INT32_MAX ? (int64_t)reach : INT32_MAX;
    return NYB_OK;
}

static enum nyb_code read_scaling(struct model_config *c, const struct reader *r)
{
    struct rope_config *rope = &c->rope;
    TRY(read_type(r, &rope->scaling));
    switch (rope->scaling) {
    case ROPE_PLAIN:
        return NYB_OK;
    case ROPE_LINEAR:
        return read_positive(r, "factor", NAN, &rope->factor);
    case ROPE_LLAMA3:
        return read_llama3(rope, r);
    case ROPE_YARN:
        return read_yarn(c, r);
    }
    return NYB_OK;
}

/* The part of a head that is rotated. A whole head counts as 1. */
static enum nyb_code read_rotary_dim(struct model_config *c, const struct reader *r, double dflt)
{
    double whole = dflt > 0 ? dflt : 1, part;
    struct reader top = *r;
    top.obj = r->hf->root;
    top.name = "config.json";
    TRY(read_positive(&top, "partial_rotary_factor", whole, &part));
    if (r->obj)
        TRY(read_positive(r, "partial_rotary_factor", part, &part));
    if (part > 1 || (dflt <= 0 && part != 1))
        return err_at(r->err, NYB_E_UNSUPPORTED, r->hf->path, -1, "partial_rotary_factor is %g, expected %s",
                      part, dflt > 0 ? "at most 1" : "1 for this architecture");
    c->rope.rotary_dim = (int)((double)c->head_dim * part);
    if (c->rope.rotary_dim < 2 || c->rope.rotary_dim % 2)
        return err_at(r->err, NYB_E_FORMAT, r->hf->path, -1,
                      "%d of %d dimensions of a head are rotated, expected an even number of them",
                      c->rope.rotary_dim, c->head_dim);
    return NYB_OK;
}

/* The object that holds the scaling, if any. */
static enum nyb_code find_object(struct reader *r)
{
    static const char *const key[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < COUNT_OF(key); i++) {
        const json_t *obj = json_object_get(r->hf->root, key[i]);
        if (!obj || json_is_null(obj))
            continue;
        if (!json_is_object(obj))
            return err_at(r->err, NYB_E_FORMAT, r->hf->path, -1, "%s is not an object", key[i]);
        const char *field;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)obj, field, value) if (json_is_object(value)) return err_at(
            r->err, NYB_E_UNSUPPORTED, r->hf->path, -1,
            "%s has an object '%.80s': rotary embedding by layer type is not supported", key[i], field);
        r->obj = obj;
        r->name = key[i];
        return NYB_OK;
    }
    return NYB_OK;
}

enum nyb_code config_read_rope(struct model_config *c, const struct hfconfig *hf,
                               const struct config_defaults *d, struct nyb_err *err)
{
    struct reader r = {.hf = hf, .err = err},
                  top = {.hf = hf, .obj = hf->root, .name = "config.json", .err = err};
    c->rope = (struct rope_config){.style = d->rope_style, .factor = 1};
    TRY(find_object(&r));
    TRY(read_positive(&top, "rope_theta", d->rope_theta, &c->rope.theta));
    if (r.obj) {
        TRY(read_positive(&r, "rope_theta", c->rope.theta, &c->rope.theta));
        TRY(read_scaling(c, &r));
    }
    return read_rotary_dim(c, &r, d->partial_rotary);
}
