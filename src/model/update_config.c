/* Whether a new config.json describes the model that is served. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "model/arch.h"
#include "model/update_internal.h"

enum field_kind { FIELD_INT, FIELD_INT64, FIELD_BOOL, FIELD_FLOAT, FIELD_DOUBLE };

struct field {
    const char *name;
    size_t offset; /* in struct model_config */
    enum field_kind kind;
};

/* clang-format off */
#define FIELD(kind, member) {#member, offsetof(struct model_config, member), FIELD_##kind}
static const struct field field[] = {
    FIELD(INT, vocab), FIELD(INT, hidden), FIELD(INT, n_layer), FIELD(INT, n_head), FIELD(INT, n_kv_head),
    FIELD(INT, head_dim), FIELD(INT, intermediate), FIELD(INT64, max_position), FIELD(FLOAT, norm_eps),
    FIELD(BOOL, tied_head), FIELD(BOOL, qkv_bias), FIELD(BOOL, o_bias), FIELD(BOOL, mlp_bias),
    FIELD(BOOL, qk_norm), FIELD(FLOAT, attention_scale), FIELD(INT64, sliding_window),
    FIELD(DOUBLE, rope.theta), FIELD(INT, rope.style), FIELD(INT, rope.rotary_dim), FIELD(INT, rope.scaling),
    FIELD(DOUBLE, rope.factor), FIELD(DOUBLE, rope.low_freq_factor), FIELD(DOUBLE, rope.high_freq_factor),
    FIELD(DOUBLE, rope.beta_fast), FIELD(DOUBLE, rope.beta_slow), FIELD(DOUBLE, rope.attention_factor),
    FIELD(DOUBLE, rope.mscale), FIELD(DOUBLE, rope.mscale_all_dim), FIELD(BOOL, rope.truncate),
    FIELD(INT64, rope.original_max_position),
    FIELD(INT, moe.n_expert), FIELD(INT, moe.top_k), FIELD(INT, moe.intermediate), FIELD(INT, moe.n_shared),
    FIELD(INT, moe.shared_intermediate), FIELD(INT, moe.score), FIELD(BOOL, moe.has_correction_bias),
    FIELD(INT, moe.n_group), FIELD(INT, moe.top_group), FIELD(BOOL, moe.normalize),
    FIELD(BOOL, moe.softmax_topk), FIELD(BOOL, moe.norm_add), FIELD(FLOAT, moe.norm_min),
    FIELD(FLOAT, moe.scaling),
};
#undef FIELD
/* clang-format on */

static double value_of(const struct model_config *c, const struct field *f)
{
    const char *at = (const char *)c + f->offset;
    int i;
    int64_t wide;
    bool b;
    float x;
    double d;
    switch (f->kind) {
    case FIELD_INT:
        memcpy(&i, at, sizeof(i));
        return i;
    case FIELD_INT64: /* lengths: far below 2^53 */
        memcpy(&wide, at, sizeof(wide));
        return (double)wide;
    case FIELD_BOOL:
        memcpy(&b, at, sizeof(b));
        return b;
    case FIELD_FLOAT:
        memcpy(&x, at, sizeof(x));
        return (double)x;
    default:
        memcpy(&d, at, sizeof(d));
        return d;
    }
}

static bool same(double a, double b)
{
    return !(a < b) && !(a > b) && isnan(a) == isnan(b);
}

static void compare_fields(struct update *u, const struct model_config *old, const struct model_config *new)
{
    for (size_t i = 0; i < sizeof(field) / sizeof(field[0]); i++) {
        double was = value_of(old, &field[i]), is = value_of(new, &field[i]);
        if (!same(was, is))
            update_differs(u, "config.json: %s is %.9g, the served model has %.9g", field[i].name, is, was);
    }
    for (int i = 0; i < old->n_layer && old->n_layer == new->n_layer; i++)
        if (old->layer_is_moe[i] != new->layer_is_moe[i]) {
            update_differs(u, "config.json: layer %d is %s, in the served model it is %s", i,
                           new->layer_is_moe[i] ? "a mixture of experts" : "dense",
                           old->layer_is_moe[i] ? "a mixture of experts" : "dense");
            return; /* the others mostly follow */
        }
}

static bool has_id(const struct hfconfig_generation *g, int64_t id)
{
    for (int i = 0; i < g->n_eos; i++)
        if (g->eos[i] == id)
            return true;
    return false;
}

/* Requests have been told when to end: a served model does not learn new ends. */
static enum nyb_code compare_eos(struct update *u, struct nyb_err *err)
{
    struct hfconfig_generation new;
    TRY(hfconfig_generation_read(&new, &u->hf, u->o.folder, err));
    const struct hfconfig_generation *old = &u->m->generation;
    bool equal = true;
    for (int i = 0; i < new.n_eos; i++)
        equal = equal && has_id(old, new.eos[i]);
    for (int i = 0; i < old->n_eos; i++)
        equal = equal && has_id(&new, old->eos[i]);
    if (!equal)
        update_differs(u, "eos_token_id: %d ids, not the %d that the served model has", new.n_eos,
                       old->n_eos);
    hfconfig_generation_free(&new);
    return NYB_OK;
}

enum nyb_code update_check_config(struct update *u, struct nyb_err *err)
{
    /* Parsed anew: the model's own has its context cut to what is served. */
    struct model_config old = {0}, new = {0};
    enum nyb_code code = model_config_parse(&old, &u->m->hf, err);
    if (code == NYB_OK)
        code = model_config_parse(&new, &u->hf, err);
    if (code == NYB_OK && strcmp(old.model_type, new.model_type))
        update_differs(u, "config.json: model_type is \"%s\", the served model is \"%s\"", new.model_type,
                       old.model_type);
    else if (code == NYB_OK)
        compare_fields(u, &old, &new);
    model_config_free(&old);
    model_config_free(&new);
    return code == NYB_OK ? compare_eos(u, err) : code;
}
