/* The weights of a model, as the layers see them. */
#ifndef NYB_MODEL_WEIGHTS_H
#define NYB_MODEL_WEIGHTS_H

#include "model/config.h"
#include "model/slots.h"

struct linear {
    struct weight w;
    float *bias;    /* (n) or NULL */
    bool adds_bias; /* of the ranks whose products are added up, one: the first that has inputs of this layer
                     */
};

struct mlp {
    struct linear gate, up, down;
};

struct layer_weights {
    float *attention_norm, *mlp_norm; /* (hidden)           */
    float *q_norm, *k_norm;           /* (head_dim) or NULL */
    struct linear q, k, v, o;
    struct mlp mlp;         /* of a dense layer; of a MoE layer the shared experts, w.n 0: none */
    struct weight router;   /* (n_expert, hidden)  */
    float *correction_bias; /* (n_expert) or NULL  */
    /* (n_expert) or NULL. Under expert parallelism (ep.h) what this rank has, in the order of its slots, from
     * 0 on; the rest is empty. */
    struct mlp *expert;
    /* Under expert parallelism: where expert[0]'s parameters are among the slots, how many each expert has,
     * and what those of every expert are called (n_expert, expert_parts). */
    int expert_slot, expert_parts;
    const char **expert_name;
    float k_scale, v_scale; /* of an FP8 KV cache  */
};

struct weights {
    struct weight embed, head;   /* (vocab, hidden)                                        */
    bool head_is_embed;          /* tied: `head` is a copy of the struct, over the same data */
    float *final_norm;           /* (hidden)                                                */
    struct layer_weights *layer; /* (n_layer)                                               */
    int n_layer;
    struct slots slots;
};

/* Whether the file (NULL: none) holds a head, whatever the configuration says about tying. */
bool weights_own_head(const struct model_config *c, const struct ckpt *ckpt);
/* Declare every parameter that the configuration implies. */
void weights_declare(struct weights *w, const struct model_config *c, bool own_head);
/* After the slots are reserved and typed: what refers to another slot's data. */
void weights_link(struct weights *w, const struct model_config *c);
void weights_free(struct weights *w);

/* Scales of an FP8 KV cache into k and v (n_layer), in all the spellings that occur; left alone where the
 * file has none, or none that `wanted` (NULL: all are) accepts by name. */
enum nyb_code weights_read_kv_scales(float *k, float *v, const struct model_config *c, struct ckpt *ckpt,
                                     bool (*wanted)(const void *arg, const char *tensor), const void *arg,
                                     struct nyb_err *err) NYB_MUST_CHECK;

#endif
