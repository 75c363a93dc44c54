/* The parts that ModelOpt's and compressed-tensors' declarations have in common. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/quant_internal.h"

#define MAX_GROUP 4096

enum nyb_code quant_read_text(const json_t *obj, const char *key, const char **out, const char *path,
                              struct nyb_err *err)
{
    const json_t *v = json_object_get(obj, key);

    *out = NULL;
    if (!v || json_is_null(v))
        return NYB_OK;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return err_at(err, NYB_E_FORMAT, path, -1, "%s is not a string", key);
    *out = json_string_value(v);
    return NYB_OK;
}

enum nyb_code quant_algo_find(enum quant_scheme *scheme, const char *algo, const char *module,
                              const char *path, struct nyb_err *err)
{
    static const struct {
        const char *name;
        enum quant_scheme scheme;
    } table[] = {
#define ROW(spelling, value) {spelling, value},
#include "checkpoint/quant_scheme.def"
#undef ROW
    };

    for (size_t i = 0; i < COUNT_OF(table); i++) {
        if (!strcasecmp(algo, table[i].name)) {
            *scheme = table[i].scheme;
            return NYB_OK;
        }
    }
    return err_at(
        err, NYB_E_UNSUPPORTED, path, -1,
        "quantization algorithm '%.100s'%s%.200s is not supported, expected NVFP4, W4A16_NVFP4, FP8 or "
        "MIXED_PRECISION of these",
        algo, module ? " of module " : "", module ? module : "");
}

enum nyb_code quant_check_group_size(const json_t *obj, const char *where, const char *path,
                                     struct nyb_err *err)
{
    const json_t *v = json_object_get(obj, "group_size");

    if (!v || json_is_null(v))
        return NYB_OK;
    if (!json_is_integer(v))
        return err_at(err, NYB_E_FORMAT, path, -1, "group_size of %.200s is not an integer", where);
    if (json_integer_value(v) != QUANT_GROUP)
        return err_at(err, NYB_E_UNSUPPORTED, path, -1, "group_size of %.200s is %lld, expected %d for NVFP4",
                      where, (long long)json_integer_value(v), QUANT_GROUP);
    return NYB_OK;
}

/* num_bits and type of a weights or input_activations object; 0 and "" when they are not there. */
static void read_number_format(const json_t *obj, long long *bits, const char **type)
{
    const char *text = json_string_value(json_object_get(obj, "type"));
    *bits = json_integer_value(json_object_get(obj, "num_bits"));
    *type = text ? text : "";
}

static enum nyb_code read_weights(enum quant_scheme *scheme, const json_t *weights, const char *group,
                                  const char *path, struct nyb_err *err)
{
    long long bits;
    const char *type, *strategy;

    *scheme = QUANT_NONE;
    if (!weights || json_is_null(weights))
        return NYB_OK;
    if (!json_is_object(weights))
        return err_at(err, NYB_E_FORMAT, path, -1, "weights of config group %.100s is not an object", group);
    read_number_format(weights, &bits, &type);
    TRY(quant_read_text(weights, "strategy", &strategy, path, err));

    if (bits == 4 && !strcmp(type, "float")) {
        if (strategy && strcmp(strategy, "tensor_group"))
            return err_at(
                err, NYB_E_UNSUPPORTED, path, -1,
                "config group %.100s has 4-bit float weights with strategy '%.60s', expected tensor_group",
                group, strategy);
        *scheme = QUANT_NVFP4;
        return quant_check_group_size(weights, group, path, err);
    }
    if (bits == 8 && !strcmp(type, "float")) {
        if (strategy && strcmp(strategy, "tensor"))
            return err_at(
                err, NYB_E_UNSUPPORTED, path, -1,
                "config group %.100s has FP8 weights with strategy '%.60s', expected one scale a tensor",
                group, strategy);
        const json_t *size = json_object_get(weights, "group_size");
        if (size && !json_is_null(size))
            return err_at(
                err, NYB_E_UNSUPPORTED, path, -1,
                "config group %.100s has FP8 weights with a scale a group, expected one scale a tensor",
                group);
        *scheme = QUANT_FP8;
        return NYB_OK;
    }
    return err_at(
        err, NYB_E_UNSUPPORTED, path, -1,
        "config group %.100s has %lld-bit '%.40s' weights, expected NVFP4 (4-bit float) or FP8 (8-bit "
        "float)",
        group, bits, type);
}

/* Activations are quantized like the weights, or not at all. */
static enum nyb_code check_activations(enum quant_scheme scheme, const json_t *activations, const char *group,
                                       const char *path, struct nyb_err *err)
{
    long long bits;
    const char *type;

    if (!activations || json_is_null(activations))
        return NYB_OK;
    read_number_format(activations, &bits, &type);
    if (!strcmp(type, "float") && bits == (scheme == QUANT_NVFP4 ? 4 : 8))
        return NYB_OK;
    return err_at(
        err, NYB_E_UNSUPPORTED, path, -1,
        "config group %.100s has %lld-bit '%.40s' input activations, expected none or those of its weights",
        group, bits, type);
}

static enum nyb_code check_group_format(const json_t *entry, const char *group, const char *path,
                                        struct nyb_err *err)
{
    static const char *const known[] = {"nvfp4-pack-quantized", "float-quantized", "naive-quantized",
                                        "mixed-precision", "dense"};
    const char *format;

    TRY(quant_read_text(entry, "format", &format, path, err));
    for (size_t i = 0; format && i < COUNT_OF(known); i++)
        if (!strcmp(format, known[i]))
            return NYB_OK;
    if (!format)
        return NYB_OK;
    return err_at(err, NYB_E_UNSUPPORTED, path, -1,
                  "config group %.100s has format '%.100s', which is not supported", group, format);
}

enum nyb_code quant_read_groups(struct quant *q, const json_t *groups, const char *path, struct nyb_err *err)
{
    const char *name;
    json_t *entry;

    if (!groups || json_is_null(groups))
        return NYB_OK;
    if (!json_is_object(groups) || json_object_size(groups) > MAX_GROUP)
        return err_at(err, NYB_E_FORMAT, path, -1, "config_groups is not an object of at most %d groups",
                      MAX_GROUP);
    q->group = mem_alloc(json_object_size(groups) + 1, sizeof *q->group);
    json_object_foreach((json_t *)(uintptr_t)groups, name, entry)
    {
        if (!json_is_object(entry))
            return err_at(err, NYB_E_FORMAT, path, -1, "config group %.100s is not an object", name);
        struct quant_group *g = &q->group[q->n_group];
        TRY(check_group_format(entry, name, path, err));
        TRY(read_weights(&g->scheme, json_object_get(entry, "weights"), name, path, err));
        TRY(check_activations(g->scheme, json_object_get(entry, "input_activations"), name, path, err));
        TRY(quant_names_read(&g->targets, json_object_get(entry, "targets"), path, "targets", err));
        if (!json_object_get(entry, "targets"))
            g->targets.every_linear = true;
        q->n_group++;
    }
    return NYB_OK;
}

enum nyb_code quant_read_kv(struct quant *q, const json_t *kv, const char *key, const char *path,
                            struct nyb_err *err)
{
    long long bits;
    const char *type;

    if (!kv || json_is_null(kv))
        return NYB_OK;
    if (json_is_string(kv)) {
        q->kv = mem_printf("%.40s", json_string_value(kv));
        for (char *c = q->kv; *c; c++)
            *c = (char)toupper((unsigned char)*c);
    } else if (json_is_object(kv)) {
        read_number_format(kv, &bits, &type);
        q->kv = bits == 8 && !strcmp(type, "float") ? mem_strdup("FP8")
                                                    : mem_printf("%lld-bit %.20s", bits, type);
    } else {
        return err_at(err, NYB_E_FORMAT, path, -1, "%s is neither a name nor an object", key);
    }
    q->kv_fp8 = !strcmp(q->kv, "FP8");
    return NYB_OK;
}
