#include "server/tool_choice.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/params_json.h"
#include "text/parse_syntax.h"

static const char *named(const json_t *choice)
{
    return json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
}

/* Is a function of this name in the list? */
static bool has_tool(const json_t *tools, const char *name)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const char *other = named(tool);
        if (other && !strcmp(other, name))
            return true;
    }
    return false;
}

/* ---- what clients send --------------------------------------------------------------------------------- */

static enum nyb_code wrong_allowed(struct nyb_err *err, const char *what)
{
    return err_at(err, NYB_E_ARG, "tool_choice", -1,
                  "allowed_tools of tool_choice must have %s. (parameter=tool_choice)", what);
}

/* {"type": "allowed_tools", "allowed_tools": {"mode": .., "tools": [..]}}: the others are not shown to the
 * model, so that it does not call them. */
static enum nyb_code keep_allowed(json_t *body, const json_t *allowed, struct nyb_err *err)
{
    const char *mode = json_string_value(json_object_get(allowed, "mode"));
    const json_t *list = json_object_get(allowed, "tools"), *tools = json_object_get(body, "tools");
    json_t *kept, *one;
    size_t i;
    if (!mode || (strcmp(mode, "auto") && strcmp(mode, "required")))
        return wrong_allowed(err, "a mode, auto or required");
    if (!json_is_array(list) || json_array_size(list) == 0)
        return wrong_allowed(err, "a list of tools");
    json_array_foreach(list, i, one)
    {
        const char *name = named(one);
        if (!name || !has_tool(tools, name))
            return wrong_allowed(err, "functions that are among the tools");
    }
    kept = json_array();
    json_array_foreach(tools, i, one)
    {
        const char *name = named(one);
        if (name && has_tool(list, name))
            json_array_append(kept, one);
    }
    json_object_set_new(body, "tools", kept);
    json_object_set_new(body, "tool_choice", json_string(mode));
    return NYB_OK;
}

enum nyb_code tool_choice_normalize(json_t *body, struct nyb_err *err)
{
    const json_t *tools = json_object_get(body, "tools"), *choice = json_object_get(body, "tool_choice");
    const char *word = json_string_value(choice), *type = json_string_value(json_object_get(choice, "type"));
    if (tools && (json_is_null(tools) || (json_is_array(tools) && json_array_size(tools) == 0))) {
        json_object_del(body, "tools");
        tools = NULL;
    }
    if (!tools && word && !strcmp(word, "auto"))
        json_object_del(body, "tool_choice");
    if (type && !strcmp(type, "allowed_tools"))
        return keep_allowed(body, json_object_get(choice, "allowed_tools"), err);
    return NYB_OK;
}

enum nyb_code tool_choice_check(const json_t *body, struct nyb_err *err)
{
    const json_t *choice = json_object_get(body, "tool_choice"), *tools = json_object_get(body, "tools");
    const char *word = json_string_value(choice), *name = named(choice);
    if (!choice || json_is_null(choice))
        return NYB_OK;
    if (word ? strcmp(word, "none") && strcmp(word, "auto") && strcmp(word, "required") : !name)
        return params_wrong_type(err, "tool_choice", "none, auto, required or a named function", choice);
    if (word && !strcmp(word, "none"))
        return NYB_OK;
    if (!json_is_array(tools))
        return err_at(err, NYB_E_ARG, "tool_choice", -1,
                      "when using tool_choice, tools must be set. (parameter=tool_choice)");
    if (name && !has_tool(tools, name))
        return err_at(err, NYB_E_ARG, "tool_choice", -1,
                      "the function %.100s of tool_choice is not among the tools. (parameter=tool_choice)",
                      name);
    return NYB_OK;
}

/* ---- calls as constraints ---------------------------------------------------------------------------- */

struct calls {
    const struct parse_format *format;
    const char *only;      /* the one function that may be called; NULL: any    */
    const json_t *content; /* schema of an answer without calls; NULL: any text */
    json_t *structures;
    struct nyb_err *err;
};

static bool is_plain_name(const char *name)
{
    for (; *name; name++)
        if (!parse_is_name(*name))
            return false;
    return true;
}

/* The texts around the arguments of one function's call, as the format's syntax (parse_syntax.h) has them. */
static void write_frame(const struct parse_format *f, const char *name, struct buf *begin, struct buf *end)
{
    buf_add_str(begin, f->call_open);
    if (f->syntax == &parse_syntax_function) {
        buf_printf(begin, "\n<function=%s>\n", name);
        buf_printf(end, "</function>\n%s", f->call_close);
    } else if (f->syntax == &parse_syntax_argkey) {
        buf_printf(begin, "%s\n", name);
        buf_add_str(end, f->call_close);
    } else {
        bool list = f->syntax == &parse_syntax_mistral;
        buf_add_str(begin, list ? "[{\"name\": " : "\n{\"name\": ");
        json_add_string(begin, name, strlen(name));
        buf_add_str(begin, ", \"arguments\": ");
        if (list)
            buf_add_str(end, "}]");
        else
            buf_printf(end, "}\n%s", f->call_close);
    }
}

static const char *style_of(const struct parse_format *f)
{
    return f->syntax == &parse_syntax_function ? "function"
           : f->syntax == &parse_syntax_argkey ? "argkey"
                                               : "json";
}

/* Arguments are an object, whatever else the schema says. */
static json_t *arguments_schema(const json_t *function, bool constrain)
{
    const json_t *parameters = json_object_get(function, "parameters");
    json_t *schema = json_object();
    if (constrain && json_is_object(parameters))
        json_object_update(schema, (json_t *)(uintptr_t)parameters);
    if (!json_object_get(schema, "type") && !json_object_get(schema, "$ref"))
        json_object_set_new(schema, "type", json_string("object"));
    return schema;
}

static bool is_strict(const json_t *tool)
{
    return json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
}

static enum nyb_code add_call(struct calls *c, const json_t *tool, bool constrain)
{
    const json_t *function = json_object_get(tool, "function");
    const char *name = json_string_value(json_object_get(function, "name"));
    struct buf begin = {0}, end = {0};
    if (!name || (c->only && strcmp(c->only, name)))
        return NYB_OK;
    if (!*name || !is_plain_name(name))
        return err_at(c->err, NYB_E_ARG, "tools", -1,
                      "the name of a function whose calls are constrained must be letters, digits or any of "
                      "_-.:/, got \"%.60s\". (parameter=tools)",
                      name);
    write_frame(c->format, name, &begin, &end);
    json_array_append_new(c->structures,
                          json_pack("{s:s, s:s, s:s, s:o, s:b}", "begin", begin.data, "end", end.data,
                                    "style", style_of(c->format), "schema",
                                    arguments_schema(function, constrain), "loose", (int)!is_strict(tool)));
    buf_free(&begin);
    buf_free(&end);
    return NYB_OK;
}

/* Tags of the syntax may be special tokens. */
static json_t *markers_of(const struct parse_format *f)
{
    static const char *const tags[] = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"};
    json_t *list = f->call_close ? json_pack("[s]", f->call_close) : json_array();
    for (size_t i = 0; i < COUNT_OF(tags) && f->syntax == &parse_syntax_argkey; i++)
        json_array_append_new(list, json_string(tags[i]));
    return list;
}

static enum nyb_code write_calls(struct calls *c, const json_t *tools, bool required, bool parallel,
                                 struct buf *out)
{
    json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) TRY(add_call(c, tool, required || is_strict(tool)));
    json_t *all = json_pack("{s:O, s:[s], s:o, s:b, s:b}", "structures", c->structures, "triggers",
                            c->format->call_open, "markers", markers_of(c->format), "required", (int)required,
                            "parallel", (int)parallel);
    if (c->content)
        json_object_set(all, "content", (json_t *)(uintptr_t)c->content);
    char *text = json_dumps(all, JSON_COMPACT);
    buf_add_str(out, text ? text : "");
    free(text);
    json_decref(all);
    return NYB_OK;
}

enum nyb_code tool_choice_constraint(const struct gen *g, const json_t *body, const json_t *content,
                                     struct arena *a, const char **parameter, const char **text,
                                     struct nyb_err *err)
{
    const json_t *choice = json_object_get(body, "tool_choice"), *tools = json_object_get(body, "tools");
    const char *word = json_string_value(choice), *name = named(choice);
    struct calls c = {.format = g->x->s->format, .only = name, .err = err};
    bool required = name || (word && !strcmp(word, "required")), strict = false;
    json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) strict = strict || is_strict(tool);
    bool asked = required || strict || (content && c.format->call_open);
    if (!json_is_array(tools) || (word && !strcmp(word, "none")) || !asked)
        return NYB_OK;
    c.content = required ? NULL : content;
    *parameter = required ? "tool_choice" : "tools";
    if (!c.format->call_open)
        return err_at(
            err, NYB_E_UNSUPPORTED, *parameter, -1,
            "this model's chat template has no tool calls that could be constrained. (parameter=%s)",
            *parameter);
    bool parallel = !g->one_call && !name && c.format->syntax != &parse_syntax_mistral;
    struct buf out = {0};
    c.structures = json_array();
    enum nyb_code code = write_calls(&c, tools, required, parallel, &out);
    json_decref(c.structures);
    if (code == NYB_OK)
        *text = arena_strdup(a, out.data);
    buf_free(&out);
    return code;
}
