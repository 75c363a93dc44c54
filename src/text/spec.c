#include "text/spec.h"

static const char FILE_NAME[] = "tokenizer.json";

static const char *type_of(const json_t *spec)
{
    const char *type = json_string_value(json_object_get(spec, "type"));
    return type ? type : "a component without type";
}

static enum nyb_code wrong(const json_t *spec, const char *field, const char *expected, struct nyb_err *err)
{
    return err_at(err, NYB_E_FORMAT, FILE_NAME, -1, "%s: \"%s\" is not %s", type_of(spec), field, expected);
}

enum nyb_code spec_type(const json_t *spec, const char *kind, const char **type, struct nyb_err *err)
{
    *type = json_string_value(json_object_get(spec, "type"));
    if (!*type)
        return err_at(err, NYB_E_FORMAT, FILE_NAME, -1, "a %s has no \"type\"", kind);
    return NYB_OK;
}

enum nyb_code spec_bool(const json_t *spec, const char *field, bool *out, struct nyb_err *err)
{
    const json_t *value = json_object_get(spec, field);
    if (!value || json_is_null(value))
        return NYB_OK;
    if (!json_is_boolean(value))
        return wrong(spec, field, "true or false", err);
    *out = json_is_true(value);
    return NYB_OK;
}

enum nyb_code spec_size(const json_t *spec, const char *field, size_t *out, struct nyb_err *err)
{
    const json_t *value = json_object_get(spec, field);
    if (!value || json_is_null(value))
        return NYB_OK;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return wrong(spec, field, "a count", err);
    *out = (size_t)json_integer_value(value);
    return NYB_OK;
}

enum nyb_code spec_string(const json_t *spec, const char *field, const char **s, size_t *len,
                          struct nyb_err *err)
{
    const json_t *value = json_object_get(spec, field);
    if (!json_is_string(value))
        return wrong(spec, field, "a string", err);
    *s = json_string_value(value);
    *len = json_string_length(value);
    return NYB_OK;
}

enum nyb_code spec_array(const json_t *spec, const char *field, const json_t **out, struct nyb_err *err)
{
    *out = json_object_get(spec, field);
    if (!json_is_array(*out))
        return wrong(spec, field, "an array", err);
    return NYB_OK;
}

enum nyb_code spec_pattern(const json_t *spec, const char **s, size_t *len, bool *is_regex,
                           struct nyb_err *err)
{
    const json_t *pattern = json_object_get(spec, "pattern");
    const json_t *text = json_object_get(pattern, "String");
    *is_regex = text == NULL;
    if (!text)
        text = json_object_get(pattern, "Regex");
    if (!json_is_string(text))
        return wrong(spec, "pattern", "{\"String\": ...} or {\"Regex\": ...}", err);
    *s = json_string_value(text);
    *len = json_string_length(text);
    return NYB_OK;
}

enum nyb_code spec_unknown(const char *kind, const char *type, struct nyb_err *err)
{
    return err_at(err, NYB_E_UNSUPPORTED, FILE_NAME, -1, "the %s \"%.100s\" is not supported", kind, type);
}
