#include "server/tool_choice.h"

#include <stdlib.h>
#include <string.h>

#include "server/params_json.h"
#include "text/parse_syntax.h"

static const char *named(const json_t *choice)
{
    return json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
}

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

/* What the answer must begin with. */
static void write_forced(const struct parse_format *f, const char *name, bool thinking, struct buf *b)
{
    if (thinking) {
        buf_add_str(b, "\n");
        buf_add_str(b, f->think_close);
        buf_add_str(b, "\n\n");
    }
    buf_add_str(b, f->call_open);
    if (f->syntax != &parse_syntax_json)
        return;
    buf_add_str(b, "\n{\"name\": \"");
    if (name) {
        buf_add_str(b, name);
        buf_add_str(b, "\", \"arguments\":");
    }
}

enum nyb_code tool_choice_apply(struct gen *g, const json_t *body, struct arena *a,
                                struct request_prompt *prompt, struct nyb_err *err)
{
    const json_t *choice = json_object_get(body, "tool_choice");
    const struct parse_format *f = g->x->s->format;
    const char *word = json_string_value(choice), *name = named(choice);
    struct buf forced = {0};
    int32_t *ids;
    size_t n;
    if (!name && (!word || strcmp(word, "required")))
        return NYB_OK;
    if (!f->call_open)
        return err_at(
            err, NYB_E_UNSUPPORTED, "tool_choice", -1,
            "this model's chat template has no tool calls that could be required. (parameter=tool_choice)");
    if (name && (f->syntax != &parse_syntax_json || strpbrk(name, "\"\\")))
        return err_at(
            err, NYB_E_UNSUPPORTED, "tool_choice", -1,
            "a named function cannot be required of this model: use required. (parameter=tool_choice)");
    const char *text = g->prompt_text ? g->prompt_text : "";
    write_forced(f, name, parse_format_opens(f, text, strlen(text)), &forced);
    enum nyb_code code = nyb_tokenize(g->x->s->engine, forced.data, forced.len, false, &ids, &n, err);
    if (code != NYB_OK) {
        buf_free(&forced);
        return code;
    }
    int32_t *all = arena_alloc(a, prompt->n + n, sizeof(*all));
    memcpy(all, prompt->ids, prompt->n * sizeof(*all));
    memcpy(all + prompt->n, ids, n * sizeof(*all));
    nyb_free(ids);
    prompt->ids = all;
    prompt->n += n;
    g->forced = buf_steal(&forced);
    return NYB_OK;
}
