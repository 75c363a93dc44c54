#include "server/anthropic_input.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/asked.h"
#include "server/params_json.h"
#include "server/rename.h"

/* Fields that are this API's own, or that would change the shape of the chat's answer. Every other one counts
 * as in chats. */
static const char *const not_chat[] = {"messages",
                                       "system",
                                       "tools",
                                       "tool_choice",
                                       "stop_sequences",
                                       "thinking",
                                       "output_config",
                                       "output_format",
                                       "metadata",
                                       "mcp_servers",
                                       "container",
                                       "chat_template_kwargs",
                                       "response_format",
                                       "stream_options",
                                       "logprobs",
                                       "top_logprobs",
                                       "max_completion_tokens",
                                       "n",
                                       "best_of",
                                       "echo",
                                       "prompt_logprobs",
                                       "prompt_token_ids",
                                       "completion_token_ids",
                                       "add_generation_prompt",
                                       "continue_final_message",
                                       "return_token_ids"};

static const char *type_of(const json_t *block)
{
    return json_string_value(json_object_get(block, "type"));
}

static enum nyb_code check_unsupported(const json_t *asked, struct nyb_err *err)
{
    static const char *const elsewhere[] = {"mcp_servers", "container"};
    for (size_t i = 0; i < COUNT_OF(elsewhere); i++) {
        const json_t *v = asked_member(asked, elsewhere[i]);
        if (v && !(json_is_array(v) && json_array_size(v) == 0))
            return err_at(err, NYB_E_UNSUPPORTED, elsewhere[i], -1,
                          "%s is not supported: the server calls nobody. (parameter=%s)", elsewhere[i],
                          elsewhere[i]);
    }
    return NYB_OK;
}

/* ---- messages ---------------------------------------------------------------------------------------- */

/* One message of the request while its blocks are taken. */
struct turn {
    json_t *messages; /* of the chat */
    const char *role;
    size_t i;
    json_t *text;  /* parts of its content */
    json_t *calls; /* NULL: none */
    struct buf thinking;
    struct nyb_err *err;
};

static enum nyb_code wrong_block(struct turn *t, size_t k, const char *what)
{
    char where[64];
    snprintf(where, sizeof(where), "messages[%zu].content[%zu]", t->i, k);
    return err_at(t->err, NYB_E_ARG, where, -1, "%s %s. (parameter=messages)", where, what);
}

static enum nyb_code wrong_type(struct turn *t, size_t k, const char *type)
{
    char what[160];
    snprintf(what, sizeof(what),
             "is of type \"%.40s\", which is not supported: the model takes text and results of calls", type);
    return wrong_block(t, k, what);
}

/* What has been read so far becomes a message of its own. */
static void flush(struct turn *t)
{
    bool empty = json_array_size(t->text) == 0;
    if (empty && !t->calls && !t->thinking.len)
        return;
    json_t *m = json_pack("{s:s, s:O}", "role", t->role, "content", t->text);
    if (empty)
        json_object_set_new(m, "content", json_string(""));
    if (t->calls)
        json_object_set(m, "tool_calls", t->calls);
    if (t->thinking.len)
        json_object_set_new(m, "reasoning_content", json_stringn(t->thinking.data, t->thinking.len));
    json_array_append_new(t->messages, m);
    json_decref(t->text);
    json_decref(t->calls);
    t->text = json_array();
    t->calls = NULL;
    buf_clear(&t->thinking);
}

static enum nyb_code take_text(struct turn *t, const json_t *block, size_t k)
{
    json_t *text = json_object_get(block, "text");
    if (!params_is_string(text))
        return wrong_block(t, k, "has no text");
    json_array_append_new(t->text, json_pack("{s:s, s:O}", "type", "text", "text", text));
    return NYB_OK;
}

static enum nyb_code take_thinking(struct turn *t, const json_t *block, size_t k)
{
    const json_t *text = json_object_get(block, "thinking");
    if (!params_is_string(text))
        return wrong_block(t, k, "has no thinking");
    buf_add(&t->thinking, json_string_value(text), json_string_length(text));
    return NYB_OK;
}

static enum nyb_code take_call(struct turn *t, const json_t *block, size_t k)
{
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
           *input = json_object_get(block, "input");
    if (!params_is_string(id) || !params_is_string(name) || !json_is_object(input))
        return wrong_block(t, k, "is a call without id, name or input");
    if (!t->calls)
        t->calls = json_array();
    json_array_append_new(t->calls, json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function",
                                              "function", "name", name, "arguments", input));
    return NYB_OK;
}

/* Its content is a text, or blocks of text. */
static enum nyb_code take_result(struct turn *t, const json_t *block, size_t k)
{
    json_t *id = json_object_get(block, "tool_use_id"), *content = asked_member(block, "content"), *part;
    size_t i;
    if (!params_is_string(id))
        return wrong_block(t, k, "is a result without tool_use_id");
    if (content && !json_is_string(content) && !json_is_array(content))
        return wrong_block(t, k, "must have a string or a list of blocks as its content");
    flush(t);
    json_array_foreach(content, i, part)
    {
        const char *type = type_of(part);
        if (!type || strcmp(type, "text"))
            return wrong_type(t, k, type ? type : "");
    }
    json_t *m = json_pack("{s:s, s:O}", "role", "tool", "tool_call_id", id);
    if (content && !(json_is_array(content) && json_array_size(content) == 0))
        json_object_set(m, "content", content);
    else
        json_object_set_new(m, "content", json_string(""));
    json_array_append_new(t->messages, m);
    return NYB_OK;
}

static enum nyb_code take_block(struct turn *t, const json_t *block, size_t k)
{
    const char *type = type_of(block);
    bool answers = !strcmp(t->role, "assistant");
    if (!type)
        return wrong_block(t, k, "has no type");
    if (!strcmp(type, "text"))
        return take_text(t, block, k);
    if (answers && !strcmp(type, "thinking"))
        return take_thinking(t, block, k);
    if (answers && !strcmp(type, "redacted_thinking")) /* of another server, which alone can read it */
        return NYB_OK;
    if (answers && !strcmp(type, "tool_use"))
        return take_call(t, block, k);
    if (!answers && !strcmp(type, "tool_result"))
        return take_result(t, block, k);
    return wrong_type(t, k, type);
}

static enum nyb_code take_blocks(struct turn *t, const json_t *content)
{
    size_t k;
    json_t *block;
    json_array_foreach(content, k, block) TRY(take_block(t, block, k));
    flush(t);
    return NYB_OK;
}

static enum nyb_code take_message(const json_t *message, size_t i, json_t *messages, struct nyb_err *err)
{
    json_t *role = json_object_get(message, "role"), *content = json_object_get(message, "content");
    char where[48];
    snprintf(where, sizeof(where), "messages[%zu]", i);
    if (!params_is_string(role))
        return err_at(err, NYB_E_ARG, where, -1, "%s has no role. (parameter=messages)", where);
    if (json_is_string(content)) {
        json_array_append_new(messages, json_pack("{s:O, s:O}", "role", role, "content", content));
        return NYB_OK;
    }
    if (!json_is_array(content))
        return err_at(err, NYB_E_ARG, where, -1,
                      "%s must have a string or a list of blocks as its content. (parameter=messages)",
                      where);
    struct turn t = {
        .messages = messages, .role = json_string_value(role), .i = i, .text = json_array(), .err = err};
    enum nyb_code code = take_blocks(&t, content);
    json_decref(t.text);
    json_decref(t.calls);
    buf_free(&t.thinking);
    return code;
}

static enum nyb_code take_system(json_t *system, json_t *messages, struct nyb_err *err)
{
    json_t *part;
    size_t i;
    json_array_foreach(system, i, part)
    {
        const char *type = type_of(part);
        if (!type || strcmp(type, "text"))
            return err_at(err, NYB_E_ARG, "system", -1,
                          "system[%zu] must be of type text. (parameter=system)", i);
    }
    json_array_append_new(messages, json_pack("{s:s, s:O}", "role", "system", "content", system));
    return NYB_OK;
}

/* A last message that is the assistant's is the beginning of the answer. */
static void read_end(json_t *chat)
{
    const json_t *all = json_object_get(chat, "messages"),
                 *last = json_array_get(all, json_array_size(all) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!role || strcmp(role, "assistant") || json_object_get(last, "tool_calls"))
        return;
    json_object_set_new(chat, "continue_final_message", json_true());
    json_object_set_new(chat, "add_generation_prompt", json_false());
}

static enum nyb_code read_messages(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    json_t *system = asked_member(asked, "system"), *list = asked_member(asked, "messages"),
           *messages = json_array(), *message;
    size_t i;
    json_object_set_new(chat, "messages", messages);
    if (system && !json_is_string(system) && !json_is_array(system))
        return params_wrong_type(err, "system", "a string or a list of blocks of text", system);
    if (system && !(json_is_array(system) && json_array_size(system) == 0))
        TRY(take_system(system, messages, err));
    if (!list)
        return err_at(err, NYB_E_ARG, "messages", -1, "messages is missing. (parameter=messages)");
    if (!json_is_array(list))
        return params_wrong_type(err, "messages", "a list of messages", list);
    json_array_foreach(list, i, message) TRY(take_message(message, i, messages, err));
    read_end(chat);
    return NYB_OK;
}

/* ---- tools ------------------------------------------------------------------------------------------- */

static json_t *function_of(const json_t *tool)
{
    static const char *const same[] = {"name", "description", "strict"};
    json_t *f = json_object();
    for (size_t i = 0; i < COUNT_OF(same); i++)
        if (asked_member(tool, same[i]))
            json_object_set(f, same[i], asked_member(tool, same[i]));
    if (asked_member(tool, "input_schema"))
        json_object_set(f, "parameters", asked_member(tool, "input_schema"));
    return json_pack("{s:s, s:o}", "type", "function", "function", f);
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
        const char *type = type_of(tool);
        if (type && strcmp(type, "custom"))
            return err_at(
                err, NYB_E_UNSUPPORTED, "tools", -1,
                "tools[%zu] is of type \"%.40s\", and there are only the client's own here: the server calls "
                "nobody. (parameter=tools)",
                i, type);
        if (!params_is_string(json_object_get(tool, "name")))
            return err_at(err, NYB_E_ARG, "tools", -1, "tools[%zu] has no name. (parameter=tools)", i);
        json_array_append_new(list, function_of(tool));
    }
    return NYB_OK;
}

static enum nyb_code read_tool_choice(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    static const struct rename words[] = {{"auto", "auto"}, {"required", "any"}, {"none", "none"}};
    json_t *choice = asked_member(asked, "tool_choice"), *name = json_object_get(choice, "name");
    const char *type = type_of(choice);
    bool one = false;
    if (!choice)
        return NYB_OK;
    TRY(params_bool(choice, "disable_parallel_tool_use", &one, err));
    if (one)
        json_object_set_new(chat, "parallel_tool_calls", json_false());
    for (size_t i = 0; type && i < COUNT_OF(words); i++)
        if (!strcmp(type, words[i].asked)) {
            json_object_set_new(chat, "tool_choice", json_string(words[i].chat));
            return NYB_OK;
        }
    if (!type || strcmp(type, "tool") || !params_is_string(name))
        return params_wrong_type(err, "tool_choice", "of type auto, any, none, or tool with a name", choice);
    json_object_set_new(chat, "tool_choice",
                        json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
    return NYB_OK;
}

/* ---- the rest ---------------------------------------------------------------------------------------- */

/* {"type": "enabled", "budget_tokens": n}, disabled, or adaptive. */
static enum nyb_code read_thinking(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    json_t *thinking = asked_member(asked, "thinking"), *kwargs = asked_member(asked, "chat_template_kwargs");
    const char *type = type_of(thinking);
    if (kwargs && !json_is_object(kwargs))
        return params_wrong_type(err, "chat_template_kwargs", "an object", kwargs);
    kwargs = kwargs ? json_copy(kwargs) : json_object();
    json_object_set_new(chat, "chat_template_kwargs", kwargs);
    if (!thinking)
        return NYB_OK;
    bool off = type && !strcmp(type, "disabled");
    if (!off && (!type || (strcmp(type, "enabled") && strcmp(type, "adaptive"))))
        return params_wrong_type(err, "thinking", "of type enabled, adaptive or disabled", thinking);
    if (!json_object_get(kwargs, "enable_thinking"))
        json_object_set_new(kwargs, "enable_thinking", json_boolean(!off));
    if (asked_member(thinking, "budget_tokens") && !off)
        json_object_set(chat, "reasoning_max_tokens", asked_member(thinking, "budget_tokens"));
    return NYB_OK;
}

/* output_config.format, before it had that name output_format; output_config.effort */
static enum nyb_code read_output(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    json_t *config = asked_member(asked, "output_config"), *format = asked_member(config, "format"),
           *effort = asked_member(config, "effort");
    if (config && !json_is_object(config))
        return params_wrong_type(err, "output_config", "an object", config);
    if (!format)
        format = asked_member(asked, "output_format");
    const char *type = type_of(format);
    if (format && (!type || strcmp(type, "json_schema") || !asked_member(format, "schema")))
        return params_wrong_type(err, "output_config", "a format of type json_schema with a schema", format);
    if (format)
        json_object_set_new(chat, "response_format",
                            json_pack("{s:s, s:{s:s, s:O}}", "type", "json_schema", "json_schema", "name",
                                      "output", "schema", asked_member(format, "schema")));
    if (effort && !params_is_string(effort))
        return params_wrong_type(err, "output_config.effort", "a string", effort);
    json_t *kwargs = json_object_get(chat, "chat_template_kwargs");
    if (effort && !json_object_get(kwargs, "reasoning_effort")) /* whether to think `thinking` alone says */
        json_object_set(kwargs, "reasoning_effort", effort);
    return NYB_OK;
}

static void copy_chat(const json_t *asked, json_t *chat)
{
    asked_copy_others(asked, chat, not_chat, COUNT_OF(not_chat));
    if (asked_member(asked, "stop_sequences"))
        json_object_set(chat, "stop", asked_member(asked, "stop_sequences"));
}

static enum nyb_code convert(const json_t *asked, json_t *chat, struct nyb_err *err)
{
    TRY(check_unsupported(asked, err));
    copy_chat(asked, chat);
    TRY(read_messages(asked, chat, err));
    TRY(read_tools(asked, chat, err));
    TRY(read_tool_choice(asked, chat, err));
    TRY(read_thinking(asked, chat, err));
    return read_output(asked, chat, err);
}

enum nyb_code anthropic_input(const json_t *asked, json_t **chat, struct nyb_err *err)
{
    return asked_convert(asked, convert, chat, err);
}

void anthropic_rename_fault(struct nyb_err *err)
{
    static const struct rename table[] = {{"messages", "messages"},
                                          {"stop", "stop_sequences"},
                                          {"continue_final_message", "messages"},
                                          {"response_format", "output_config.format"},
                                          {"reasoning_max_tokens", "thinking.budget_tokens"}};
    rename_fault(err, table, COUNT_OF(table), "messages");
}
