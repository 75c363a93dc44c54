#include "checkpoint/quant.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/quant_internal.h"

static enum nyb_code parse_config(struct quant *q, const json_t *obj, struct nyb_err *err)
{
    static const char path[] = "quantization_config of config.json";
    const char *method, *format, *algo;

    if (!json_is_object(obj))
        return err_at(err, NYB_E_FORMAT, path, -1, "is not an object");
    TRY(quant_read_text(obj, "quant_method", &method, path, err));
    TRY(quant_read_text(obj, "format", &format, path, err));
    TRY(quant_read_text(obj, "quant_algo", &algo, path, err));
    if (!method)
        method = algo || json_object_get(obj, "quantization") ? "modelopt"
                 : format                                     ? "compressed-tensors"
                                                              : NULL;

    if (!method)
        return err_at(err, NYB_E_FORMAT, path, -1, "has no quant_method");
    if (!strncasecmp(method, "modelopt", 8)) { /* also modelopt_fp4 and the like */
        const json_t *nested = json_object_get(obj, "quantization");
        return quant_parse_modelopt(q, json_is_object(nested) ? nested : obj,
                                    json_object_get(obj, "producer"), path, err);
    }
    if (!strcasecmp(method, "compressed-tensors"))
        return quant_parse_compressed(q, obj, path, err);
    if (!strcasecmp(method, "fp8"))
        return quant_parse_fp8(q, obj, path, err);
    return err_at(err, NYB_E_UNSUPPORTED, path, -1,
                  "quant_method '%.100s' is not supported, expected modelopt, compressed-tensors or fp8",
                  method);
}

static enum nyb_code parse_file(struct quant *q, const char *path, struct nyb_err *err)
{
    json_t *root;
    enum nyb_code code;

    TRY(json_read_file(&root, path, err));
    const json_t *obj = json_object_get(root, "quantization");
    if (!obj)
        obj = root; /* some copies are flat */
    if (!json_is_object(obj))
        code = err_at(err, NYB_E_FORMAT, path, -1, "has no object named quantization");
    else
        code = quant_parse_modelopt(q, obj, json_object_get(root, "producer"), path, err);
    json_decref(root);
    return code;
}

/* Two declarations of one checkpoint: kinds of weights must agree. Lists of modules may differ, there the
 * tensors decide. */
static enum nyb_code check_agreement(const struct quant *a, const struct quant *b, const char *path,
                                     struct nyb_err *err)
{
    if (!strcmp(a->algo, b->algo) || !strcmp(a->algo, "MIXED_PRECISION") ||
        !strcmp(b->algo, "MIXED_PRECISION"))
        return NYB_OK;
    return err_at(err, NYB_E_FORMAT, path, -1,
                  "declares %s, but quantization_config of config.json declares %s", b->algo, a->algo);
}

static char *describe(const struct quant *q)
{
    struct buf text = {0};

    if (!q->form)
        return mem_strdup("not quantized");
    buf_printf(&text, "%s (%s)", q->algo, q->form);
    if (q->mixed || q->scheme == QUANT_NVFP4)
        buf_printf(&text, ", group %d", QUANT_GROUP);
    if (q->kv)
        buf_printf(&text, ", KV %s", q->kv);
    return buf_steal(&text);
}

static struct quant *make_quant(void)
{
    struct quant *q = mem_alloc(1, sizeof *q);
    q->tally = mem_alloc(1, sizeof *q->tally);
    q->algo = "none";
    return q;
}

enum nyb_code quant_parse(struct quant **out, const json_t *config, const char *folder, struct nyb_err *err)
{
    const json_t *obj = json_object_get(config, "quantization_config");
    char *path = folder ? path_join(folder, "hf_quant_config.json") : NULL;
    bool has_config = obj && !json_is_null(obj), has_file = path && file_exists(path);
    struct quant *q = make_quant(), *second = NULL;
    enum nyb_code code = NYB_OK;

    *out = NULL;
    if (has_config)
        code = parse_config(q, obj, err);
    if (code == NYB_OK && has_file) {
        second = has_config ? make_quant() : q;
        code = parse_file(second, path, err);
    }
    if (code == NYB_OK && has_config && has_file)
        code = check_agreement(q, second, path, err);
    if (code == NYB_OK && has_config && has_file && !q->kv) { /* only the file tells about the cache */
        q->kv = second->kv;
        q->kv_fp8 = second->kv_fp8;
        second->kv = NULL;
    }
    if (second != q)
        quant_free(second);
    free(path);
    if (code != NYB_OK) {
        quant_free(q);
        return code;
    }
    q->description = describe(q);
    *out = q;
    return NYB_OK;
}

void quant_free(struct quant *q)
{
    if (!q)
        return;
    quant_log_differences(q);
    for (int i = 0; i < q->n_group; i++)
        quant_names_free(&q->group[i].targets);
    for (int i = 0; i < q->n_layer; i++)
        free(q->layer[i].module);
    quant_names_free(&q->exclude);
    free(q->group);
    free(q->layer);
    free(q->kv);
    free(q->description);
    free(q->tally);
    free(q);
}

const char *quant_describe(const struct quant *q)
{
    return q->description;
}

bool quant_kv_is_fp8(const struct quant *q)
{
    return q->kv_fp8;
}

void quant_log_differences(const struct quant *q)
{
    int n = atomic_load(&q->tally->n);
    if (n > 0 && !atomic_exchange(&q->tally->logged, true))
        log_info("%d module%s not stored as declared, the stored form is used; for example %s", n,
                 n == 1 ? " is" : "s are", q->tally->example);
}

static int compare_module(const void *key, const void *entry)
{
    return strcmp(key, ((const struct quant_layer *)entry)->module);
}

/* The module itself, or the nearest parent that is listed. */
static enum quant_scheme scheme_from_layers(const struct quant *q, const char *module)
{
    enum quant_scheme scheme = QUANT_NONE;
    char *name = mem_strdup(module), *dot;

    do {
        const struct quant_layer *hit =
            bsearch(name, q->layer, (size_t)q->n_layer, sizeof *q->layer, compare_module);
        if (hit) {
            scheme = hit->scheme;
            break;
        }
        dot = strrchr(name, '.');
        if (dot)
            *dot = 0;
    } while (dot);
    free(name);
    return scheme;
}

/* An exact target wins over a pattern, a pattern over the class name. */
static enum quant_scheme scheme_from_groups(const struct quant *q, const char *module)
{
    for (int i = 0; i < q->n_group; i++)
        if (quant_names_has_exact(&q->group[i].targets, module))
            return q->group[i].scheme;
    for (int i = 0; i < q->n_group; i++)
        if (quant_names_has_pattern(&q->group[i].targets, module))
            return q->group[i].scheme;
    for (int i = 0; i < q->n_group; i++)
        if (q->group[i].targets.every_linear)
            return q->group[i].scheme;
    return QUANT_NONE;
}

/* Embeddings are no linear layers: a declaration means them only where it names them. */
static bool is_embedding(const char *module)
{
    const char *dot = strrchr(module, '.');
    return !strncmp(dot ? dot + 1 : module, "embed", 5);
}

enum quant_scheme quant_scheme_of(const struct quant *q, const char *module)
{
    if (is_embedding(module) && q->n_layer == 0)
        return QUANT_NONE;
    if (quant_names_has(&q->exclude, module) ||
        (q->exclude_parts && quant_names_has_part(&q->exclude, module)))
        return QUANT_NONE;
    if (!q->mixed)
        return q->scheme;
    return q->n_layer > 0 ? scheme_from_layers(q, module) : scheme_from_groups(q, module);
}
