#include "server/responses_input.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/asked.h"
#include "server/params_json.h"
#include "server/rename.h"

/* Fields that are this API's own, or that would change the shape of the chat's answer. Every other one counts
 * as in chats. */
static const char *const not_chat[] = {"input",
                                       "instructions",
                                       "tools",
                                       "tool_choice",
                                       "text",
                                       "reasoning",
                                       "max_output_tokens",
                                       "top_logprobs",
                                       "include",
                                       "metadata",
                                       "previous_response_id",
                                       "conversation",
                                       "prompt",
                                       "background",
                                       "truncation",
                                       "store",
                                       "max_tool_calls",
                                       "messages",
                                       "response_format",
                                       "stream_options",
                                       "logprobs",
                                       "max_tokens",
                                       "max_completion_tokens",
                                       "n",
                                       "best_of",
                                       "echo",
                                       "prompt_logprobs",
                                       "prompt_token_ids",
                                       "completion_token_ids",
                                       "continue_final_message",
                                       "return_token_ids"};

static enum nyb_code refuse(struct nyb_err *err, const char *name, const char *why)
{
    return err_at(err, NYB_E_UNSUPPORTED, name, -1, "%s is not supported: %s. (parameter=%s)", name, why,
                  name);
}

static enum nyb_code check_unsupported(const json_t *asked, struct nyb_err *err)
{
    static const char stored[] = "nothing is stored here, send the whole conversation as input";
    const json_t *truncation = asked_member(asked, "truncation");
    bool background = false;
    if (asked_member(asked, "previous_response_id"))
        return refuse(err, "previous_response_id", stored);
    if (asked_member(asked, "conversation"))
        return refuse(err, "conversation", stored);
    if (asked_member(asked, "prompt"))
        return refuse(err, "prompt", "templates of prompts are not kept here");
    TRY(params_bool(asked, "background", &background, err));
    if (background)
        return refuse(err, "background", stored);
    if (truncation && (!json_is_string(truncation) || strcmp(json_string_value(truncation), "disabled")))
        return refuse(err, "truncation", "conversations are never shortened");
    return NYB_OK;
}

/* ---- input ------------------------------------------------------------------------------------------- */

struct conversation {
    json_t *messages;
    json_t *system;    /* the first message, as long as nothing else has come; borrowed, or NULL */
    json_t *answer;    /* the assistant's message that calls still belong to; borrowed, or NULL */
    json_t *reasoning; /* of the assistant's next message; NULL: none                         */
    struct nyb_err *err;
};

static enum nyb_code wrong_item(struct conversation *c, size_t i, const char *what)
{
    char where[48];
    snprintf(where, sizeof(where), "input[%zu]", i);
    return err_at(c->err, NYB_E_ARG, where, -1, "%s %s. (parameter=input)", where, what);
}

static json_t *add_message(struct conversation *c, const char *role, json_t *content)
{
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string(role));
    json_object_set(m, "content", content);
    json_array_append_new(c->messages, m);
    c->answer = c->system = NULL;
    if (!strcmp(role, "tool"))
        return m;
    if (!strcmp(role, "assistant")) {
        c->answer = m;
        if (c->reasoning)
            json_object_set(m, "reasoning_content", c->reasoning);
    }
    json_decref(c->reasoning); /* of an answer that was cut within it: a later one is not its answer */
    c->reasoning = NULL;
    return m;
}

/* Instructions and what the input begins with are one message to a model: many templates know no second one.
 */
static void add_to_system(struct conversation *c, json_t *content)
{
    json_t *all = json_object_get(c->system, "content"), *part;
    size_t i;
    if (!json_is_array(all)) {
        all = json_pack("[O]", all);
        json_object_set_new(c->system, "content", all);
    }
    if (!json_is_array(content))
        json_array_append(all, content);
    json_array_foreach(content, i, part) json_array_append(all, part);
}

static bool is_system(const char *role)
{
    return !strcmp(role, "system") || !strcmp(role, "developer");
}

static enum nyb_code take_message(struct conversation *c, const json_t *item, size_t i)
{
    json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
    if (!params_is_string(role))
        return wrong_item(c, i, "has no role");
    if (!json_is_string(content) && !json_is_array(content))
        return wrong_item(c, i, "must have a string or a list of parts as its content");
    bool system = is_system(json_string_value(role));
    if (system && c->system) {
        add_to_system(c, content);
        return NYB_OK;
    }
    bool first = json_array_size(c->messages) == 0;
    json_t *m = add_message(c, json_string_value(role), content);
    c->system = system && first ? m : NULL;
    return NYB_OK;
}

static enum nyb_code take_call(struct conversation *c, const json_t *item, size_t i)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
           *arguments = json_object_get(item, "arguments");
    if (!params_is_string(id) || !params_is_string(name) || !json_is_string(arguments))
        return wrong_item(c, i, "is a call without call_id, name or arguments");
    if (!c->answer) {
        json_t *nothing = json_string("");
        add_message(c, "assistant", nothing);
        json_decref(nothing);
    }
    json_t *calls = json_object_get(c->answer, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(c->answer, "tool_calls", calls);
    }
    json_array_append_new(calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function",
                                           "function", "name", name, "arguments", arguments));
    return NYB_OK;
}

static enum nyb_code take_output(struct conversation *c, const json_t *item, size_t i)
{
    json_t *id = json_object_get(item, "call_id"), *output = json_object_get(item, "output");
    if (!params_is_string(id) || (!json_is_string(output) && !json_is_array(output)))
        return wrong_item(c, i, "is a call's output without call_id or output");
    json_object_set(add_message(c, "tool", output), "tool_call_id", id);
    return NYB_OK;
}

/* Its text, or where there is none its summary's. */
static enum nyb_code take_reasoning(struct conversation *c, const json_t *item)
{
    static const char *const lists[] = {"content", "summary"};
    struct buf text = {0};
    json_t *part;
    size_t k;
    for (size_t i = 0; i < COUNT_OF(lists) && !text.len; i++)
        json_array_foreach(json_object_get(item, lists[i]), k, part)
        {
            const json_t *piece = json_object_get(part, "text");
            if (json_is_string(piece))
                buf_add(&text, json_string_value(piece), json_string_length(piece));
        }
    json_decref(c->reasoning);
    c->reasoning = text.len ? json_stringn(text.data, text.len) : NULL;
    c->answer = NULL;
    buf_free(&text);
    return NYB_OK;
}

static enum nyb_code take_item(struct conversation *c, const json_t *item, size_t i)
{
    char what[128];
    const json_t *v = json_object_get(item, "type");
    const char *type = v ? json_string_value(v) : "message"; /* it may be left out there */
    if (!json_is_object(item))
        return wrong_item(c, i, "must be an object");
    if (!type)
        return wrong_item(c, i, "must have a string as its type");
    if (!strcmp(type, "message"))
        return take_message(c, item, i);
    if (!strcmp(type, "function_call"))
        return take_call(c, item, i);
    if (!strcmp(type, "function_call_output"))
        return take_output(c, item, i);
    if (!strcmp(type, "reasoning"))
        return take_reasoning(c, item);
    snprintf(what, sizeof(what), "is of type \"%.40s\", which is not supported", type);
    return wrong_item(c, i, what);
}

static enum nyb_code take_input(struct conversation *c, const json_t *asked)
{
    json_t *input = asked_member(asked, "input"), *instructions = asked_member(asked, "instructions"), *item;
    size_t i;
    if (instructions && !params_is_string(instructions))
        return params_wrong_type(c->err, "instructions", "a string", instructions);
    if (instructions)
        c->system = add_message(c, "system", instructions);
    if (!input)
        return err_at(c->err, NYB_E_ARG, "input", -1, "input is missing. (parameter=input)");
    if (json_is_array(input) && json_array_size(input) == 0)
        return err_at(c->err, NYB_E_ARG, "input", -1, "input must not be empty. (parameter=input)");
    if (params_is_string(input))
        add_message(c, "user", input);
    else if (!json_is_array(input))
        return params_wrong_type(c->err, "input", "a string or a list of items", input);
    json_array_foreach(input, i, item) TRY(take_item(c, item, i));
    return NYB_OK;
}

static enum nyb_code read_input(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    struct conversation c = {.messages = json_array(), .err = err};
    json_object_set_new(chat, "messages", c.messages);
    enum nyb_code code = take_input(&c, asked);
    json_decref(c.reasoning);
    return code;
}

/* ---- tools ------------------------------------------------------------------------------------------- */

/* What stands beside the type here stands under its name in chats. */
static json_t *nest(const json_t *flat, const char *type)
{
    json_t *inner = json_copy((json_t *)(uintptr_t)flat);
    json_object_del(inner, "type");
    return json_pack("{s:s, s:o}", "type", type, type, inner);
}

static enum nyb_code read_tools(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    json_t *tools = asked_member(asked, "tools"), *list, *tool;
    size_t i;
    if (!tools)
        return NYB_OK;
    if (!json_is_array(tools))
        return params_wrong_type(err, "tools", "a list of tools", tools);
    list = json_array();
    json_object_set_new(chat, "tools", list);
    json_array_foreach(tools, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (!type || strcmp(type, "function"))
            return err_at(err, type ? NYB_E_UNSUPPORTED : NYB_E_ARG, "tools", -1,
                          "tools[%zu] is of type \"%.40s\", and there are only functions here: the server "
                          "calls nobody. "
                          "(parameter=tools)",
                          i, type ? type : "");
        json_array_append_new(list, nest(tool, type));
    }
    return NYB_OK;
}

static json_t *allowed_tools(const json_t *choice)
{
    json_t *names = json_array(), *one;
    size_t i;
    json_array_foreach(json_object_get(choice, "tools"), i, one)
        json_array_append_new(names, nest(one, "function"));
    json_t *inner = json_pack("{s:o}", "tools", names);
    if (json_object_get(choice, "mode"))
        json_object_set(inner, "mode", json_object_get(choice, "mode"));
    return json_pack("{s:s, s:o}", "type", "allowed_tools", "allowed_tools", inner);
}

static void read_tool_choice(const json_t *asked, json_t *chat)
{
    json_t *choice = asked_member(asked, "tool_choice");
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (!choice)
        return;
    if (type && !strcmp(type, "function"))
        json_object_set_new(chat, "tool_choice", nest(choice, type));
    else if (type && !strcmp(type, "allowed_tools"))
        json_object_set_new(chat, "tool_choice", allowed_tools(choice));
    else
        json_object_set(chat, "tool_choice", choice);
}

/* ---- the rest ---------------------------------------------------------------------------------------- */

static enum nyb_code read_format(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    json_t *text = asked_member(asked, "text"), *format = asked_member(text, "format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (text && !json_is_object(text))
        return params_wrong_type(err, "text", "an object", text);
    if (type && !strcmp(type, "json_schema"))
        json_object_set_new(chat, "response_format", nest(format, type));
    else if (format)
        json_object_set(chat, "response_format", format);
    return NYB_OK;
}

static enum nyb_code read_reasoning(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    json_t *reasoning = asked_member(asked, "reasoning"), *effort = asked_member(reasoning, "effort");
    if (reasoning && !json_is_object(reasoning))
        return params_wrong_type(err, "reasoning", "an object", reasoning);
    if (effort)
        json_object_set(chat, "reasoning_effort", effort);
    return NYB_OK;
}

/* Other things that `include` can name belong to what is not here. */
static enum nyb_code read_logprobs(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    json_t *include = asked_member(asked, "include"), *item;
    size_t i;
    int top = 0;
    bool wanted = false;
    TRY(params_int(asked, "top_logprobs", &top, err));
    if (include && !json_is_array(include))
        return params_wrong_type(err, "include", "a list of strings", include);
    json_array_foreach(include, i, item)
    {
        if (json_is_string(item) && !strcmp(json_string_value(item), "message.output_text.logprobs"))
            wanted = true;
    }
    if (top || wanted) {
        json_object_set_new(chat, "logprobs", json_true());
        json_object_set_new(chat, "top_logprobs", json_integer(top));
    }
    return NYB_OK;
}

static void copy_chat(const json_t *asked, json_t *chat)
{
    asked_copy_others(asked, chat, not_chat, COUNT_OF(not_chat));
    if (asked_member(asked, "max_output_tokens"))
        json_object_set(chat, "max_completion_tokens", asked_member(asked, "max_output_tokens"));
}

static enum nyb_code convert(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    TRY(check_unsupported(asked, err));
    copy_chat(asked, chat);
    TRY(read_input(asked, chat, err));
    TRY(read_tools(asked, chat, err));
    read_tool_choice(asked, chat);
    TRY(read_format(asked, chat, err));
    TRY(read_reasoning(asked, chat, err));
    return read_logprobs(asked, chat, err);
}

enum nyb_code responses_input(const json_t *asked, json_t **chat, struct nyb_err *err)
{
    return asked_convert(asked, convert, chat, err);
}

void responses_rename_fault(struct nyb_err *err)
{
    static const struct rename table[] = {{"messages", "input"},
                                          {"max_completion_tokens", "max_output_tokens"},
                                          {"max_tokens", "max_output_tokens"},
                                          {"response_format", "text"},
                                          {"reasoning_effort", "reasoning"}};
    rename_fault(err, table, COUNT_OF(table), "input");
}
