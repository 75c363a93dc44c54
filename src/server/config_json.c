/* Settings that others take as one JSON object. */
#include <jansson.h>
#include <stdio.h>

#include "server/config.h"

/* As it would be written for the part alone. False: a list or an object, or longer than any value is. */
static bool write_value(const json_t *value, char *text, size_t cap)
{
    int n = -1;
    if (json_is_integer(value))
        n = snprintf(text, cap, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        n = snprintf(text, cap, "%.17g", json_real_value(value));
    else if (json_is_boolean(value))
        n = snprintf(text, cap, "%s", json_is_true(value) ? "true" : "false");
    else if (json_is_string(value))
        n = snprintf(text, cap, "%s", json_string_value(value));
    return n >= 0 && (size_t)n < cap;
}

static enum nyb_code set_part(struct serve_config *c, const char *name, const char *part, const json_t *value,
                              const char *where, struct nyb_err *err)
{
    char full[64], text[256];
    if (json_is_null(value)) /* the default */
        return NYB_OK;
    if (snprintf(full, sizeof(full), "%s.%s", name, part) >= (int)sizeof(full) || !config_is_known(full))
        return err_at(err, NYB_E_ARG, where, -1, "%s has no part \"%.100s\" here", name, part);
    if (!write_value(value, text, sizeof(text)))
        return err_at(err, NYB_E_ARG, where, -1, "%s must be a number, a short string, true or false", full);
    return config_set(c, full, text, where, err);
}

enum nyb_code config_json_read(struct serve_config *c, const char *name, const char *text, const char *where,
                               struct nyb_err *err)
{
    const char *part;
    json_t *value, *all = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    enum nyb_code code = NYB_OK;
    if (!json_is_object(all))
        code = err_at(err, NYB_E_ARG, where, -1,
                      "%s must be a JSON object of its parts and their values, got \"%.200s\"", name, text);
    json_object_foreach(all, part, value)
    {
        if (code == NYB_OK)
            code = set_part(c, name, part, value, where, err);
    }
    json_decref(all);
    return code;
}
