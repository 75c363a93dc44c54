/* NVIDIA ModelOpt's declaration: `quantization` of hf_quant_config.json, or quantization_config of
 * config.json, which nests the same facts a little differently. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/quant_internal.h"

#define MAX_LAYER (1 << 22)

static int by_module(const void *a, const void *b)
{
    const struct quant_layer *x = a, *y = b;
    return strcmp(x->module, y->module);
}

static enum nyb_code read_layers(struct quant *q, const json_t *layers, const char *path, struct nyb_err *err)
{
    const char *module, *algo;
    json_t *entry;

    if (!json_is_object(layers) || json_object_size(layers) > MAX_LAYER)
        return err_at(err, NYB_E_FORMAT, path, -1, "quantized_layers is not an object of at most %d modules",
                      MAX_LAYER);
    q->layer = mem_alloc(json_object_size(layers) + 1, sizeof *q->layer);
    json_object_foreach((json_t *)(uintptr_t)layers, module, entry)
    {
        enum quant_scheme scheme = QUANT_NONE;
        if (!json_is_object(entry))
            return err_at(err, NYB_E_FORMAT, path, -1, "quantized_layers: '%.200s' is not an object", module);
        TRY(quant_read_text(entry, "quant_algo", &algo, path, err));
        if (algo)
            TRY(quant_algo_find(&scheme, algo, module, path, err));
        if (scheme == QUANT_NVFP4)
            TRY(quant_check_group_size(entry, module, path, err));
        q->layer[q->n_layer++] = (struct quant_layer){mem_strdup(module), scheme};
    }
    qsort(q->layer, (size_t)q->n_layer, sizeof *q->layer, by_module);
    return NYB_OK;
}

static enum nyb_code parse_mixed(struct quant *q, const json_t *obj, const char *path, struct nyb_err *err)
{
    const json_t *layers = json_object_get(obj, "quantized_layers");

    q->algo = "MIXED_PRECISION";
    q->mixed = true;
    if (layers && !json_is_null(layers))
        return read_layers(q, layers, path, err);
    TRY(quant_read_groups(q, json_object_get(obj, "config_groups"), path, err));
    if (q->n_group == 0)
        return err_at(
            err, NYB_E_FORMAT, path, -1,
            "quant_algo is MIXED_PRECISION, but there are neither quantized_layers nor config_groups");
    return NYB_OK;
}

/* One algorithm for all modules. The groups, if any, must describe the same one. */
static enum nyb_code parse_uniform(struct quant *q, const json_t *obj, const char *algo, const char *path,
                                   struct nyb_err *err)
{
    bool has_algo = json_object_get(obj, "quant_algo") != NULL; /* null: only the KV cache */

    if (algo) /* before the groups, so that an algorithm that is refused is named */
        TRY(quant_algo_find(&q->scheme, algo, NULL, path, err));
    TRY(quant_read_groups(q, json_object_get(obj, "config_groups"), path, err));
    if (!algo && q->n_group > 0)
        q->scheme = q->group[0].scheme;
    else if (!has_algo)
        return err_at(err, NYB_E_FORMAT, path, -1, "has neither quant_algo nor config_groups");

    q->algo = q->scheme == QUANT_NVFP4 ? "NVFP4" : q->scheme == QUANT_FP8 ? "FP8" : "none";
    for (int i = 0; i < q->n_group; i++) {
        if (algo && q->group[i].scheme != QUANT_NONE && q->group[i].scheme != q->scheme)
            return err_at(err, NYB_E_FORMAT, path, -1,
                          "quant_algo is %.60s, but config_groups describe other weights", algo);
        if (!algo && q->group[i].scheme != q->scheme)
            q->mixed = true;
    }
    return q->scheme == QUANT_NVFP4 ? quant_check_group_size(obj, "the quantization", path, err) : NYB_OK;
}

/* Before 0.39 a plain exclude was meant to match anywhere in a module's name. */
static bool is_before_0_39(const json_t *producer)
{
    const char *version = json_string_value(json_object_get(producer, "version"));
    int major, minor;
    return version && sscanf(version, "%d.%d", &major, &minor) == 2 && major == 0 && minor < 39;
}

enum nyb_code quant_parse_modelopt(struct quant *q, const json_t *obj, const json_t *producer,
                                   const char *path, struct nyb_err *err)
{
    const char *algo;

    q->form = "modelopt";
    q->exclude_parts = is_before_0_39(producer);
    TRY(quant_read_text(obj, "quant_algo", &algo, path, err));
    if (algo && !strcasecmp(algo, "MIXED_PRECISION"))
        TRY(parse_mixed(q, obj, path, err));
    else
        TRY(parse_uniform(q, obj, algo, path, err));

    const char *key = json_object_get(obj, "exclude_modules") ? "exclude_modules" : "ignore";
    TRY(quant_names_read(&q->exclude, json_object_get(obj, key), path, key, err));
    key = json_object_get(obj, "kv_cache_quant_algo") ? "kv_cache_quant_algo" : "kv_cache_scheme";
    return quant_read_kv(q, json_object_get(obj, key), key, path, err);
}
