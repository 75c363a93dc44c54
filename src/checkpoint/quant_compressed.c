/* The compressed-tensors declaration, and the plain `fp8` one that transformers writes. */
#include <string.h>

#include "checkpoint/quant_internal.h"

/* Transforms and 2:4 sparsity change what the stored numbers mean. */
static enum nyb_code check_extras(const json_t *obj, const char *path, struct nyb_err *err)
{
    const char *sparsity;

    if (json_object_size(json_object_get(json_object_get(obj, "transform_config"), "config_groups")) > 0)
        return err_at(err, NYB_E_UNSUPPORTED, path, -1,
                      "transform_config (rotated weights) is not supported");
    TRY(quant_read_text(json_object_get(obj, "sparsity_config"), "format", &sparsity, path, err));
    if (sparsity && strcmp(sparsity, "dense"))
        return err_at(err, NYB_E_UNSUPPORTED, path, -1,
                      "sparsity_config with format '%.100s' is not supported", sparsity);
    return NYB_OK;
}

/* Without groups the format alone says what the weights are: some files have nothing else. */
static enum nyb_code scheme_from_format(struct quant *q, const char *format, const char *path,
                                        struct nyb_err *err)
{
    if (format && !strcmp(format, "nvfp4-pack-quantized"))
        q->scheme = QUANT_NVFP4;
    else if (format && (!strcmp(format, "float-quantized") || !strcmp(format, "naive-quantized")))
        q->scheme = QUANT_FP8;
    else
        return err_at(err, NYB_E_FORMAT, path, -1,
                      "has no config_groups, and its format does not say what they are");
    return NYB_OK;
}

enum nyb_code quant_parse_compressed(struct quant *q, const json_t *obj, const char *path,
                                     struct nyb_err *err)
{
    static const char *const known[] = {"nvfp4-pack-quantized", "mixed-precision", "float-quantized",
                                        "naive-quantized"};
    const char *format;
    size_t i = 0;

    q->form = "compressed-tensors";
    TRY(quant_read_text(obj, "format", &format, path, err));
    while (format && i < sizeof known / sizeof *known && strcmp(format, known[i]))
        i++;
    if (i == sizeof known / sizeof *known)
        return err_at(err, NYB_E_UNSUPPORTED, path, -1,
                      "compressed-tensors format '%.100s' is not supported, expected nvfp4-pack-quantized, "
                      "float-quantized or mixed-precision",
                      format);
    TRY(check_extras(obj, path, err));
    TRY(quant_read_groups(q, json_object_get(obj, "config_groups"), path, err));
    if (q->n_group == 0)
        TRY(scheme_from_format(q, format, path, err));
    else
        q->scheme = q->group[0].scheme;

    bool uniform = true;
    for (int g = 0; g < q->n_group; g++)
        uniform = uniform && q->group[g].scheme == q->scheme;
    q->mixed = q->n_group > 0;
    q->algo = !uniform                   ? "MIXED_PRECISION"
              : q->scheme == QUANT_NVFP4 ? "NVFP4"
              : q->scheme == QUANT_FP8   ? "FP8"
                                         : "none";
    TRY(quant_names_read(&q->exclude, json_object_get(obj, "ignore"), path, "ignore", err));
    return quant_read_kv(q, json_object_get(obj, "kv_cache_scheme"), "kv_cache_scheme", path, err);
}

enum nyb_code quant_parse_fp8(struct quant *q, const json_t *obj, const char *path, struct nyb_err *err)
{
    const json_t *block = json_object_get(obj, "weight_block_size");

    q->form = "fp8";
    q->exclude_parts = true;
    q->algo = "FP8";
    q->scheme = QUANT_FP8;
    if (block && !json_is_null(block))
        return err_at(
            err, NYB_E_UNSUPPORTED, path, -1,
            "weight_block_size: FP8 weights with a scale a block are not supported, expected one a tensor");
    return quant_names_read(&q->exclude, json_object_get(obj, "modules_to_not_convert"), path,
                            "modules_to_not_convert", err);
}
