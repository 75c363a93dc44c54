/* How a checkpoint says that it is quantized, and what one linear layer really is.
 *
 * Read from quantization_config in config.json (ModelOpt's flat form, compressed-tensors) and from
 * hf_quant_config.json. The declaration only tells what to expect: the dtype that a tensor really has
 * wins, and the difference is logged once. Formats: docs/CHECKPOINTS.md. */
#ifndef NYB_CHECKPOINT_QUANT_H
#define NYB_CHECKPOINT_QUANT_H

#include "checkpoint/checkpoint.h"

struct quant; /* parsed declaration of one checkpoint */

/* config: the parsed config.json. folder: where hf_quant_config.json may lie (NULL: none). */
enum nyb_code quant_parse(struct quant **out, const json_t *config, const char *folder,
                          struct nyb_err *err) NYB_MUST_CHECK;
void quant_free(struct quant *q);
const char *quant_describe(const struct quant *q); /* "NVFP4 (modelopt), group 16, KV FP8" */
bool quant_kv_is_fp8(const struct quant *q);       /* the file declares an FP8 KV cache     */

/* The declared scheme of a module ("model.layers.0.mlp.experts.3.up_proj"): what a dummy checkpoint makes. */
enum quant_scheme { QUANT_NONE, QUANT_NVFP4, QUANT_FP8 };
enum quant_scheme quant_scheme_of(const struct quant *q, const char *module);

/* One linear layer as it lies in the file. */
enum linear_kind { LINEAR_NVFP4, LINEAR_FP8, LINEAR_BF16, LINEAR_F16, LINEAR_F32 };
struct linear_source {
    enum linear_kind kind;
    int64_t n, k;                     /* out features, in features */
    const struct ckpt_tensor *weight; /* (n, k), or packed codes (n, k/2) */
    const struct ckpt_tensor *scale;  /* NVFP4: e4m3 (n, k/16); else NULL */
    float global_scale; /* multiplier: ModelOpt's weight_scale_2, 1 / compressed-tensors' global;
                           FP8: weight_scale; else 1 */
    float input_scale;  /* multiplier; 0 when the file has none (or a useless one) */
};

/* Find and check everything of `module` (its name without ".weight"); n and k are what the model expects.
 * Marks the tensors used. Errors name the tensor, its shape and the expected one. */
enum nyb_code quant_linear(const struct quant *q, struct ckpt *c, const char *module, int64_t n, int64_t k,
                           struct linear_source *out, struct nyb_err *err) NYB_MUST_CHECK;

/* Log the modules that were not stored as declared: one line with their number and an example. The second
 * call says nothing, and quant_free logs what nobody asked for. */
void quant_log_differences(const struct quant *q);

#endif
