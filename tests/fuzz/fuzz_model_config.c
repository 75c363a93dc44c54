/* config.json from a stranger: every architecture's reading of it. What passes must be within the bounds that
 * the rest of the model relies on. */
#include "model/arch.h"

#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[] = "config.json";
    struct hfconfig hf = {.path = path};
    struct model_config c;
    if (json_parse(&hf.root, (const char *)data, size, path, NULL) != NYB_OK)
        return 0;
    hf.model_type = json_string_value(json_object_get(hf.root, "model_type"));
    if (json_is_object(hf.root) && hf.model_type && model_config_parse(&c, &hf, NULL) == NYB_OK) {
        ASSERT(c.hidden > 0 && c.vocab > 0 && c.n_layer > 0 && c.max_position > 0);
        ASSERT(c.n_head % c.n_kv_head == 0 && c.n_head * c.head_dim <= CONFIG_SIZE_MAX);
        ASSERT(c.rope.rotary_dim >= 2 && c.rope.rotary_dim % 2 == 0 && c.rope.rotary_dim <= c.head_dim);
        ASSERT(c.moe.n_expert <= CONFIG_EXPERT_MAX && c.moe.top_k <= c.moe.n_expert);
        ASSERT(c.moe.shared_intermediate <= CONFIG_SIZE_MAX);
        ASSERT(c.moe.n_expert == 0 || c.moe.n_group >= 1);
        model_config_free(&c);
    }
    json_decref(hf.root);
    return 0;
}
