/* An architecture: how its config.json becomes a struct model_config, and what its tensors are called.
 * Nothing outside src/model/arch/ knows one family from another. */
#ifndef NYB_MODEL_ARCH_H
#define NYB_MODEL_ARCH_H

#include "model/config.h"

/* Names of modules (a linear layer, without ".weight") and of vectors (a whole tensor name). In `layer` the
 * star stands for the layer's number; names below it are within a layer; in expert_* the star stands for the
 * expert's number. */
struct arch_names {
    const char *embed, *final_norm, *head, *layer;
    const char *attention_norm, *mlp_norm;
    const char *q, *k, *v, *o, *q_norm, *k_norm;
    const char *gate, *up, *down; /* dense MLP */
    const char *router, *correction_bias;
    const char *expert_gate, *expert_up, *expert_down;
    const char *shared_gate, *shared_up, *shared_down;
};

/* What most families call their tensors; a family overrides what differs. */
#define ARCH_NAMES_COMMON                                                                            \
    .embed = "model.embed_tokens", .final_norm = "model.norm.weight", .head = "lm_head",             \
    .layer = "model.layers.*.", .attention_norm = "input_layernorm.weight",                          \
    .mlp_norm = "post_attention_layernorm.weight", .q = "self_attn.q_proj", .k = "self_attn.k_proj", \
    .v = "self_attn.v_proj", .o = "self_attn.o_proj"
#define ARCH_NAMES_DENSE   .gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"
#define ARCH_NAMES_QK_NORM .q_norm = "self_attn.q_norm.weight", .k_norm = "self_attn.k_norm.weight"
#define ARCH_NAMES_EXPERTS                                                                                \
    .router = "mlp.gate", .expert_gate = "mlp.experts.*.gate_proj", .expert_up = "mlp.experts.*.up_proj", \
    .expert_down = "mlp.experts.*.down_proj"
#define ARCH_NAMES_SHARED                                                                     \
    .shared_gate = "mlp.shared_experts.gate_proj", .shared_up = "mlp.shared_experts.up_proj", \
    .shared_down = "mlp.shared_experts.down_proj"

struct arch {
    const char *model_type; /* in config.json                             */
    const char *class_name; /* the entry of "architectures" that it means */
    struct arch_names names;
    /* Fills what config_read_common does not know. c->arch is set. */
    enum nyb_code (*parse)(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err);
};

#define ARCH(name) extern const struct arch arch_##name;
#include "model/arch.def"
#undef ARCH

/* ---- helpers for parse functions (config.c, config_rope.c) --------------------------------------- */

#define CONFIG_REQUIRED INT64_MIN /* as a default: the field must be there */

struct config_int {
    const char *key;
    int64_t lo, hi, dflt;
    int *out;
};
struct config_bool {
    const char *key;
    bool dflt, *out;
};
enum nyb_code config_read_ints(const struct hfconfig *hf, const struct config_int *field, size_t n,
                               struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code config_read_bools(const struct hfconfig *hf, const struct config_bool *field, size_t n,
                                struct nyb_err *err) NYB_MUST_CHECK;

/* Defaults of a family's configuration class, for fields that a config.json may leave out. */
struct config_defaults {
    bool tied_head;
    double norm_eps, rope_theta;
    enum rope_style rope_style;
    double partial_rotary; /* 0: the family always rotates whole heads */
};

/* Sizes, norm, activation, head and rope: the fields that all families spell alike. */
enum nyb_code config_read_common(struct model_config *c, const struct hfconfig *hf,
                                 const struct config_defaults *d, struct nyb_err *err) NYB_MUST_CHECK;
/* rope_theta with rope_scaling, or rope_parameters; max_position follows where the scaling stretches it. */
enum nyb_code config_read_rope(struct model_config *c, const struct hfconfig *hf,
                               const struct config_defaults *d, struct nyb_err *err) NYB_MUST_CHECK;
/* sliding_window into c->sliding_window; ignored when `in_use` is false. */
enum nyb_code config_read_window(struct model_config *c, const struct hfconfig *hf, bool in_use,
                                 struct nyb_err *err) NYB_MUST_CHECK;

#define CONFIG_EXPERT_MAX     4096      /* the router's bound */
#define CONFIG_ALL_EXPERT_MAX (1 << 19) /* of a model: each costs bookkeeping before anything is read */
#define CONFIG_SIZE_MAX       (1 << 22) /* features of any layer, and rows of the vocabulary */

#endif
