#include "checkpoint/hfconfig.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

/* "12", "'silu'", "a list", ...: what a message says was found. */
static const char *describe(const json_t *v, char *text, size_t cap)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        snprintf(text, cap, "'%.100s'", json_string_value(v));
        return text;
    case JSON_INTEGER:
        snprintf(text, cap, "%lld", (long long)json_integer_value(v));
        return text;
    case JSON_REAL:
        snprintf(text, cap, "%.17g", json_real_value(v));
        return text;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

static enum nyb_code mismatch(const struct hfconfig *c, const char *key, const json_t *found,
                              const char *expected, struct nyb_err *err)
{
    char text[128];
    return err_at(err, NYB_E_FORMAT, c->path, -1, "%s is %s, expected %s", key,
                  describe(found, text, sizeof text), expected);
}

/* The field, or NULL when it is absent or null. */
static const json_t *field(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return json_is_null(v) ? NULL : v;
}

static enum nyb_code open_root(struct hfconfig *c, const char *folder, const char *name, struct nyb_err *err)
{
    *c = (struct hfconfig){.path = path_join(folder, name)};
    enum nyb_code code = json_read_file(&c->root, c->path, err);
    if (code == NYB_OK && !json_is_object(c->root))
        code = err_at(err, NYB_E_FORMAT, c->path, -1, "is not a JSON object");
    return code;
}

/* Where a file has rope_parameters, they hold more than the scaling that somebody wants another of. */
static void replace_rope(json_t *root, const char *key, json_t *value)
{
    static const char *const kept[] = {"rope_theta", "partial_rotary_factor"};
    const json_t *old = json_object_get(root, "rope_parameters");
    if (!json_is_object(old) || !(json_is_object(value) || json_is_null(value))) {
        json_object_set(root, key, value);
        return;
    }
    json_t *rope = json_is_object(value) ? json_copy(value) : json_object();
    for (size_t i = 0; i < COUNT_OF(kept); i++) {
        json_t *was = json_object_get(old, kept[i]);
        if (was && !json_object_get(rope, kept[i]))
            json_object_set(rope, kept[i], was);
    }
    json_object_set_new(root, "rope_parameters", rope);
}

static enum nyb_code override(json_t *root, const char *text, struct nyb_err *err)
{
    json_error_t why;
    const char *key;
    json_t *value, *all = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(all)) {
        enum nyb_code code =
            err_at(err, NYB_E_ARG, "hf_overrides", -1,
                   "must be a JSON object such as {\"rope_scaling\": {...}}, got \"%.200s\" (%s)", text,
                   all ? "no object" : why.text);
        json_decref(all);
        return code;
    }
    json_object_foreach(all, key, value)
    {
        if (!strcmp(key, "rope_scaling") || !strcmp(key, "rope_parameters"))
            replace_rope(root, key, value);
        else
            json_object_set(root, key, value);
    }
    json_decref(all);
    return NYB_OK;
}

enum nyb_code hfconfig_open(struct hfconfig *c, const char *folder, struct nyb_err *err)
{
    return hfconfig_open_with(c, folder, NULL, err);
}

enum nyb_code hfconfig_open_with(struct hfconfig *c, const char *folder, const char *overrides,
                                 struct nyb_err *err)
{
    enum nyb_code code = open_root(c, folder, "config.json", err);
    if (code == NYB_OK && overrides) {
        c->overrides = mem_strdup(overrides);
        code = override(c->root, overrides, err);
    }
    if (code == NYB_OK)
        code = hfconfig_string_or(c, c->root, "model_type", NULL, &c->model_type, err);
    if (code == NYB_OK && !c->model_type)
        code = err_at(err, NYB_E_FORMAT, c->path, -1, "has no model_type");
    if (code != NYB_OK)
        hfconfig_close(c);
    return code;
}

void hfconfig_close(struct hfconfig *c)
{
    json_decref(c->root);
    free(c->path);
    free(c->overrides);
    *c = (struct hfconfig){0};
}

static enum nyb_code read_int(const struct hfconfig *c, const json_t *v, const char *key, int64_t lo,
                              int64_t hi, int64_t *out, struct nyb_err *err)
{
    char expected[96];
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi) {
        if (hi == INT64_MAX)
            snprintf(expected, sizeof expected, "an integer of at least %lld", (long long)lo);
        else
            snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)lo, (long long)hi);
        return mismatch(c, key, v, expected, err);
    }
    *out = json_integer_value(v);
    return NYB_OK;
}

enum nyb_code hfconfig_int(const struct hfconfig *c, const json_t *obj, const char *key, int64_t lo,
                           int64_t hi, int64_t *out, struct nyb_err *err)
{
    const json_t *v = field(obj, key);
    if (!v)
        return err_at(err, NYB_E_FORMAT, c->path, -1, "has no %s, expected an integer", key);
    return read_int(c, v, key, lo, hi, out, err);
}

enum nyb_code hfconfig_int_or(const struct hfconfig *c, const json_t *obj, const char *key, int64_t lo,
                              int64_t hi, int64_t dflt, int64_t *out, struct nyb_err *err)
{
    const json_t *v = field(obj, key);
    *out = dflt;
    return v ? read_int(c, v, key, lo, hi, out, err) : NYB_OK;
}

enum nyb_code hfconfig_float_or(const struct hfconfig *c, const json_t *obj, const char *key, double dflt,
                                double *out, struct nyb_err *err)
{
    const json_t *v = field(obj, key);
    *out = dflt;
    if (!v)
        return NYB_OK;
    if (!json_is_number(v))
        return mismatch(c, key, v, "a number", err);
    *out = json_number_value(v);
    return NYB_OK;
}

enum nyb_code hfconfig_bool_or(const struct hfconfig *c, const json_t *obj, const char *key, bool dflt,
                               bool *out, struct nyb_err *err)
{
    const json_t *v = field(obj, key);
    *out = dflt;
    if (!v)
        return NYB_OK;
    if (!json_is_boolean(v))
        return mismatch(c, key, v, "true or false", err);
    *out = json_is_true(v);
    return NYB_OK;
}

enum nyb_code hfconfig_string_or(const struct hfconfig *c, const json_t *obj, const char *key,
                                 const char *dflt, const char **out, struct nyb_err *err)
{
    const json_t *v = field(obj, key);
    *out = dflt;
    if (!v)
        return NYB_OK;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return mismatch(c, key, v, "a string", err);
    *out = json_string_value(v);
    return NYB_OK;
}

enum nyb_code hfconfig_int_list(const struct hfconfig *c, const json_t *obj, const char *key, int64_t **list,
                                int *n, struct nyb_err *err)
{
    const json_t *v = field(obj, key);
    size_t count = json_is_array(v) ? json_array_size(v) : 1;

    *list = NULL;
    *n = 0;
    if (!v || count == 0)
        return NYB_OK;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(item))
            return mismatch(c, key, item, "an integer or a list of integers", err);
    }
    if (count > INT_MAX)
        return err_at(err, NYB_E_FORMAT, c->path, -1, "%s has %zu entries, more than can be handled", key,
                      count);
    *list = mem_alloc(count, sizeof **list);
    *n = (int)count;
    for (size_t i = 0; i < count; i++)
        (*list)[i] = json_integer_value(json_is_array(v) ? json_array_get(v, i) : v);
    return NYB_OK;
}

/* Add the ids of `obj` that are not there yet. Negative ones mean "none" in some configs. */
static enum nyb_code add_eos(struct hfconfig_generation *g, const struct hfconfig *c, struct nyb_err *err)
{
    int64_t *id;
    int n;

    TRY(hfconfig_int_list(c, c->root, "eos_token_id", &id, &n, err));
    g->eos = mem_grow(g->eos, (size_t)g->n_eos + (size_t)n + 1, sizeof *g->eos);
    for (int i = 0; i < n; i++) {
        int j = 0;
        while (j < g->n_eos && g->eos[j] != id[i])
            j++;
        if (j == g->n_eos && id[i] >= 0)
            g->eos[g->n_eos++] = id[i];
    }
    free(id);
    return NYB_OK;
}

static enum nyb_code read_number(const struct hfconfig *c, const char *key, double lo, double hi, bool *has,
                                 double *out, struct nyb_err *err)
{
    const json_t *v = field(c->root, key);
    char expected[64];

    *has = v != NULL;
    TRY(hfconfig_float_or(c, c->root, key, 0, out, err));
    if (v && !(*out >= lo && *out <= hi)) {
        snprintf(expected, sizeof expected, "a number from %g to %g", lo, hi);
        return mismatch(c, key, v, expected, err);
    }
    return NYB_OK;
}

static enum nyb_code read_sampling(struct hfconfig_generation *g, const struct hfconfig *c,
                                   struct nyb_err *err)
{
    TRY(read_number(c, "temperature", 0, 100, &g->has_temperature, &g->temperature, err));
    TRY(read_number(c, "top_p", 0, 1, &g->has_top_p, &g->top_p, err));
    TRY(read_number(c, "min_p", 0, 1, &g->has_min_p, &g->min_p, err));
    TRY(read_number(c, "repetition_penalty", 1e-6, 1e6, &g->has_repetition_penalty, &g->repetition_penalty,
                    err));
    g->has_top_k = field(c->root, "top_k") != NULL;
    TRY(hfconfig_int_or(c, c->root, "top_k", -1, INT32_MAX, 0, &g->top_k, err));
    TRY(hfconfig_bool_or(c, c->root, "do_sample", false, &g->do_sample, err));
    return hfconfig_int_or(c, c->root, "bos_token_id", -1, INT32_MAX, g->bos, &g->bos, err);
}

enum nyb_code hfconfig_generation_read(struct hfconfig_generation *g, const struct hfconfig *c,
                                       const char *folder, struct nyb_err *err)
{
    struct hfconfig own = {0};
    char *path = path_join(folder, "generation_config.json");
    bool present = file_exists(path);
    enum nyb_code code;

    free(path);
    *g = (struct hfconfig_generation){.bos = -1};
    code = hfconfig_int_or(c, c->root, "bos_token_id", -1, INT32_MAX, -1, &g->bos, err);
    if (code == NYB_OK && present)
        code = open_root(&own, folder, "generation_config.json", err);
    if (code == NYB_OK && present)
        code = read_sampling(g, &own, err);
    if (code == NYB_OK && present)
        code = add_eos(g, &own, err);
    if (code == NYB_OK)
        code = add_eos(g, c, err);
    hfconfig_close(&own);
    if (code != NYB_OK)
        hfconfig_generation_free(g);
    return code;
}

void hfconfig_generation_free(struct hfconfig_generation *g)
{
    free(g->eos);
    *g = (struct hfconfig_generation){.bos = -1};
}
