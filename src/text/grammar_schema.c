#include "text/grammar_schema.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* What says nothing about the value. */
/* clang-format off */
static const char *const annotations[] = {
    "title", "description", "default", "examples", "example", "$schema",
    "$id", "$comment", "deprecated", "readOnly", "writeOnly", "$defs",
    "definitions", "id", "$anchor", "strict", "discriminator", "contentMediaType",
    "contentEncoding", "externalDocs", "xml", "contentSchema",
};
/* clang-format on */

/* What is understood, and the types that it is about. */
static const struct {
    const char *name;
    unsigned types;
} keywords[] = {
    {"type", 0},
    {"enum", 0},
    {"const", 0},
    {"nullable", 0},
    {"$ref", 0},
    {"allOf", 0},
    {"anyOf", 0},
    {"oneOf", 0},
    {"properties", SCHEMA_OBJECT},
    {"required", SCHEMA_OBJECT},
    {"additionalProperties", SCHEMA_OBJECT},
    {"items", SCHEMA_ARRAY},
    {"prefixItems", SCHEMA_ARRAY},
    {"additionalItems", SCHEMA_ARRAY},
    {"minItems", SCHEMA_ARRAY},
    {"maxItems", SCHEMA_ARRAY},
    {"uniqueItems", SCHEMA_ARRAY},
    {"minLength", SCHEMA_STRING},
    {"maxLength", SCHEMA_STRING},
    {"pattern", SCHEMA_STRING},
    {"format", SCHEMA_STRING},
    {"minimum", SCHEMA_INTEGER | SCHEMA_NUMBER},
    {"maximum", SCHEMA_INTEGER | SCHEMA_NUMBER},
    {"exclusiveMinimum", SCHEMA_INTEGER | SCHEMA_NUMBER},
    {"exclusiveMaximum", SCHEMA_INTEGER | SCHEMA_NUMBER},
    {"multipleOf", SCHEMA_INTEGER | SCHEMA_NUMBER},
};

static const struct {
    const char *name;
    unsigned type;
} types[] = {{"null", SCHEMA_NULL},       {"boolean", SCHEMA_BOOLEAN},
             {"integer", SCHEMA_INTEGER}, {"number", SCHEMA_INTEGER | SCHEMA_NUMBER},
             {"string", SCHEMA_STRING},   {"array", SCHEMA_ARRAY},
             {"object", SCHEMA_OBJECT}};

/* ---- errors ---------------------------------------------------------------------------------------- */

static const char *pointer(const struct schema *s)
{
    return s->path.data ? s->path.data : "";
}

enum nyb_code schema_refuse(struct schema *s, const char *keyword, const char *why)
{
    return err_at(s->err, NYB_E_UNSUPPORTED, "", -1,
                  "the JSON schema's keyword \"%.60s\" at %.300s/%.60s is not supported%s%s", keyword,
                  pointer(s), keyword, why ? ": " : "", why ? why : "");
}

enum nyb_code schema_wrong(struct schema *s, const char *keyword, const char *what)
{
    return err_at(s->err, NYB_E_ARG, "", -1, "the JSON schema is malformed: %.300s%s%.60s must be %s",
                  pointer(s), *keyword ? "/" : "", keyword, what);
}

/* ---- types ----------------------------------------------------------------------------------------- */

bool schema_is_annotation(const char *keyword)
{
    for (size_t i = 0; i < COUNT_OF(annotations); i++)
        if (!strcmp(keyword, annotations[i]))
            return true;
    return !strncmp(keyword, "x-", 2);
}

static unsigned type_named(const json_t *name)
{
    for (size_t i = 0; i < COUNT_OF(types) && json_is_string(name); i++)
        if (!strcmp(json_string_value(name), types[i].name))
            return types[i].type;
    return 0;
}

enum nyb_code schema_types(struct schema *s, const json_t *schema, unsigned *out)
{
    const json_t *type = json_object_get(schema, "type");
    json_t *item;
    size_t i;
    *out = type_named(type);
    bool fine = !type || *out || (json_is_array(type) && json_array_size(type) > 0);
    json_array_foreach(type, i, item)
    {
        fine = fine && type_named(item);
        *out |= type_named(item);
    }
    if (!fine)
        return schema_wrong(s, "type",
                            "null, boolean, integer, number, string, array, object or a list of them");
    for (i = 0; i < COUNT_OF(keywords) && !type; i++)
        if (json_object_get(schema, keywords[i].name))
            *out |= keywords[i].types;
    return NYB_OK;
}

enum nyb_code schema_check_keywords(struct schema *s, const json_t *schema)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        bool known = schema_is_annotation(key);
        for (size_t i = 0; i < COUNT_OF(keywords) && !known; i++)
            known = !strcmp(key, keywords[i].name);
        if (!known)
            return schema_refuse(s, key, NULL);
    }
    return NYB_OK;
}

/* ---- parts ----------------------------------------------------------------------------------------- */

enum nyb_code schema_build_at(struct schema *s, const json_t *schema, const char *keyword, const char *name,
                              size_t number, uint32_t *node)
{
    size_t before = s->path.len;
    buf_printf(&s->path, "/%s", keyword);
    if (name) {
        buf_add_byte(&s->path, '/');
        for (; *name; name++)
            buf_add_str(&s->path, *name == '~' ? "~0" : *name == '/' ? "~1" : (char[2]){*name, 0});
    } else if (number != SIZE_MAX) {
        buf_printf(&s->path, "/%zu", number);
    }
    enum nyb_code code = schema_build(s, schema, node);
    s->path.len = before;
    s->path.data[before] = 0;
    return code;
}

/* A $ref alone is a call of the rule that its target becomes, later: recursion costs no depth. */
static enum nyb_code build_ref(struct schema *s, const char *to, uint32_t *node)
{
    for (size_t i = 0; i < s->n_ref; i++)
        if (!strcmp(s->ref[i].pointer, to)) {
            *node = grammar_call(s->j->g, s->ref[i].rule);
            return NYB_OK;
        }
    const json_t *target;
    TRY(schema_resolve(s, to, &target));
    if (s->n_ref == s->ref_cap) {
        s->ref_cap = s->ref_cap ? 2 * s->ref_cap : 8;
        s->ref = mem_grow(s->ref, s->ref_cap, sizeof(*s->ref));
    }
    uint32_t rule = grammar_declare(s->j->g, to);
    s->ref[s->n_ref++] = (struct schema_ref){.pointer = mem_strdup(to), .target = target, .rule = rule};
    *node = grammar_call(s->j->g, rule);
    return NYB_OK;
}

static bool has_siblings(const json_t *schema, const char *keyword)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (strcmp(key, keyword) && !schema_is_annotation(key))
            return true;
    }
    return false;
}

/* anyOf and oneOf: one of the cases, each together with what stands beside the list. */
static enum nyb_code build_cases(struct schema *s, const json_t *schema, const char *keyword, uint32_t *node)
{
    const json_t *list = json_object_get(schema, keyword);
    json_t *item, *rest = NULL;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return schema_wrong(s, keyword, "a list of at least one schema");
    if (has_siblings(schema, keyword)) {
        rest = json_copy((json_t *)(uintptr_t)schema);
        json_object_del(rest, keyword);
    }
    *node = grammar_never(s->j->g);
    enum nyb_code code = NYB_OK;
    json_array_foreach(list, i, item)
    {
        uint32_t one = 0;
        json_t *both = NULL;
        if (rest)
            code = schema_merge(s, rest, item, &both);
        if (code == NYB_OK)
            code = schema_build_at(s, both ? both : item, keyword, NULL, i, &one);
        json_decref(both);
        if (code != NYB_OK)
            break;
        *node = grammar_alt(s->j->g, *node, one);
    }
    json_decref(rest);
    return code;
}

/* oneOf is anyOf where no value is in two cases; where that cannot be seen it is refused. */
static enum nyb_code check_one_of(struct schema *s, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        for (size_t k = 0; k < i; k++) {
            bool apart = false;
            TRY(schema_disjoint(s, json_array_get(list, k), json_array_get(list, i), &apart));
            if (!apart)
                return schema_refuse(
                    s, "oneOf",
                    "two of its cases may hold for the same value (they differ neither in type "
                    "nor in a required constant); use anyOf");
        }
    return NYB_OK;
}

static unsigned type_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return SCHEMA_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SCHEMA_BOOLEAN;
    case JSON_INTEGER:
        return SCHEMA_INTEGER | SCHEMA_NUMBER;
    case JSON_REAL:
        return SCHEMA_NUMBER;
    case JSON_STRING:
        return SCHEMA_STRING;
    case JSON_ARRAY:
        return SCHEMA_ARRAY;
    default:
        return SCHEMA_OBJECT;
    }
}

/* enum and const: the values themselves, of those types that are named. */
static enum nyb_code build_values(struct schema *s, const json_t *schema, uint32_t *node)
{
    const json_t *list = json_object_get(schema, "enum"), *constant = json_object_get(schema, "const");
    const char *key;
    json_t *value;
    unsigned named = 0;
    size_t i;
    if (list && (!json_is_array(list) || json_array_size(list) == 0))
        return schema_wrong(s, "enum", "a list of at least one value");
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        if (strcmp(key, "enum") && strcmp(key, "const") && strcmp(key, "type") && strcmp(key, "nullable") &&
            !schema_is_annotation(key))
            return schema_refuse(s, key, "beside enum or const");
    }
    if (json_object_get(schema, "type"))
        TRY(schema_types(s, schema, &named));
    *node = grammar_never(s->j->g);
    if (!list && (!named || (type_of(constant) & named)))
        *node = grammar_json_literal(s->j, constant);
    json_array_foreach(list, i, value)
    {
        bool fits = (!named || (type_of(value) & named)) && (!constant || json_equal(value, constant));
        if (fits)
            *node = grammar_alt(s->j->g, *node, grammar_json_literal(s->j, value));
    }
    return NYB_OK;
}

/* ---- one schema ------------------------------------------------------------------------------------ */

static enum nyb_code build_type(struct schema *s, const json_t *schema, unsigned type, uint32_t *node)
{
    struct grammar_ast *g = s->j->g;
    switch (type) {
    case SCHEMA_NULL:
        *node = grammar_text(g, "null");
        return NYB_OK;
    case SCHEMA_BOOLEAN:
        *node = grammar_alt(g, grammar_text(g, "true"), grammar_text(g, "false"));
        return NYB_OK;
    case SCHEMA_INTEGER:
    case SCHEMA_NUMBER:
        return schema_number(s, schema, type == SCHEMA_INTEGER, node);
    case SCHEMA_STRING:
        return schema_string(s, schema, node);
    case SCHEMA_ARRAY:
        return schema_array(s, schema, node);
    default:
        return schema_object(s, schema, node);
    }
}

static enum nyb_code build_types(struct schema *s, const json_t *schema, uint32_t *node)
{
    unsigned mask;
    TRY(schema_types(s, schema, &mask));
    if (mask == 0) {
        *node = grammar_json_value(s->j);
        return NYB_OK;
    }
    if (mask & SCHEMA_NUMBER)
        mask &= ~(unsigned)SCHEMA_INTEGER;
    *node = grammar_never(s->j->g);
    for (unsigned type = 1; type <= SCHEMA_OBJECT; type <<= 1) {
        uint32_t one = 0;
        if (!(mask & type))
            continue;
        TRY(build_type(s, schema, type, &one));
        *node = grammar_alt(s->j->g, *node, one);
    }
    return NYB_OK;
}

/* nullable is OpenAPI's: null besides what the rest allows. */
static enum nyb_code build_nullable(struct schema *s, const json_t *schema, uint32_t *node)
{
    json_t *rest = json_copy((json_t *)(uintptr_t)schema);
    json_object_del(rest, "nullable");
    enum nyb_code code = schema_build(s, rest, node);
    json_decref(rest);
    if (code == NYB_OK)
        *node = grammar_alt(s->j->g, *node, grammar_text(s->j->g, "null"));
    return code;
}

static enum nyb_code build_object_form(struct schema *s, const json_t *schema, uint32_t *node)
{
    const json_t *ref = json_object_get(schema, "$ref"), *one_of = json_object_get(schema, "oneOf");
    TRY(schema_check_keywords(s, schema));
    if (json_is_true(json_object_get(schema, "nullable")))
        return build_nullable(s, schema, node);
    if (ref && !json_is_string(ref))
        return schema_wrong(s, "$ref", "a string");
    if (ref && !has_siblings(schema, "$ref"))
        return build_ref(s, json_string_value(ref), node);
    if (ref || json_object_get(schema, "allOf")) {
        json_t *flat = NULL;
        TRY(schema_flatten(s, schema, 0, &flat));
        enum nyb_code code = schema_build(s, flat, node);
        json_decref(flat);
        return code;
    }
    if (json_object_get(schema, "anyOf"))
        return build_cases(s, schema, "anyOf", node);
    if (one_of) {
        if (json_is_array(one_of))
            TRY(check_one_of(s, one_of));
        return build_cases(s, schema, "oneOf", node);
    }
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return build_values(s, schema, node);
    return build_types(s, schema, node);
}

enum nyb_code schema_build(struct schema *s, const json_t *schema, uint32_t *node)
{
    if (json_is_boolean(schema)) {
        *node = json_is_true(schema) ? grammar_json_value(s->j) : grammar_never(s->j->g);
        return NYB_OK;
    }
    if (!json_is_object(schema))
        return schema_wrong(s, "", "an object, true or false");
    if (++s->depth > SCHEMA_DEPTH_MAX)
        return err_at(s->err, NYB_E_RANGE, "", -1,
                      "the JSON schema is nested deeper than %d levels at %.300s", SCHEMA_DEPTH_MAX,
                      pointer(s));
    TRY(build_object_form(s, schema, node));
    s->depth--;
    return NYB_OK;
}

/* ---- a whole schema -------------------------------------------------------------------------------- */

static enum nyb_code build_refs(struct schema *s)
{
    for (; s->n_built < s->n_ref; s->n_built++) {
        uint32_t node = 0;
        buf_clear(&s->path);
        buf_add_str(&s->path, s->ref[s->n_built].pointer);
        TRY(schema_build(s, s->ref[s->n_built].target, &node));
        if (!s->j->g->full)
            grammar_define(s->j->g, s->ref[s->n_built].rule, node);
    }
    return NYB_OK;
}

void schema_open(struct schema *s, struct grammar_json *j, const json_t *root, const char *where,
                 struct nyb_err *err)
{
    *s = (struct schema){.j = j, .root = root, .err = err};
    buf_add_str(&s->path, where);
}

enum nyb_code schema_close(struct schema *s, enum nyb_code code)
{
    if (code == NYB_OK)
        code = build_refs(s);
    for (size_t i = 0; i < s->n_ref; i++)
        free(s->ref[i].pointer);
    free(s->ref);
    buf_free(&s->path);
    return code;
}

enum nyb_code grammar_schema(struct grammar_json *j, const json_t *schema, const char *where, uint32_t *node,
                             struct nyb_err *err)
{
    struct schema s;
    schema_open(&s, j, schema, where, err);
    return schema_close(&s, schema_build(&s, schema, node));
}

enum nyb_code grammar_schema_text(struct grammar_ast *g, const char *text, size_t len, const char *whitespace,
                                  uint32_t *node, struct nyb_err *err)
{
    struct grammar_json j;
    json_t *schema;
    json_error_t e;
    TRY(grammar_json_open(&j, g, whitespace, err));
    schema = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &e);
    if (!schema)
        return err_set(err, NYB_E_ARG, "the JSON schema is not valid JSON: %s (line %d, column %d)", e.text,
                       e.line, e.column);
    enum nyb_code code = grammar_schema(&j, schema, "#", node, err);
    json_decref(schema);
    return code;
}
