/* Qwen3MoeForCausalLM. Layer i has experts when (i + 1) is a multiple of decoder_sparse_step and i is not in
 * mlp_only_layers. Softmax over all experts; the chosen weights are divided by their sum when norm_topk_prob
 * says so (the class default is not to). Source of facts: transformers models/qwen3_moe. */
#include <stdlib.h>

#include "base/mem.h"
#include "model/arch.h"

static enum nyb_code choose_layers(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    int64_t step, *dense;
    int n_dense;
    TRY(hfconfig_int_or(hf, hf->root, "decoder_sparse_step", 1, INT32_MAX, 1, &step, err));
    TRY(hfconfig_int_list(hf, hf->root, "mlp_only_layers", &dense, &n_dense, err));
    for (int i = 0; i < c->n_layer; i++)
        c->layer_is_moe[i] = (i + 1) % step == 0;
    for (int i = 0; i < n_dense; i++)
        if (dense[i] >= 0 && dense[i] < c->n_layer)
            c->layer_is_moe[dense[i]] = false;
    free(dense);
    return NYB_OK;
}

static enum nyb_code parse(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    static const struct config_defaults defaults = {
        .norm_eps = 1e-6, .rope_theta = 10000, .rope_style = ROPE_HALF};
    struct moe_config *m = &c->moe;
    bool bias, window;
    const struct config_bool flags[] = {{"attention_bias", false, &bias},
                                        {"use_sliding_window", false, &window},
                                        {"norm_topk_prob", false, &m->normalize}};
    const struct config_int sizes[] = {
        {"num_experts", 1, CONFIG_EXPERT_MAX, CONFIG_REQUIRED, &m->n_expert},
        {"num_experts_per_tok", 1, CONFIG_EXPERT_MAX, CONFIG_REQUIRED, &m->top_k},
        {"moe_intermediate_size", 1, CONFIG_SIZE_MAX, CONFIG_REQUIRED, &m->intermediate},
    };
    TRY(config_read_common(c, hf, &defaults, err));
    TRY(config_read_bools(hf, flags, COUNT_OF(flags), err));
    TRY(config_read_ints(hf, sizes, COUNT_OF(sizes), err));
    c->qkv_bias = c->o_bias = bias;
    c->qk_norm = true;
    m->score = ROUTER_SOFTMAX;
    m->n_group = m->top_group = 1;
    m->scaling = 1;
    TRY(config_read_window(c, hf, window, err));
    return choose_layers(c, hf, err);
}

const struct arch arch_qwen3_moe = {
    .model_type = "qwen3_moe",
    .class_name = "Qwen3MoeForCausalLM",
    .names = {ARCH_NAMES_COMMON, ARCH_NAMES_QK_NORM, ARCH_NAMES_DENSE, ARCH_NAMES_EXPERTS},
    .parse = parse,
};
