#include "server/messages.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/params_json.h"
#include "text/chat_json.h"

static enum nyb_code refuse(struct nyb_err *err, size_t i, const char *what)
{
    char where[48];
    snprintf(where, sizeof(where), "messages[%zu]", i);
    return err_at(err, NYB_E_ARG, where, -1, "%s %s. (parameter=messages)", where, what);
}

/* What it says; NULL: it is not text. A refusal is what an assistant said instead of an answer; the input_
 * and output_ types are those of the Responses API. */
static const json_t *part_text(const json_t *part)
{
    static const char *const types[] = {"text", "input_text", "output_text"};
    const char *type = json_string_value(json_object_get(part, "type"));
    if (json_is_string(part))
        return part;
    if (type && !strcmp(type, "refusal"))
        return json_object_get(part, "refusal");
    bool fine = !type;
    for (size_t i = 0; i < COUNT_OF(types) && type; i++)
        fine = fine || !strcmp(type, types[i]);
    return fine ? json_object_get(part, "text") : NULL;
}

/* [{"type": "text", "text": ..}, ..]: joined by newlines, as vLLM does for templates that want text. */
static enum nyb_code join_parts(json_t *message, const json_t *parts, size_t i, struct nyb_err *err)
{
    struct buf text = {0};
    size_t k;
    json_t *part;
    enum nyb_code code = NYB_OK;
    json_array_foreach(parts, k, part)
    {
        const json_t *piece = part_text(part);
        if (!params_is_string(piece)) {
            code = refuse(err, i, "has a content part that is not text: only text is supported");
            break;
        }
        if (k)
            buf_add_byte(&text, '\n');
        buf_add(&text, json_string_value(piece), json_string_length(piece));
    }
    if (code == NYB_OK)
        json_object_set_new(message, "content", json_stringn(text.data ? text.data : "", text.len));
    buf_free(&text);
    return code;
}

static enum nyb_code fix_content(json_t *message, size_t i, struct nyb_err *err)
{
    json_t *content = json_object_get(message, "content");
    if (params_is_string(content))
        return NYB_OK;
    if (json_is_array(content)) {
        json_t *parts = json_incref(content); /* its place is taken */
        enum nyb_code code = join_parts(message, parts, i, err);
        json_decref(parts);
        return code;
    }
    if (content && !json_is_null(content))
        return refuse(err, i, "must have a string or a list of parts as its content");
    const char *role = json_string_value(json_object_get(message, "role"));
    if (strcmp(role, "assistant"))
        return refuse(err, i, "has no content");
    json_object_set_new(message, "content", json_string(""));
    return NYB_OK;
}

/* A model may have written a name twice: then the last one counts, as in Python. */
static json_t *parse_arguments(const json_t *text)
{
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    json_t *parsed;
    if (chat_json_parse(&parsed, s, n, "arguments", NULL) == NYB_OK)
        return parsed;
    return json_loadb(s, n, JSON_ALLOW_NUL, NULL);
}

/* Clients send arguments as the text of a JSON object; templates write them with tojson. */
static enum nyb_code fix_call(json_t *call, size_t i, struct nyb_err *err)
{
    json_t *function = json_object_get(call, "function");
    if (!json_is_object(function) || !params_is_string(json_object_get(function, "name")))
        return refuse(err, i, "has a tool call without a function name");
    const json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_string(arguments))
        return NYB_OK;
    json_t *parsed = json_string_length(arguments) == 0 ? json_object() : parse_arguments(arguments);
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return refuse(err, i, "has a tool call whose arguments are not the text of a JSON object");
    }
    json_object_set_new(function, "arguments", parsed);
    return NYB_OK;
}

static void fix_reasoning(json_t *message)
{
    static const char *const name[2] = {"reasoning", "reasoning_content"};
    for (int k = 0; k < 2; k++) {
        json_t *v = json_object_get(message, name[k]);
        if (json_is_string(v) && !json_object_get(message, name[1 - k]))
            json_object_set(message, name[1 - k], v);
    }
}

static enum nyb_code fix_message(json_t *message, size_t i, struct nyb_err *err)
{
    if (!json_is_object(message))
        return refuse(err, i, "must be an object");
    if (!params_is_string(json_object_get(message, "role")))
        return refuse(err, i,
                      json_object_get(message, "role") ? "must have a string as its role" : "has no role");
    TRY(fix_content(message, i, err));
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    if (calls && !json_is_array(calls) && !json_is_null(calls))
        return refuse(err, i, "must have a list as its tool_calls");
    if (json_is_null(calls))
        json_object_del(message, "tool_calls");
    size_t k;
    json_array_foreach(json_object_get(message, "tool_calls"), k, call) TRY(fix_call(call, i, err));
    fix_reasoning(message);
    return NYB_OK;
}

enum nyb_code messages_normalize(json_t *messages, struct nyb_err *err)
{
    size_t i;
    json_t *message;
    if (!messages || json_is_null(messages))
        return err_at(err, NYB_E_ARG, "messages", -1, "messages is missing. (parameter=messages)");
    if (!json_is_array(messages))
        return params_wrong_type(err, "messages", "a list of messages", messages);
    if (json_array_size(messages) == 0)
        return err_at(err, NYB_E_ARG, "messages", -1, "messages must not be empty. (parameter=messages)");
    json_array_foreach(messages, i, message) TRY(fix_message(message, i, err));
    return NYB_OK;
}

enum nyb_code messages_check_tools(const json_t *tools, struct nyb_err *err)
{
    size_t i;
    json_t *tool;
    if (!json_is_array(tools))
        return params_wrong_type(err, "tools", "a list of tools", tools);
    json_array_foreach(tools, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *function = json_object_get(tool, "function"), *name = json_object_get(function, "name");
        const json_t *parameters = json_object_get(function, "parameters");
        if (!type || strcmp(type, "function") || !params_is_string(name) || json_string_length(name) == 0)
            return err_at(
                err, NYB_E_ARG, "tools", -1,
                "tools[%zu] must be of type function and have a function with a name. (parameter=tools)", i);
        if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
            return err_at(
                err, NYB_E_ARG, "tools", -1,
                "the parameters of tools[%zu], the function %.64s, must be a JSON schema, an object. "
                "(parameter=tools)",
                i, json_string_value(name));
    }
    return NYB_OK;
}

void messages_say_who_refuses(enum nyb_code code, struct nyb_err *err)
{
    static const char line[] = "chat template, "; /* of an error that the template did not raise itself */
    char why[sizeof(err->where) + sizeof(err->message)];
    if (code != NYB_E_TEMPLATE)
        return;
    bool has_line = !strncmp(err->where, line, strlen(line));
    if (err->where[0] && !has_line)
        return;
    snprintf(why, sizeof(why), "%s%s%s", has_line ? err->where + strlen(line) : "", has_line ? ": " : "",
             err->message);
    snprintf(err->where, sizeof(err->where), "messages");
    snprintf(err->message, sizeof(err->message), "The model's chat template refuses these messages: %.*s",
             (int)sizeof(err->message) - 64, why);
}
