/* Ernie4_5_MoeForCausalLM. Layer i has experts when it lies within [moe_layer_start_index,
 * moe_layer_end_index] and (i + 1) is a multiple of moe_layer_interval. Softmax, a correction bias for the
 * choice, the chosen weights divided by their sum. Rotation of neighbouring pairs; use_bias puts a bias on
 * every projection. Multimodal configs give several expert fields as lists, the text experts first. Source of
 * facts: transformers models/ernie4_5_moe and models/ernie4_5_vl_moe. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/arch.h"

/* An integer, or the first of a list. */
static enum nyb_code read_first(const struct hfconfig *hf, const char *key, int64_t lo, int64_t hi,
                                int64_t dflt, int *out, struct nyb_err *err)
{
    int64_t *list, value = dflt;
    int n;
    TRY(hfconfig_int_list(hf, hf->root, key, &list, &n, err));
    if (n > 0)
        value = list[0];
    free(list);
    if (value == CONFIG_REQUIRED)
        return err_at(err, NYB_E_FORMAT, hf->path, -1, "has no %s, expected an integer", key);
    if (value < lo || value > hi)
        return err_at(err, NYB_E_FORMAT, hf->path, -1, "%s is %lld, expected an integer from %lld to %lld",
                      key, (long long)value, (long long)lo, (long long)hi);
    *out = (int)value;
    return NYB_OK;
}

static enum nyb_code choose_layers(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    int first, last, interval;
    TRY(read_first(hf, "moe_layer_start_index", 0, INT32_MAX, 1, &first, err));
    TRY(read_first(hf, "moe_layer_end_index", -1, INT32_MAX, -1, &last, err));
    TRY(read_first(hf, "moe_layer_interval", 1, INT32_MAX, 1, &interval, err));
    for (int i = 0; i < c->n_layer; i++)
        c->layer_is_moe[i] = i >= first && (last < 0 || i <= last) && (i + 1) % interval == 0;
    return NYB_OK;
}

static enum nyb_code parse(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    static const struct config_defaults defaults = {
        .tied_head = true, .norm_eps = 1e-5, .rope_theta = 500000, .rope_style = ROPE_INTERLEAVED};
    struct moe_config *m = &c->moe;
    double norm_min;
    TRY(config_read_common(c, hf, &defaults, err));
    TRY(hfconfig_bool_or(hf, hf->root, "use_bias", false, &c->mlp_bias, err));
    TRY(hfconfig_bool_or(hf, hf->root, "moe_use_aux_free", true, &m->has_correction_bias, err));
    TRY(hfconfig_float_or(hf, hf->root, "moe_norm_min", 1e-12, &norm_min, err));
    TRY(read_first(hf, "moe_num_experts", 1, CONFIG_EXPERT_MAX, CONFIG_REQUIRED, &m->n_expert, err));
    TRY(read_first(hf, "moe_k", 1, CONFIG_EXPERT_MAX, CONFIG_REQUIRED, &m->top_k, err));
    TRY(read_first(hf, "moe_intermediate_size", 1, CONFIG_SIZE_MAX / 64, CONFIG_REQUIRED, &m->intermediate,
                   err));
    TRY(read_first(hf, "moe_num_shared_experts", 0, 64, 0, &m->n_shared, err));
    c->qkv_bias = c->o_bias = c->mlp_bias;
    m->shared_intermediate = m->n_shared * m->intermediate;
    m->score = ROUTER_SOFTMAX;
    m->normalize = true;
    m->norm_min = (float)norm_min;
    m->n_group = m->top_group = 1;
    m->scaling = 1;
    return choose_layers(c, hf, err);
}

const struct arch arch_ernie4_5_moe = {
    .model_type = "ernie4_5_moe",
    .class_name = "Ernie4_5_MoeForCausalLM",
    .names = {ARCH_NAMES_COMMON, ARCH_NAMES_DENSE, ARCH_NAMES_EXPERTS, ARCH_NAMES_SHARED,
              .correction_bias = "mlp.moe_statics.e_score_correction_bias"},
    .parse = parse,
};
