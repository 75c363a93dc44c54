/* Schemas that hold together ($ref with neighbours, allOf, cases with neighbours), made into one. What cannot
 * be said by one schema is refused. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_schema.h"

#define FLATTEN_MAX 16 /* $ref and allOf within one another */

/* ---- pointers -------------------------------------------------------------------------------------- */

/* The part of a pointer up to the next slash, with ~1 and ~0 undone; the caller frees it. */
static char *next_part(const char **at)
{
    size_t n = strcspn(*at, "/"), k = 0;
    char *part = mem_strndup(*at, n);
    for (size_t i = 0; i < n; i++) {
        bool escape = part[i] == '~' && (part[i + 1] == '0' || part[i + 1] == '1');
        part[k++] = escape ? (part[++i] == '0' ? '~' : '/') : part[i];
    }
    part[k] = 0;
    *at += n + ((*at)[n] == '/');
    return part;
}

static const json_t *member(const json_t *v, const char *part)
{
    if (json_is_object(v))
        return json_object_get(v, part);
    char *end;
    unsigned long i = strtoul(part, &end, 10);
    return json_is_array(v) && *part && !*end ? json_array_get(v, i) : NULL;
}

enum nyb_code schema_resolve(struct schema *s, const char *pointer, const json_t **out)
{
    const char *at = pointer;
    const json_t *v = s->root;
    if (*at++ != '#' || (*at && *at != '/'))
        return schema_refuse(s, "$ref", "only references within the schema, \"#/...\", are");
    for (at += *at == '/'; *at && v;) {
        char *part = next_part(&at);
        v = member(v, part);
        free(part);
    }
    *out = v;
    return v ? NYB_OK
             : err_at(s->err, NYB_E_ARG, "", -1, "the JSON schema's $ref \"%.200s\" at %.300s leads nowhere",
                      pointer, s->path.data ? s->path.data : "");
}

/* ---- merging ---------------------------------------------------------------------------------------- */

static enum nyb_code conflict(struct schema *s, const char *keyword)
{
    return schema_refuse(s, keyword,
                         "with different values in schemas that are to hold together (allOf, or "
                         "beside $ref, anyOf or oneOf)");
}

static enum nyb_code merge_types(struct schema *s, const json_t *a, const json_t *b, json_t **out)
{
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"null", SCHEMA_NULL},       {"boolean", SCHEMA_BOOLEAN}, {"number", SCHEMA_NUMBER},
                 {"integer", SCHEMA_INTEGER}, {"string", SCHEMA_STRING},   {"array", SCHEMA_ARRAY},
                 {"object", SCHEMA_OBJECT}};
    unsigned x, y;
    TRY(schema_types(s, a, &x));
    TRY(schema_types(s, b, &y));
    *out = json_array();
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (x & y & names[i].type)
            json_array_append_new(*out, json_string(names[i].name));
    if (json_array_size(*out) > 0)
        return NYB_OK;
    json_decref(*out);
    return conflict(s, "type");
}

/* The stricter of two bounds. */
static bool merge_bound(const char *key, const json_t *a, const json_t *b, json_t **out)
{
    static const char *const low[] = {"minimum", "exclusiveMinimum", "minLength", "minItems"};
    static const char *const high[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems"};
    if (!json_is_number(a) || !json_is_number(b))
        return false;
    bool a_less = json_number_value(a) < json_number_value(b);
    for (size_t i = 0; i < COUNT_OF(low); i++) {
        if (!strcmp(key, low[i]))
            *out = json_incref((json_t *)(uintptr_t)(a_less ? b : a));
        if (!strcmp(key, high[i]))
            *out = json_incref((json_t *)(uintptr_t)(a_less ? a : b));
    }
    return *out != NULL;
}

static json_t *merge_required(const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)(uintptr_t)a), *item;
    size_t i;
    json_array_foreach(b, i, item) json_array_append(all, item);
    return all;
}

/* A property that both have must satisfy both. */
static json_t *merge_properties(const json_t *a, const json_t *b)
{
    json_t *all = json_copy((json_t *)(uintptr_t)a), *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        json_t *other = json_object_get(all, key);
        if (!other)
            json_object_set(all, key, value);
        else if (!json_equal(other, value))
            json_object_set_new(all, key, json_pack("{s:[O,O]}", "allOf", other, value));
    }
    return all;
}

static json_t *merge_enum(const json_t *a, const json_t *b)
{
    json_t *both = json_array(), *x, *y;
    size_t i, k;
    json_array_foreach(a, i, x)
    {
        bool found = false;
        json_array_foreach(b, k, y) found = found || json_equal(x, y);
        if (found)
            json_array_append(both, x);
    }
    return both;
}

/* Closed objects: what one side does not list, the other must not add. */
static enum nyb_code check_closed(struct schema *s, const json_t *a, const json_t *b)
{
    const json_t *closed = json_object_get(a, "additionalProperties");
    const char *key;
    json_t *value;
    if (!closed || json_is_true(closed))
        return NYB_OK;
    json_object_foreach(json_object_get(b, "properties"), key, value)
    {
        if (!json_object_get(json_object_get(a, "properties"), key))
            return conflict(s, "additionalProperties");
    }
    return NYB_OK;
}

static enum nyb_code merge_keyword(struct schema *s, const char *key, const json_t *a, const json_t *b,
                                   json_t **out)
{
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
    *out = NULL;
    if (!x || json_equal(x, y) || schema_is_annotation(key))
        *out = json_incref((json_t *)(uintptr_t)y);
    else if (!strcmp(key, "type"))
        return merge_types(s, a, b, out);
    else if (!strcmp(key, "required") && json_is_array(x) && json_is_array(y))
        *out = merge_required(x, y);
    else if (!strcmp(key, "properties") && json_is_object(x) && json_is_object(y))
        *out = merge_properties(x, y);
    else if (!strcmp(key, "enum") && json_is_array(x) && json_is_array(y))
        *out = merge_enum(x, y);
    else if (!strcmp(key, "additionalProperties") && json_is_true(x))
        *out = json_incref((json_t *)(uintptr_t)y);
    else if (!strcmp(key, "additionalProperties") && json_is_true(y))
        *out = json_incref((json_t *)(uintptr_t)x);
    else if (!merge_bound(key, x, y, out))
        return conflict(s, key);
    return NYB_OK;
}

/* Flat ones. */
static enum nyb_code merge_flat(struct schema *s, const json_t *a, const json_t *b, json_t **out)
{
    const char *key;
    json_t *value;
    TRY(check_closed(s, a, b));
    TRY(check_closed(s, b, a));
    json_t *all = json_copy((json_t *)(uintptr_t)a);
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        json_t *merged;
        enum nyb_code code = merge_keyword(s, key, a, b, &merged);
        if (code != NYB_OK) {
            json_decref(all);
            return code;
        }
        json_object_set_new(all, key, merged);
    }
    *out = all;
    return NYB_OK;
}

/* *all, which is given up, becomes what it and the schema say together. */
static enum nyb_code merge_into(struct schema *s, json_t **all, const json_t *schema, int depth)
{
    json_t *flat = NULL, *merged = NULL;
    enum nyb_code code = schema_flatten(s, schema, depth + 1, &flat);
    if (code == NYB_OK)
        code = merge_flat(s, *all, flat, &merged);
    json_decref(flat);
    json_decref(*all);
    *all = merged;
    return code;
}

enum nyb_code schema_flatten(struct schema *s, const json_t *schema, int depth, json_t **out)
{
    const json_t *target, *list = json_object_get(schema, "allOf"), *ref = json_object_get(schema, "$ref");
    *out = NULL;
    if (json_is_true(schema)) {
        *out = json_object();
        return NYB_OK;
    }
    if (!json_is_object(schema))
        return schema_refuse(s, "allOf", "with something else than objects");
    if (depth > FLATTEN_MAX)
        return err_at(s->err, NYB_E_RANGE, "", -1,
                      "the JSON schema's allOf and $ref at %.300s lead to one another more than %d times",
                      s->path.data ? s->path.data : "", FLATTEN_MAX);
    if (list && !json_is_array(list))
        return schema_wrong(s, "allOf", "a list of schemas");
    if (ref && !json_is_string(ref))
        return schema_wrong(s, "$ref", "a string");
    json_t *all = json_copy((json_t *)(uintptr_t)schema);
    json_object_del(all, "allOf");
    json_object_del(all, "$ref");
    enum nyb_code code = NYB_OK;
    if (ref)
        code = schema_resolve(s, json_string_value(ref), &target);
    if (ref && code == NYB_OK)
        code = merge_into(s, &all, target, depth);
    for (size_t i = 0; i < json_array_size(list) && code == NYB_OK; i++)
        code = merge_into(s, &all, json_array_get(list, i), depth);
    if (code != NYB_OK)
        json_decref(all);
    else
        *out = all;
    return code;
}

enum nyb_code schema_merge(struct schema *s, const json_t *a, const json_t *b, json_t **out)
{
    *out = NULL;
    json_t *all = NULL;
    TRY(schema_flatten(s, a, 0, &all));
    enum nyb_code code = merge_into(s, &all, b, 0);
    if (code == NYB_OK)
        *out = all;
    return code;
}

/* ---- apart ------------------------------------------------------------------------------------------ */

/* The values that a flat schema lists, a new array; NULL: it lists none. */
static json_t *listed_values(const json_t *schema)
{
    json_t *list = json_object_get(schema, "enum"), *constant = json_object_get(schema, "const");
    return constant ? json_pack("[O]", constant) : json_is_array(list) ? json_incref(list) : NULL;
}

static bool no_common_value(const json_t *a, const json_t *b)
{
    json_t *x = listed_values(a), *y = listed_values(b);
    json_t *common = x && y ? merge_enum(x, y) : NULL;
    bool none = common && json_array_size(common) == 0;
    json_decref(common);
    json_decref(x);
    json_decref(y);
    return none;
}

static bool is_required(const json_t *schema, const char *name)
{
    json_t *item;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, item)
    {
        if (json_is_string(item) && !strcmp(json_string_value(item), name))
            return true;
    }
    return false;
}

static enum nyb_code apart(struct schema *s, const json_t *a, const json_t *b, bool *out)
{
    const char *key;
    json_t *value, *p = NULL, *q = NULL;
    unsigned x, y;
    TRY(schema_types(s, a, &x));
    TRY(schema_types(s, b, &y));
    *out = (json_object_get(a, "type") && json_object_get(b, "type") && !(x & y)) || no_common_value(a, b);
    bool objects = x == SCHEMA_OBJECT && y == SCHEMA_OBJECT;
    json_object_foreach(json_object_get(a, "properties"), key, value)
    {
        const json_t *other = json_object_get(json_object_get(b, "properties"), key);
        if (*out || !objects || !other || !is_required(a, key) || !is_required(b, key))
            continue;
        enum nyb_code code = schema_flatten(s, value, 0, &p);
        if (code == NYB_OK)
            code = schema_flatten(s, other, 0, &q);
        *out = code == NYB_OK && no_common_value(p, q);
        json_decref(p);
        json_decref(q);
        p = q = NULL;
        TRY(code);
    }
    return NYB_OK;
}

enum nyb_code schema_disjoint(struct schema *s, const json_t *a, const json_t *b, bool *out)
{
    json_t *x = NULL, *y = NULL;
    enum nyb_code code = schema_flatten(s, a, 0, &x);
    if (code == NYB_OK)
        code = schema_flatten(s, b, 0, &y);
    if (code == NYB_OK)
        code = apart(s, x, y, out);
    json_decref(x);
    json_decref(y);
    return code;
}
