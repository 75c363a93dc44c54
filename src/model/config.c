#include "model/config.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "kernels/kv.h"
#include "model/arch.h"

static const struct arch *const arch_table[] = {
#define ARCH(name) &arch_##name,
#include "model/arch.def"
#undef ARCH
};

/* ---- reading fields ------------------------------------------------------------------------------ */

enum nyb_code config_read_ints(const struct hfconfig *hf, const struct config_int *field, size_t n,
                               struct nyb_err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct config_int *f = &field[i];
        int64_t value;
        ASSERT(f->lo >= INT_MIN && f->hi <= INT_MAX);
        if (f->dflt == CONFIG_REQUIRED)
            TRY(hfconfig_int(hf, hf->root, f->key, f->lo, f->hi, &value, err));
        else
            TRY(hfconfig_int_or(hf, hf->root, f->key, f->lo, f->hi, f->dflt, &value, err));
        *f->out = (int)value;
    }
    return NYB_OK;
}

enum nyb_code config_read_bools(const struct hfconfig *hf, const struct config_bool *field, size_t n,
                                struct nyb_err *err)
{
    for (size_t i = 0; i < n; i++)
        TRY(hfconfig_bool_or(hf, hf->root, field[i].key, field[i].dflt, field[i].out, err));
    return NYB_OK;
}

static enum nyb_code read_norm_and_activation(struct model_config *c, const struct hfconfig *hf,
                                              const struct config_defaults *d, struct nyb_err *err)
{
    double eps;
    const char *act;
    TRY(hfconfig_float_or(hf, hf->root, "rms_norm_eps", d->norm_eps, &eps, err));
    if (!(eps >= 0 && eps <= 1))
        return err_at(err, NYB_E_FORMAT, hf->path, -1, "rms_norm_eps is %g, expected a number from 0 to 1",
                      eps);
    c->norm_eps = (float)eps;
    TRY(hfconfig_string_or(hf, hf->root, "hidden_act", "silu", &act, err));
    if (strcmp(act, "silu"))
        return err_at(err, NYB_E_UNSUPPORTED, hf->path, -1, "hidden_act is '%.80s', expected silu", act);
    return hfconfig_bool_or(hf, hf->root, "tie_word_embeddings", d->tied_head, &c->tied_head, err);
}

/* Sizes that must go together. */
static enum nyb_code check_heads(const struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    if (c->n_head % c->n_kv_head)
        return err_at(err, NYB_E_FORMAT, hf->path, -1,
                      "num_attention_heads is %d, expected a multiple of num_key_value_heads, which is %d",
                      c->n_head, c->n_kv_head);
    if (c->head_dim % KV_HEAD_DIM_STEP)
        return err_at(err, NYB_E_UNSUPPORTED, hf->path, -1, "head_dim is %d, expected a multiple of %d",
                      c->head_dim, KV_HEAD_DIM_STEP);
    if ((int64_t)c->n_head * c->head_dim > CONFIG_SIZE_MAX)
        return err_at(err, NYB_E_FORMAT, hf->path, -1, "%d heads of %d are too large together, at most %d",
                      c->n_head, c->head_dim, CONFIG_SIZE_MAX);
    return NYB_OK;
}

enum nyb_code config_read_common(struct model_config *c, const struct hfconfig *hf,
                                 const struct config_defaults *d, struct nyb_err *err)
{
    const struct config_int sizes[] = {
        {"vocab_size", 1, CONFIG_SIZE_MAX, CONFIG_REQUIRED, &c->vocab},
        {"hidden_size", 1, CONFIG_SIZE_MAX, CONFIG_REQUIRED, &c->hidden},
        {"num_hidden_layers", 1, 4096, CONFIG_REQUIRED, &c->n_layer},
        {"num_attention_heads", 1, 4096, CONFIG_REQUIRED, &c->n_head},
        {"intermediate_size", 1, CONFIG_SIZE_MAX, CONFIG_REQUIRED, &c->intermediate},
    };
    TRY(config_read_ints(hf, sizes, COUNT_OF(sizes), err));
    const struct config_int heads[] = {
        {"num_key_value_heads", 1, 4096, c->n_head, &c->n_kv_head},
        {"head_dim", 1, KV_HEAD_DIM_MAX, c->hidden / c->n_head, &c->head_dim},
    };
    TRY(config_read_ints(hf, heads, COUNT_OF(heads), err));
    if (c->head_dim < 1 || c->head_dim > KV_HEAD_DIM_MAX)
        return err_at(err, NYB_E_FORMAT, hf->path, -1,
                      "there is no head_dim, and %d / %d heads is not within 1 to %d", c->hidden, c->n_head,
                      KV_HEAD_DIM_MAX);
    TRY(check_heads(c, hf, err));
    c->attention_scale = 1.0f / sqrtf((float)c->head_dim);
    TRY(read_norm_and_activation(c, hf, d, err));
    TRY(hfconfig_int(hf, hf->root, "max_position_embeddings", 1, INT_MAX, &c->max_position, err));
    c->layer_is_moe = mem_alloc((size_t)c->n_layer, sizeof(bool));
    return config_read_rope(c, hf, d, err);
}

enum nyb_code config_read_window(struct model_config *c, const struct hfconfig *hf, bool in_use,
                                 struct nyb_err *err)
{
    int64_t window;
    TRY(hfconfig_int_or(hf, hf->root, "sliding_window", 0, INT_MAX, 0, &window, err));
    c->sliding_window = in_use ? window : 0;
    return NYB_OK;
}

/* ---- the table ----------------------------------------------------------------------------------- */

static bool architectures_name(const json_t *list, const char *class_name)
{
    size_t i;
    json_t *entry;
    json_array_foreach((json_t *)(uintptr_t)list, i, entry)
    {
        const char *s = json_string_value(entry);
        if (s && !strcmp(s, class_name))
            return true;
    }
    return false;
}

static enum nyb_code refuse_unknown(const struct hfconfig *hf, const char *field, const char *found,
                                    struct nyb_err *err)
{
    struct buf known = {0};
    for (size_t i = 0; i < COUNT_OF(arch_table); i++)
        buf_printf(&known, "%s%s (%s)", i ? ", " : "", arch_table[i]->model_type, arch_table[i]->class_name);
    enum nyb_code code = err_at(err, NYB_E_UNSUPPORTED, hf->path, -1, "%s is '%.100s', supported are %s",
                                field, found, known.data);
    buf_free(&known);
    return code;
}

static enum nyb_code find_arch(const struct arch **out, const struct hfconfig *hf, struct nyb_err *err)
{
    const json_t *list = json_object_get(hf->root, "architectures");
    for (size_t i = 0; i < COUNT_OF(arch_table); i++) {
        const struct arch *a = arch_table[i];
        if (strcmp(a->model_type, hf->model_type))
            continue;
        /* The same decoder below another head (a classifier, a multimodal shell) is another model. */
        if (json_array_size(list) > 0 && !architectures_name(list, a->class_name)) {
            const char *first = json_string_value(json_array_get(list, 0));
            return refuse_unknown(hf, "architectures", first ? first : "not a string", err);
        }
        *out = a;
        return NYB_OK;
    }
    return refuse_unknown(hf, "model_type", hf->model_type, err);
}

static enum nyb_code check_moe(const struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    const struct moe_config *m = &c->moe;
    if (m->top_k > m->n_expert)
        return err_at(err, NYB_E_FORMAT, hf->path, -1, "each token goes to %d experts, but there are only %d",
                      m->top_k, m->n_expert);
    if (m->n_group > 1 && (m->n_expert % m->n_group || m->top_group > m->n_group ||
                           m->top_k > m->top_group * (m->n_expert / m->n_group)))
        return err_at(err, NYB_E_FORMAT, hf->path, -1,
                      "n_group %d, topk_group %d, %d experts and %d for each token do not go together",
                      m->n_group, m->top_group, m->n_expert, m->top_k);
    int64_t n_expert = 0;
    for (int i = 0; i < c->n_layer; i++)
        n_expert += c->layer_is_moe[i] ? m->n_expert : 0;
    if (n_expert > CONFIG_ALL_EXPERT_MAX)
        return err_at(err, NYB_E_UNSUPPORTED, hf->path, -1,
                      "there are %lld experts in all layers, at most %d", (long long)n_expert,
                      CONFIG_ALL_EXPERT_MAX);
    if (!isfinite(m->scaling) || !isfinite(m->norm_min))
        return err_at(err, NYB_E_FORMAT, hf->path, -1, "the scaling of routing weights is not finite");
    return NYB_OK;
}

/* A model none of whose layers is MoE is dense, whatever its expert fields say. */
static void settle_moe(struct model_config *c)
{
    bool any = false;
    for (int i = 0; i < c->n_layer; i++)
        any = any || c->layer_is_moe[i];
    if (!any)
        c->moe = (struct moe_config){0};
}

enum nyb_code model_config_parse(struct model_config *c, const struct hfconfig *hf, struct nyb_err *err)
{
    *c = (struct model_config){0};
    enum nyb_code code = find_arch(&c->arch, hf, err);
    if (code == NYB_OK)
        code = c->arch->parse(c, hf, err);
    if (code == NYB_OK && c->moe.n_expert > 0)
        code = check_moe(c, hf, err);
    if (code != NYB_OK) {
        model_config_free(c);
        return code;
    }
    settle_moe(c);
    c->model_type = mem_strdup(hf->model_type);
    return NYB_OK;
}

void model_config_free(struct model_config *c)
{
    free(c->model_type);
    free(c->layer_is_moe);
    *c = (struct model_config){0};
}
