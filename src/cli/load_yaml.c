#include "cli/load_yaml.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define DEPTH_MAX 64 /* of nesting; an alias to a parent would be endless */
#define NODE_MAX  100000

struct reader {
    yaml_document_t doc;
    const char *path;
    struct nyb_err *err;
    int n_node;
};

static enum nyb_code fail_at(const struct reader *r, const yaml_mark_t *mark, const char *what)
{
    return err_at(r->err, NYB_E_FORMAT, r->path, -1, "line %zu, column %zu: %s", mark->line + 1,
                  mark->column + 1, what);
}

/* https://yaml.org/spec/1.2.2/#103-core-schema, decimal numbers only. */
static json_t *plain_scalar(const char *s)
{
    static const char *const words[][4] = {
        {"", "~", "null", "Null"}, {"true", "True", "TRUE", "true"}, {"false", "False", "FALSE", "false"}};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++)
            if (!strcmp(s, words[i][k]))
                return i == 0 ? json_null() : json_boolean(i == 1);
    const char *digits = s + strspn(s, "+-");
    if (digits - s <= 1 && strspn(digits, "0123456789.eE+-") == strlen(digits) &&
        strpbrk(digits, "0123456789")) {
        char *end;
        errno = 0;
        long long whole = strtoll(s, &end, 10);
        if (!*end && errno == 0)
            return json_integer(whole);
        double v = strtod(s, &end);
        if (!*end && isfinite(v))
            return json_real(v);
    }
    return json_string(s);
}

static enum nyb_code convert(struct reader *r, int id, int depth, json_t **out);

static enum nyb_code convert_list(struct reader *r, const yaml_node_t *node, int depth, json_t *list)
{
    for (const yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top;
         i++) {
        json_t *v;
        TRY(convert(r, *i, depth + 1, &v));
        json_array_append_new(list, v);
    }
    return NYB_OK;
}

static enum nyb_code convert_map(struct reader *r, const yaml_node_t *node, int depth, json_t *map)
{
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(&r->doc, p->key);
        json_t *v;
        if (!key || key->type != YAML_SCALAR_NODE)
            return fail_at(r, &node->start_mark, "a key is not a plain word");
        const char *name = (const char *)key->data.scalar.value;
        if (json_object_get(map, name))
            return fail_at(r, &key->start_mark, "a key appears twice");
        TRY(convert(r, p->value, depth + 1, &v));
        json_object_set_new(map, name, v);
    }
    return NYB_OK;
}

static enum nyb_code convert(struct reader *r, int id, int depth, json_t **out)
{
    const yaml_node_t *node = yaml_document_get_node(&r->doc, id);
    enum nyb_code code = NYB_OK;
    *out = NULL;
    if (depth > DEPTH_MAX || ++r->n_node > NODE_MAX)
        return fail_at(r, &node->start_mark, "too deep, or too much");
    if (node->type == YAML_SCALAR_NODE) {
        const char *text = (const char *)node->data.scalar.value;
        *out = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE
                   ? plain_scalar(text)
                   : json_stringn(text, node->data.scalar.length);
        return *out ? NYB_OK : fail_at(r, &node->start_mark, "a text is not UTF-8");
    }
    *out = node->type == YAML_SEQUENCE_NODE ? json_array() : json_object();
    code = node->type == YAML_SEQUENCE_NODE ? convert_list(r, node, depth, *out)
                                            : convert_map(r, node, depth, *out);
    if (code != NYB_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return code;
}

static enum nyb_code read_document(struct reader *r, yaml_parser_t *parser, json_t **out)
{
    if (!yaml_parser_load(parser, &r->doc))
        return fail_at(r, &parser->problem_mark, parser->problem ? parser->problem : "not YAML");
    const yaml_node_t *root = yaml_document_get_root_node(&r->doc);
    enum nyb_code code =
        root && root->type == YAML_MAPPING_NODE
            ? convert(r, 1, 0, out)
            : err_at(r->err, NYB_E_FORMAT, r->path, -1, "expected a mapping, as \"temperature: 0.8\"");
    yaml_document_delete(&r->doc);
    return code;
}

enum nyb_code load_yaml_read(json_t **out, const char *path, struct nyb_err *err)
{
    struct reader r = {.path = path, .err = err};
    yaml_parser_t parser;
    *out = NULL;
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_at(err, NYB_E_IO, path, -1, "cannot be opened: %s", strerror(errno));
    if (!yaml_parser_initialize(&parser)) {
        fclose(f);
        return err_set(err, NYB_E_MEMORY, "no memory to read %s", path);
    }
    yaml_parser_set_input_file(&parser, f);
    enum nyb_code code = read_document(&r, &parser, out);
    yaml_parser_delete(&parser);
    fclose(f);
    return code;
}
