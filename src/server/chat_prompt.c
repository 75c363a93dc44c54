#include "server/chat_prompt.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/messages.h"
#include "server/params_json.h"

/* Those of the server where a request says nothing of them. */
static void add_defaults(json_t *all, const struct server *s)
{
    const char *text = s->config->chat_template_kwargs;
    json_t *defaults = text ? json_loads(text, 0, NULL) : NULL; /* config_settle has looked at it */
    if (defaults)
        json_object_update_missing(all, defaults);
    json_decref(defaults);
}

/* Variables for the template that are fields of the request, too. */
static enum nyb_code read_kwargs(const struct server *s, const json_t *body, char **out, struct nyb_err *err)
{
    static const char *const field[] = {"enable_thinking", "reasoning_effort", "documents"};
    const json_t *effort = json_object_get(body, "reasoning_effort");
    const json_t *documents = json_object_get(body, "documents");
    const json_t *kwargs = json_object_get(body, "chat_template_kwargs");
    bool thinking = false;
    *out = NULL;
    TRY(params_bool(body, "enable_thinking", &thinking, err));
    if (effort && !json_is_null(effort) && !params_is_string(effort))
        return params_wrong_type(err, "reasoning_effort", "a string", effort);
    if (documents && !json_is_null(documents) && !json_is_array(documents))
        return params_wrong_type(err, "documents", "a list of documents", documents);
    if (kwargs && !json_is_null(kwargs) && !json_is_object(kwargs))
        return params_wrong_type(err, "chat_template_kwargs", "an object", kwargs);
    json_t *all = json_is_object(kwargs) ? json_copy((json_t *)(uintptr_t)kwargs) : json_object();
    for (size_t i = 0; i < COUNT_OF(field); i++) {
        json_t *v = json_object_get(body, field[i]);
        if (v && !json_is_null(v) && !json_object_get(all, field[i]))
            json_object_set(all, field[i], v);
    }
    if (params_is_string(effort) &&
        !json_object_get(all, "enable_thinking")) /* most templates know but this */
        json_object_set_new(all, "enable_thinking", json_boolean(strcmp(json_string_value(effort), "none")));
    add_defaults(all, s);
    if (json_object_size(all))
        *out = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return NYB_OK;
}

/* How the prompt ends. */
static enum nyb_code read_end(const json_t *body, struct nyb_chat *chat, struct nyb_err *err)
{
    bool generation = false;
    TRY(params_bool(body, "add_generation_prompt", &chat->add_generation_prompt, err));
    TRY(params_bool(body, "add_generation_prompt", &generation, err)); /* asked for by name */
    TRY(params_bool(body, "continue_final_message", &chat->continue_final_message, err));
    if (generation && chat->continue_final_message)
        return err_at(err, NYB_E_ARG, "continue_final_message", -1,
                      "continue_final_message and add_generation_prompt cannot be given together. "
                      "(parameter=continue_final_message)");
    return NYB_OK;
}

enum nyb_code chat_prompt_render(const struct server *s, const json_t *body, int32_t **ids, size_t *n,
                                 char **text, struct nyb_err *err)
{
    const json_t *tools = json_object_get(body, "tools");
    struct nyb_chat chat = {.add_generation_prompt = true};
    char *kwargs;
    TRY(read_end(body, &chat, err));
    TRY(read_kwargs(s, body, &kwargs, err));
    char *messages = json_dumps(json_object_get(body, "messages"), JSON_COMPACT);
    char *tool_text = json_is_array(tools) ? json_dumps(tools, JSON_COMPACT) : NULL;
    chat.messages = messages;
    chat.tools = tool_text;
    chat.kwargs = kwargs;
    enum nyb_code code = nyb_render_chat(s->engine, &chat, ids, n, text, err);
    messages_say_who_refuses(code, err);
    free(messages);
    free(tool_text);
    free(kwargs);
    return code;
}
