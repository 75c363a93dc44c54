/* Objects: the properties in the order in which the schema lists them, those that are not required may be
 * left out; then, where the schema allows others explicitly, any number of these. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_schema.h"

struct property {
    const char *name;
    const json_t *schema;
    bool required;
    uint32_t member; /* node: "name": value */
};

struct object {
    struct property *property; /* (n) */
    size_t n;
    const json_t *other; /* schema of other properties; NULL: none */
    uint32_t other_member;
};

static bool is_listed(const json_t *list, const char *name)
{
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item)
    {
        if (json_is_string(item) && !strcmp(json_string_value(item), name))
            return true;
    }
    return false;
}

static uint32_t member_of(struct schema *s, uint32_t key, uint32_t value)
{
    struct grammar_ast *g = s->j->g;
    uint32_t colon = grammar_cat(g, grammar_range(g, ':', ':'), grammar_json_space(s->j));
    return grammar_cat(g, key, grammar_cat(g, colon, value));
}

/* Required names that are not listed take what other properties may be. */
static enum nyb_code read_object(struct schema *s, const json_t *schema, struct object *o)
{
    const json_t *properties = json_object_get(schema, "properties"), *item;
    const json_t *required = json_object_get(schema, "required");
    const char *key;
    json_t *value;
    size_t i;
    if (properties && !json_is_object(properties))
        return schema_wrong(s, "properties", "an object of schemas");
    if (required && !json_is_array(required))
        return schema_wrong(s, "required", "a list of names");
    o->other = json_object_get(schema, "additionalProperties");
    bool closed = json_is_false(o->other);
    if (closed)
        o->other = NULL;
    o->property =
        mem_alloc(json_object_size(properties) + json_array_size(required) + 1, sizeof(*o->property));
    json_object_foreach((json_t *)(uintptr_t)properties, key, value)
    {
        o->property[o->n++] =
            (struct property){.name = key, .schema = value, .required = is_listed(required, key)};
    }
    size_t n_listed = o->n;
    for (i = 0; i < json_array_size(required); i++) {
        item = json_array_get(required, i);
        if (!json_is_string(item))
            return schema_wrong(s, "required", "a list of names");
        bool known = json_object_get(properties, json_string_value(item)) != NULL;
        for (size_t k = n_listed; k < o->n && !known; k++)
            known = !strcmp(o->property[k].name, json_string_value(item));
        if (known)
            continue;
        if (closed)
            return schema_wrong(s, "required", "names of properties where additionalProperties is false");
        o->property[o->n++] =
            (struct property){.name = json_string_value(item), .schema = o->other, .required = true};
    }
    return NYB_OK;
}

static enum nyb_code build_members(struct schema *s, struct object *o)
{
    for (size_t i = 0; i < o->n; i++) {
        struct property *p = &o->property[i];
        json_t *name = json_string(p->name);
        uint32_t key = grammar_json_literal(s->j, name), value = 0;
        json_decref(name);
        if (p->schema)
            TRY(schema_build_at(s, p->schema, "properties", p->name, 0, &value));
        else
            value = grammar_json_value(s->j);
        p->member = member_of(s, key, value);
    }
    if (!o->other)
        return NYB_OK;
    const char **name = mem_alloc(o->n + 1, sizeof(*name));
    bool fits = true;
    for (size_t i = 0; i < o->n; i++) {
        name[i] = o->property[i].name;
        fits = fits && strlen(name[i]) <= SCHEMA_NAME_MAX;
    }
    uint32_t key = fits ? grammar_json_other_key(s->j, name, o->n) : 0, value = 0;
    free(name);
    if (!fits)
        return schema_refuse(s, "additionalProperties", "beside a name of more than 256 bytes");
    TRY(schema_build_at(s, o->other, "additionalProperties", NULL, SIZE_MAX, &value));
    o->other_member = member_of(s, key, value);
    return NYB_OK;
}

/* Members as long as the first one has not come: then it may be any up to the first required one. Behind
 * each of them go on the members that follow, which are one rule: it calls itself at its end. */
static uint32_t join_members(struct schema *s, const struct object *o)
{
    struct grammar_ast *g = s->j->g;
    uint32_t comma = grammar_cat(g, grammar_range(g, ',', ','), grammar_json_space(s->j));
    uint32_t rest = grammar_empty(g), node = grammar_never(g);
    size_t first = 0;
    while (first < o->n && !o->property[first].required)
        first++;
    if (o->other)
        rest = grammar_times(g, grammar_cat(g, comma, o->other_member), 0, GRAMMAR_REPEAT);
    uint32_t none = o->other && first == o->n ? grammar_cat(g, o->other_member, rest) : node;
    for (size_t i = o->n; i-- > 0;) {
        const struct property *p = &o->property[i];
        if (i <= first) { /* may be the first: what follows is used here and below */
            uint32_t rule = grammar_declare(g, "properties");
            if (g->full)
                return node;
            grammar_define(g, rule, rest);
            rest = grammar_call(g, rule);
            node = grammar_alt(g, grammar_cat(g, p->member, rest), node);
        }
        uint32_t one = grammar_cat(g, comma, p->member);
        rest = grammar_cat(g, p->required ? one : grammar_maybe(g, one), rest);
    }
    node = grammar_alt(g, node, none);
    return first == o->n ? grammar_maybe(g, node) : node;
}

static enum nyb_code build_object(struct schema *s, const json_t *schema, struct object *o, uint32_t *node)
{
    struct grammar_ast *g = s->j->g;
    TRY(read_object(s, schema, o));
    if (o->n == 0 && !o->other && !json_is_false(json_object_get(schema, "additionalProperties")) &&
        !json_object_get(schema, "properties")) {
        *node = grammar_json_any_object(s->j);
        return NYB_OK;
    }
    TRY(build_members(s, o));
    uint32_t space = grammar_json_space(s->j);
    uint32_t inside = grammar_cat(g, space, grammar_cat(g, join_members(s, o), space));
    *node = grammar_cat(g, grammar_range(g, '{', '{'), grammar_cat(g, inside, grammar_range(g, '}', '}')));
    return NYB_OK;
}

enum nyb_code schema_object(struct schema *s, const json_t *schema, uint32_t *node)
{
    struct object o = {0};
    enum nyb_code code = build_object(s, schema, &o, node);
    free(o.property);
    return code;
}
