/* LlamaForCausalLM. Biases, where a config asks for them, are on all of q, k, v, o and on all of gate, up,
 * down. Source of facts: transformers models/llama. */
#include "base/mem.h"
#include "model/arch.h"

static enum nyb_code parse(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    static const struct config_defaults defaults = {
        .norm_eps = 1e-6, .rope_theta = 10000, .rope_style = ROPE_HALF};
    bool bias;
    const struct config_bool flags[] = {{"attention_bias", false, &bias}, {"mlp_bias", false, &c->mlp_bias}};
    TRY(config_read_common(c, hf, &defaults, err));
    TRY(config_read_bools(hf, flags, COUNT_OF(flags), err));
    c->qkv_bias = c->o_bias = bias;
    return NYB_OK;
}

const struct arch arch_llama = {
    .model_type = "llama",
    .class_name = "LlamaForCausalLM",
    .names = {ARCH_NAMES_COMMON, ARCH_NAMES_DENSE},
    .parse = parse,
};
