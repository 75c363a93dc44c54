/* Glm4MoeForCausalLM (GLM-4.5, GLM-4.5-Air). The first layers are dense; experts are chosen by sigmoid plus a
 * correction bias, within the best groups; attention_bias means q, k and v only; part of each head is
 * rotated. The layer after the last one is a multi-token predictor, which greedy and sampled decoding do not
 * need. Source of facts: transformers models/glm4_moe. */
#include "base/mem.h"
#include "model/arch.h"

static enum nyb_code read_moe(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    struct moe_config *m = &c->moe;
    double scaling;
    int first;
    const struct config_int sizes[] = {
        {"n_routed_experts", 1, CONFIG_EXPERT_MAX, CONFIG_REQUIRED, &m->n_expert},
        {"num_experts_per_tok", 1, CONFIG_EXPERT_MAX, CONFIG_REQUIRED, &m->top_k},
        {"moe_intermediate_size", 1, CONFIG_SIZE_MAX / 64, CONFIG_REQUIRED, &m->intermediate},
        {"n_shared_experts", 0, 64, 1, &m->n_shared},
        {"n_group", 1, CONFIG_EXPERT_MAX, 1, &m->n_group},
        {"topk_group", 1, CONFIG_EXPERT_MAX, 1, &m->top_group},
        {"first_k_dense_replace", 0, INT32_MAX, 1, &first},
    };
    TRY(config_read_ints(hf, sizes, COUNT_OF(sizes), err));
    TRY(hfconfig_bool_or(hf, hf->root, "norm_topk_prob", true, &m->normalize, err));
    TRY(hfconfig_float_or(hf, hf->root, "routed_scaling_factor", 1, &scaling, err));
    m->shared_intermediate = m->n_shared * m->intermediate;
    m->score = ROUTER_SIGMOID;
    m->has_correction_bias = true;
    m->norm_add = true;
    m->norm_min = 1e-20f;
    m->scaling = (float)scaling;
    for (int i = 0; i < c->n_layer; i++)
        c->layer_is_moe[i] = i >= first;
    return NYB_OK;
}

static enum nyb_code parse(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    static const struct config_defaults defaults = {
        .norm_eps = 1e-5, .rope_theta = 10000, .rope_style = ROPE_HALF, .partial_rotary = 0.5};
    const struct config_bool flags[] = {{"attention_bias", false, &c->qkv_bias},
                                        {"use_qk_norm", false, &c->qk_norm}};
    TRY(config_read_common(c, hf, &defaults, err));
    TRY(config_read_bools(hf, flags, COUNT_OF(flags), err));
    return read_moe(c, hf, err);
}

const struct arch arch_glm4_moe = {
    .model_type = "glm4_moe",
    .class_name = "Glm4MoeForCausalLM",
    .names = {ARCH_NAMES_COMMON, ARCH_NAMES_QK_NORM, ARCH_NAMES_DENSE, ARCH_NAMES_EXPERTS, ARCH_NAMES_SHARED,
              .correction_bias = "mlp.gate.e_score_correction_bias"},
    .parse = parse,
};
