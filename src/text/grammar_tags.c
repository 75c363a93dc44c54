/* Free text with constrained parts, as tool calls are: vLLM's "structural tags", and a little more.
 *
 *     {"structures": [{"begin": "<tool_call>\n{\"name\": \"f\", \"arguments\": ", "schema": {...},
 *                      "end": "}\n</tool_call>", "style": "json"}, ...],
 *      "triggers": ["<tool_call>"],       one text that all begins start with; does not repeat its first byte
 *      "markers": ["</tool_call>", ...],  texts that may come as special tokens, besides the trigger
 *      "required": false,                 the text begins with a structure, and nothing stands between them
 *      "parallel": true,                  more than one structure may come
 *      "content": {...}}                  the schema of JSON that may come instead of structures, where there
 * is no text besides
 *
 * A structure with "loose": true is any object where its schema has something that cannot be kept.
 *
 * Styles: "json"; "function", parameters as <parameter=k>\nv\n</parameter>; "argkey", as
 * <arg_key>k</arg_key>\n<arg_value>v</arg_value>. In the last two, strings are plain text up to the closing
 * tag and everything else is JSON. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar.h"
#include "text/grammar_schema.h"

#define STRUCTURES_MAX 512
#define FREE_NAME_MAX  64 /* characters of a parameter's name where the schema does not list them */

struct style {
    const char *name;
    const char *open, *middle, *close; /* around a parameter's name and value */
    bool newline;                      /* one before `close` is not the value's */
};
static const struct style styles[] = {
    {"json", NULL, NULL, NULL, false},
    {"function", "<parameter=", ">\n", "</parameter>", true},
    {"argkey", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", false},
};

struct tags {
    struct grammar_json j;
    const json_t *spec, *markers;
    const char *trigger;
    struct nyb_err *err;
};

static enum nyb_code wrong(struct tags *t, const char *what)
{
    return err_set(t->err, NYB_E_ARG, "the structural tags are malformed: %s", what);
}

/* ---- text with markers ----------------------------------------------------------------------------- */

static const char *marker_at(const struct tags *t, const char *text)
{
    json_t *item;
    size_t i;
    if (!strncmp(text, t->trigger, strlen(t->trigger)))
        return t->trigger;
    json_array_foreach(t->markers, i, item)
    {
        const char *m = json_string_value(item);
        if (m && *m && !strncmp(text, m, strlen(m)))
            return m;
    }
    return NULL;
}

static uint32_t marked_text(struct tags *t, const char *text)
{
    struct grammar_ast *g = t->j.g;
    uint32_t node = grammar_empty(g);
    for (const char *m; *text; text += m ? strlen(m) : 1) {
        m = marker_at(t, text);
        node = grammar_cat(g, node, m ? grammar_marker(g, m) : grammar_literal(g, text, 1));
    }
    return node;
}

/* ---- parameters as tags ---------------------------------------------------------------------------- */

/* Any text before the closing tag, and the tag. */
static uint32_t free_value(struct tags *t, const struct style *style)
{
    struct grammar_ast *g = t->j.g;
    uint32_t rule = grammar_declare(g, "behind a parameter");
    if (g->full)
        return grammar_never(g);
    grammar_define(g, rule, grammar_maybe(g, grammar_range(g, '\n', '\n')));
    return grammar_until(g, style->close, grammar_call(g, rule), false);
}

static uint32_t closed_value(struct tags *t, const struct style *style, uint32_t value)
{
    struct grammar_ast *g = t->j.g;
    uint32_t newline = grammar_maybe(g, grammar_range(g, '\n', '\n'));
    uint32_t close = grammar_cat(g, grammar_marker(g, style->close), newline);
    return grammar_cat(g, value, style->newline ? grammar_cat(g, newline, close) : close);
}

static uint32_t listed_value(struct tags *t, const json_t *v)
{
    return json_is_string(v) ? grammar_text(t->j.g, json_string_value(v)) : grammar_json_literal(&t->j, v);
}

/* Strings with bounds: no < in them, so that the tag cannot come early. */
static enum nyb_code bounded_string(struct tags *t, struct schema *s, const json_t *schema, uint32_t *value)
{
    struct grammar_chars c = {0};
    const json_t *min = json_object_get(schema, "minLength"), *max = json_object_get(schema, "maxLength");
    if ((min && !json_is_integer(min)) || (max && !json_is_integer(max)))
        return schema_wrong(s, min && !json_is_integer(min) ? "minLength" : "maxLength", "an integer");
    json_int_t lo = min ? json_integer_value(min) : 0, hi = max ? json_integer_value(max) : -1;
    if (lo < 0 || lo > 100000 || (max && (hi < lo || hi > 100000)))
        return schema_refuse(s, "maxLength", "beyond 100000, or below minLength");
    grammar_chars_add(&c, 0x20, '<' - 1);
    grammar_chars_add(&c, '<' + 1, 0x10FFFF);
    grammar_chars_finish(&c);
    *value = grammar_times(t->j.g, grammar_chars_node(t->j.g, &c), (uint32_t)lo,
                           max ? (uint32_t)hi : GRAMMAR_REPEAT);
    grammar_chars_free(&c);
    return NYB_OK;
}

/* May it be a string? Any text will do then, for the reader takes for a string what is nothing else. */
static enum nyb_code may_be_text(struct schema *s, const json_t *flat, bool *out)
{
    static const char *const lists[] = {"anyOf", "oneOf"};
    unsigned types;
    TRY(schema_types(s, flat, &types));
    *out = types == 0 || (types & SCHEMA_STRING);
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        const json_t *list = json_object_get(flat, lists[i]);
        if (!list)
            continue;
        *out = false;
        for (size_t k = 0; k < json_array_size(list) && !*out; k++) {
            json_t *one = NULL;
            enum nyb_code code = schema_flatten(s, json_array_get(list, k), 0, &one);
            if (code == NYB_OK)
                code = schema_types(s, one, &types);
            *out = code == NYB_OK && (types == 0 || (types & SCHEMA_STRING));
            json_decref(one);
            TRY(code);
        }
    }
    return NYB_OK;
}

static enum nyb_code tag_value_of(struct tags *t, struct schema *s, const struct style *style,
                                  const json_t *schema, const json_t *flat, const char *name, uint32_t *node)
{
    const json_t *constant = json_object_get(flat, "const"), *list = json_object_get(flat, "enum");
    const json_t *format = json_object_get(flat, "format");
    bool text;
    uint32_t value = grammar_never(t->j.g);
    if (constant || list) {
        for (size_t i = 0; i < json_array_size(list); i++)
            value = grammar_alt(t->j.g, value, listed_value(t, json_array_get(list, i)));
        if (constant)
            value = listed_value(t, constant);
        *node = closed_value(t, style, value);
        return NYB_OK;
    }
    TRY(may_be_text(s, flat, &text));
    bool pattern = json_object_get(flat, "pattern");
    if (text && (pattern || (format && !schema_format_is_free(format))))
        return schema_refuse(s, pattern ? "pattern" : "format", "for a parameter of this model's tool calls");
    if (text && (json_object_get(flat, "minLength") || json_object_get(flat, "maxLength"))) {
        TRY(bounded_string(t, s, flat, &value));
        *node = closed_value(t, style, value);
    } else if (text) {
        *node = free_value(t, style);
    } else {
        TRY(schema_build_at(s, schema, "properties", name, 0, &value));
        *node = closed_value(t, style, value);
    }
    return NYB_OK;
}

static enum nyb_code tag_value(struct tags *t, struct schema *s, const struct style *style,
                               const json_t *schema, const char *name, uint32_t *node)
{
    json_t *flat = NULL;
    size_t before = s->path.len;
    enum nyb_code code = schema_flatten(s, schema, 0, &flat);
    buf_printf(&s->path, "/properties/%s", name);
    if (code == NYB_OK)
        code = schema_check_keywords(s, flat);
    s->path.len = before;
    s->path.data[before] = 0;
    if (code == NYB_OK)
        code = tag_value_of(t, s, style, schema, flat, name, node);
    json_decref(flat);
    return code;
}

/* The name stands as it is: it must not end its own tag. */
static enum nyb_code tag_parameter(struct tags *t, struct schema *s, const struct style *style,
                                   const char *name, const json_t *schema, uint32_t *node)
{
    struct grammar_ast *g = t->j.g;
    uint32_t value = 0;
    if (!*name || strpbrk(name, "<>\n"))
        return schema_refuse(s, "properties", "with a name that is empty or holds < or > or a newline");
    TRY(tag_value(t, s, style, schema, name, &value));
    *node = grammar_cat(
        g, marked_text(t, style->open),
        grammar_cat(g, grammar_text(g, name), grammar_cat(g, marked_text(t, style->middle), value)));
    return NYB_OK;
}

/* Where the schema lists no properties, any parameters. */
static uint32_t free_parameters(struct tags *t, const struct style *style)
{
    struct grammar_ast *g = t->j.g;
    struct grammar_chars c = {0};
    grammar_chars_add(&c, '0', '9');
    grammar_chars_add(&c, 'A', 'Z');
    grammar_chars_add(&c, '_', '_');
    grammar_chars_add(&c, 'a', 'z');
    grammar_chars_finish(&c);
    uint32_t name = grammar_times(g, grammar_chars_node(g, &c), 1, FREE_NAME_MAX);
    grammar_chars_free(&c);
    uint32_t one = grammar_cat(g, marked_text(t, style->open), name);
    one = grammar_cat(g, one, grammar_cat(g, marked_text(t, style->middle), free_value(t, style)));
    return grammar_times(g, one, 0, GRAMMAR_REPEAT);
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

static enum nyb_code tag_parameters(struct tags *t, struct schema *s, const struct style *style,
                                    const json_t *flat, uint32_t *node)
{
    const char *key;
    json_t *value;
    const json_t *properties = json_object_get(flat, "properties");
    *node = grammar_empty(t->j.g);
    if (!json_is_object(properties)) {
        *node = free_parameters(t, style);
        return NYB_OK;
    }
    json_object_foreach((json_t *)(uintptr_t)properties, key, value)
    {
        uint32_t one = 0;
        TRY(tag_parameter(t, s, style, key, value, &one));
        *node = grammar_cat(t->j.g, *node, is_required(flat, key) ? one : grammar_maybe(t->j.g, one));
    }
    return NYB_OK;
}

static enum nyb_code tag_style(struct tags *t, const struct style *style, const json_t *schema,
                               const char *where, uint32_t *node)
{
    struct schema s;
    json_t *flat = NULL;
    schema_open(&s, &t->j, schema, where, t->err);
    enum nyb_code code = schema_flatten(&s, schema, 0, &flat);
    if (code == NYB_OK)
        code = schema_check_keywords(&s, flat);
    if (code == NYB_OK)
        code = tag_parameters(t, &s, style, flat, node);
    code = schema_close(&s, code);
    json_decref(flat);
    return code;
}

/* ---- structures ------------------------------------------------------------------------------------ */

static enum nyb_code inside(struct tags *t, const struct style *style, const json_t *schema,
                            const char *where, uint32_t *node)
{
    if (style->open)
        return tag_style(t, style, schema, where, node);
    return grammar_schema(&t->j, schema, where, node, t->err);
}

/* Built where nobody sees it: what fails half-way leaves rules behind. */
static bool can_be_kept(const struct tags *t, const struct style *style, const json_t *schema)
{
    struct grammar_ast g = {0};
    struct nyb_err err;
    struct tags probe = {.spec = t->spec, .markers = t->markers, .trigger = t->trigger, .err = &err};
    uint32_t node;
    enum nyb_code code = grammar_json_open(&probe.j, &g, NULL, &err);
    if (code == NYB_OK)
        code = inside(&probe, style, schema, "", &node);
    grammar_ast_free(&g);
    return code != NYB_E_UNSUPPORTED;
}

static const struct style *style_named(const json_t *name)
{
    for (size_t i = 0; i < COUNT_OF(styles) && json_is_string(name); i++)
        if (!strcmp(styles[i].name, json_string_value(name)))
            return &styles[i];
    return name ? NULL : &styles[0];
}

/* What follows the trigger. */
static enum nyb_code structure(struct tags *t, const json_t *one, size_t number, uint32_t *node)
{
    const char *begin = json_string_value(json_object_get(one, "begin"));
    const char *end = json_string_value(json_object_get(one, "end"));
    const json_t *schema = json_object_get(one, "schema");
    const struct style *style = style_named(json_object_get(one, "style"));
    char where[64];
    uint32_t middle = 0;
    if (!begin || !end || !schema || !style)
        return wrong(t, "each structure must have begin, schema and end, and a known style if it has one");
    if (strncmp(begin, t->trigger, strlen(t->trigger)))
        return wrong(t, "every begin must start with the trigger");
    snprintf(where, sizeof(where), "structures/%zu/schema#", number);
    bool any = json_is_true(json_object_get(one, "loose")) && !can_be_kept(t, style, schema);
    json_t *object = any ? json_pack("{s:s}", "type", "object") : NULL;
    enum nyb_code code = inside(t, style, any ? object : schema, where, &middle);
    json_decref(object);
    TRY(code);
    struct grammar_ast *g = t->j.g;
    *node = grammar_cat(g, marked_text(t, begin + strlen(t->trigger)),
                        grammar_cat(g, middle, marked_text(t, end)));
    return NYB_OK;
}

static enum nyb_code all_structures(struct tags *t, uint32_t *node)
{
    const json_t *list = json_object_get(t->spec, "structures");
    size_t n = json_array_size(list);
    if (n == 0 || n > STRUCTURES_MAX)
        return wrong(t, "structures must be a list of 1 to 512 objects");
    *node = grammar_never(t->j.g);
    for (size_t i = 0; i < n; i++) {
        uint32_t one = 0;
        TRY(structure(t, json_array_get(list, i), i, &one));
        *node = grammar_alt(t->j.g, *node, one);
    }
    return NYB_OK;
}

static enum nyb_code take_trigger(struct tags *t)
{
    const json_t *list = json_object_get(t->spec, "triggers");
    t->trigger = json_string_value(json_array_get(list, 0));
    if (json_array_size(list) != 1 || !t->trigger || !*t->trigger)
        return wrong(t, "triggers must be a list of one string that is not empty");
    if (strchr(t->trigger + 1, t->trigger[0]) || (unsigned char)t->trigger[0] >= 0x80)
        return wrong(t, "a trigger must begin with an ASCII character that it does not repeat");
    return NYB_OK;
}

static enum nyb_code or_content(struct tags *t, const json_t *content, uint32_t *node)
{
    uint32_t inside = 0;
    TRY(grammar_schema(&t->j, content, GRAMMAR_CONTENT "#", &inside, t->err));
    *node = grammar_alt(t->j.g, *node, inside);
    return NYB_OK;
}

/* required: structure (newline structure)*, or what content says; else text with structures in it, each of
 * which leads back to the text, or, where only one may come, to text without. */
static enum nyb_code arrange(struct tags *t, uint32_t *node)
{
    struct grammar_ast *g = t->j.g;
    const json_t *content = json_object_get(t->spec, "content");
    bool required = content || json_is_true(json_object_get(t->spec, "required"));
    bool parallel = !json_is_false(json_object_get(t->spec, "parallel"));
    uint32_t one = 0, rule = grammar_declare(g, "a structure"),
             again = grammar_declare(g, "behind a structure");
    TRY(all_structures(t, &one));
    if (g->full)
        return NYB_OK;
    uint32_t newline = grammar_maybe(g, grammar_range(g, '\n', '\n'));
    grammar_define(g, rule, one);
    uint32_t call = grammar_call(g, rule);
    if (required) {
        uint32_t first = grammar_cat(g, grammar_marker(g, t->trigger), call);
        uint32_t more = grammar_times(g, grammar_cat(g, newline, first), 0, GRAMMAR_REPEAT);
        *node = parallel ? grammar_cat(g, first, more) : first;
        return content ? or_content(t, content, node) : NYB_OK;
    }
    uint32_t hit = grammar_cat(g, call, grammar_call(g, again)),
             behind = grammar_declare(g, "a structure and on");
    if (g->full)
        return NYB_OK;
    grammar_define(g, behind, hit);
    *node = grammar_until(g, t->trigger, grammar_call(g, behind), true);
    grammar_define(g, again, parallel ? *node : grammar_until(g, t->trigger, grammar_never(g), true));
    return NYB_OK;
}

enum nyb_code grammar_tags(struct grammar_ast *g, const char *text, size_t len, const char *whitespace,
                           uint32_t *node, struct nyb_err *err)
{
    struct tags t = {.err = err};
    json_error_t e;
    json_t *spec = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (!spec)
        return err_set(err, NYB_E_ARG, "the structural tags are not valid JSON: %s (line %d, column %d)",
                       e.text, e.line, e.column);
    t.spec = spec;
    t.markers = json_object_get(spec, "markers");
    enum nyb_code code = json_is_object(spec) ? NYB_OK : wrong(&t, "not an object");
    if (code == NYB_OK)
        code = grammar_json_open(&t.j, g, whitespace, err);
    if (code == NYB_OK)
        code = take_trigger(&t);
    if (code == NYB_OK)
        code = arrange(&t, node);
    json_decref(spec);
    return code;
}
