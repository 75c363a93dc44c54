/* MixtralForCausalLM: every layer has experts, w1 gates, w3 goes up, w2 goes down. Softmax over the chosen
 * logits. Source of facts: transformers models/mixtral. */
#include "base/mem.h"
#include "model/arch.h"

static enum nyb_code parse(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    static const struct config_defaults defaults = {
        .norm_eps = 1e-5, .rope_theta = 1e6, .rope_style = ROPE_HALF};
    struct moe_config *m = &c->moe;
    const struct config_int sizes[] = {
        {"num_local_experts", 1, CONFIG_EXPERT_MAX, CONFIG_REQUIRED, &m->n_expert},
        {"num_experts_per_tok", 1, CONFIG_EXPERT_MAX, CONFIG_REQUIRED, &m->top_k},
    };
    TRY(config_read_common(c, hf, &defaults, err));
    TRY(config_read_ints(hf, sizes, COUNT_OF(sizes), err));
    m->intermediate = c->intermediate;
    m->score = ROUTER_SOFTMAX;
    m->softmax_topk = true;
    m->n_group = m->top_group = 1;
    m->scaling = 1;
    for (int i = 0; i < c->n_layer; i++)
        c->layer_is_moe[i] = true;
    return config_read_window(c, hf, true, err);
}

const struct arch arch_mixtral = {
    .model_type = "mixtral",
    .class_name = "MixtralForCausalLM",
    .names = {ARCH_NAMES_COMMON, .router = "block_sparse_moe.gate",
              .expert_gate = "block_sparse_moe.experts.*.w1", .expert_up = "block_sparse_moe.experts.*.w3",
              .expert_down = "block_sparse_moe.experts.*.w2"},
    .parse = parse,
};
