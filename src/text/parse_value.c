#include "text/parse_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "text/parse_json.h"
#include "text/parse_syntax.h"

#define SCHEMA_DEPTH 4 /* of nested anyOf */

enum {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_OBJECT = 16,
    TYPE_ARRAY = 32,
    TYPE_STRING = 64,
};

static const struct {
    const char *name;
    unsigned type;
} types[] = {
    {"null", TYPE_NULL},   {"boolean", TYPE_BOOLEAN}, {"bool", TYPE_BOOLEAN}, {"integer", TYPE_INTEGER},
    {"int", TYPE_INTEGER}, {"number", TYPE_NUMBER},   {"float", TYPE_NUMBER}, {"object", TYPE_OBJECT},
    {"dict", TYPE_OBJECT}, {"array", TYPE_ARRAY},     {"list", TYPE_ARRAY},   {"string", TYPE_STRING},
    {"str", TYPE_STRING},
};

const json_t *parse_value_properties(const json_t *tools, const char *function, size_t len)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const json_t *f =
            json_object_get(tool, "function"); /* Responses API: the fields without the wrapper */
        const json_t *fields = f ? f : tool;
        const json_t *name = json_object_get(fields, "name");
        if (json_is_string(name) && json_string_length(name) == len &&
            !memcmp(json_string_value(name), function, len))
            return json_object_get(json_object_get(fields, "parameters"), "properties");
    }
    return NULL;
}

const json_t *parse_value_schema(const json_t *properties, const char *key, size_t len)
{
    char *name = mem_strndup(key, len);
    const json_t *schema = strlen(name) == len ? json_object_get(properties, name) : NULL;
    free(name);
    return schema;
}

static unsigned type_of_name(const char *name)
{
    for (size_t i = 0; name && i < COUNT_OF(types); i++)
        if (!strcmp(types[i].name, name))
            return types[i].type;
    return 0;
}

static unsigned type_of_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return TYPE_NUMBER;
    case JSON_OBJECT:
        return TYPE_OBJECT;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    default:
        return TYPE_STRING;
    }
}

/* The types that a schema allows, as bits; 0 when it does not say. */
static unsigned allowed(const json_t *schema, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *type = json_object_get(schema, "type");
    unsigned mask = type_of_name(json_string_value(type));
    size_t i;
    json_t *item;
    json_array_foreach(type, i, item) mask |= type_of_name(json_string_value(item));
    for (size_t u = 0; u < COUNT_OF(unions) && depth < SCHEMA_DEPTH; u++)
        json_array_foreach(json_object_get(schema, unions[u]), i, item) mask |= allowed(item, depth + 1);
    if (mask == 0)
        json_array_foreach(json_object_get(schema, "enum"), i, item) mask |= type_of_value(item);
    if (mask == 0 && json_object_get(schema, "$ref"))
        mask = TYPE_OBJECT | TYPE_ARRAY | TYPE_STRING;
    if (json_is_true(json_object_get(schema, "nullable")))
        mask |= TYPE_NULL;
    return mask;
}

static bool is_word(const char *text, size_t len, const char *word)
{
    return len == strlen(word) && !strncasecmp(text, word, len);
}

static bool is_integer(const char *text, size_t len)
{
    size_t digits = strspn(text, "-0123456789");
    return digits == len && parse_json_valid(text, len);
}

/* What Python's float reads and JSON does not write: .5, 1., +2 */
static bool add_number(struct buf *out, const char *text, size_t len)
{
    char *end;
    if ((text[0] == '-' || (text[0] >= '0' && text[0] <= '9')) && parse_json_valid(text, len)) {
        buf_add(out, text, len);
        return true;
    }
    if (strspn(text, "+-.0123456789eE") != len)
        return false;
    double x = strtod(text, &end);
    if (end != text + len || !isfinite(x))
        return false;
    json_add_double(out, x);
    return true;
}

/* text is NUL-terminated and has no white space around it. */
static bool add_typed(struct buf *out, const char *text, size_t len, unsigned mask)
{
    if ((mask & TYPE_NULL) && is_word(text, len, "null")) {
        buf_add_str(out, "null");
        return true;
    }
    if ((mask & TYPE_BOOLEAN) && (is_word(text, len, "true") || is_word(text, len, "false"))) {
        buf_add_str(out, len == 4 ? "true" : "false"); /* Python writes True */
        return true;
    }
    if ((mask & (TYPE_INTEGER | TYPE_NUMBER)) && is_integer(text, len)) {
        buf_add(out, text, len);
        return true;
    }
    if ((mask & TYPE_NUMBER) && len > 0 && add_number(out, text, len))
        return true;
    if (((mask & TYPE_OBJECT) && text[0] == '{') || ((mask & TYPE_ARRAY) && text[0] == '[')) {
        if (!parse_json_valid(text, len))
            return false;
        buf_add(out, text, len);
        return true;
    }
    return false;
}

void parse_value_add(struct buf *out, const char *text, size_t len, const json_t *schema, bool guess)
{
    unsigned mask = schema ? allowed(schema, 0) : 0;
    size_t from = 0, to = len;
    while (from < to && parse_is_space(text[from]))
        from++;
    while (to > from && parse_is_space(text[to - 1]))
        to--;
    if (mask == 0 && guess && parse_json_valid(text + from, to - from)) {
        buf_add(out, text + from, to - from);
        return;
    }
    /* A type that is no string makes null thinkable; where strings are allowed "null" is one unless named. */
    if (mask && !(mask & TYPE_STRING))
        mask |= TYPE_NULL;
    char *bare = mem_strndup(text + from, to - from);
    bool done = add_typed(out, bare, to - from, mask);
    free(bare);
    if (!done)
        json_add_string(out, text, len);
}
