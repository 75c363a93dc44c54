/* Qwen3ForCausalLM, dense: RMSNorm on each head of q and k before the rotation. Source of facts: transformers
 * models/qwen3. */
#include "base/mem.h"
#include "model/arch.h"

static enum nyb_code parse(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    static const struct config_defaults defaults = {
        .norm_eps = 1e-6, .rope_theta = 10000, .rope_style = ROPE_HALF};
    bool bias, window;
    const struct config_bool flags[] = {{"attention_bias", false, &bias},
                                        {"use_sliding_window", false, &window}};
    TRY(config_read_common(c, hf, &defaults, err));
    TRY(config_read_bools(hf, flags, COUNT_OF(flags), err));
    c->qkv_bias = c->o_bias = bias;
    c->qk_norm = true;
    /* Only layers from max_window_layers on have the window. */
    int64_t first;
    TRY(hfconfig_int_or(hf, hf->root, "max_window_layers", 0, INT32_MAX, 0, &first, err));
    return config_read_window(c, hf, window && first < c->n_layer, err);
}

const struct arch arch_qwen3 = {
    .model_type = "qwen3",
    .class_name = "Qwen3ForCausalLM",
    .names = {ARCH_NAMES_COMMON, ARCH_NAMES_QK_NORM, ARCH_NAMES_DENSE},
    .parse = parse,
};
