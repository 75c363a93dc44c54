/* What an architecture file makes of config.json: one normal form for every family. */
#ifndef NYB_MODEL_CONFIG_H
#define NYB_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/hfconfig.h"
#include "kernels/kernels.h"
#include "model/shard.h"

enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct rope_config {
    double theta;
    enum rope_style style;
    int rotary_dim; /* of head_dim; the rest passes through */
    enum rope_scaling scaling;
    double factor;
    double low_freq_factor, high_freq_factor;      /* llama3 */
    double beta_fast, beta_slow, attention_factor; /* yarn; attention_factor 0: from factor */
    double mscale, mscale_all_dim;                 /* yarn, DeepSeek's spelling; 0: absent  */
    bool truncate;                                 /* yarn: round the correction range      */
    int64_t original_max_position;
};

struct arch;

struct moe_config {
    int n_expert, top_k, intermediate;
    int n_shared;            /* shared experts; their intermediate sizes are fused into one */
    int shared_intermediate; /* 0: none */
    enum router_score score;
    bool has_correction_bias;
    int n_group, top_group;
    bool normalize, softmax_topk, norm_add;
    float norm_min, scaling;
};

struct model_config {
    const struct arch *arch;
    char *model_type;
    int vocab, hidden, n_layer, n_head, n_kv_head, head_dim;
    int intermediate;     /* of dense layers */
    int64_t max_position; /* tokens of the longest sequence; YaRN's stretch included */
    float norm_eps;
    bool tied_head, qkv_bias, o_bias, mlp_bias, qk_norm;
    struct rope_config rope;
    struct moe_config moe; /* n_expert 0: dense model */
    bool *layer_is_moe;    /* (n_layer) */
    float attention_scale;
    int64_t sliding_window; /* keys that a token sees; 0: all before it */
    struct shard shard;     /* of this rank; the sizes above are the whole model's */
};

/* Find the architecture's row and let it read config.json. Unknown architectures are an error that lists the
 * known ones. */
enum nyb_code model_config_parse(struct model_config *c, const struct hfconfig *hf,
                                 struct nyb_err *err) NYB_MUST_CHECK;
void model_config_free(struct model_config *c);

#endif
