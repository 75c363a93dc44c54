/* POST /tokenize and /detokenize, /apply-template, /v1/messages/count_tokens and /v1/responses/input_tokens
 */
#include <stdlib.h>
#include <string.h>

#include "server/anthropic_input.h"
#include "server/chat_prompt.h"
#include "server/error.h"
#include "server/messages.h"
#include "server/params_json.h"
#include "server/request.h"
#include "server/responses_input.h"
#include "server/route.h"
#include "server/tool_choice.h"

/* The prompt of a chat, as /v1/chat/completions would make it. prompt: as text, too; may be NULL. */
static enum nyb_code tokenize_messages(const struct server *s, json_t *body, int32_t **ids, size_t *n,
                                       char **prompt, struct nyb_err *err)
{
    TRY(tool_choice_normalize(body, err));
    TRY(messages_normalize(json_object_get(body, "messages"), err));
    const json_t *tools = json_object_get(body, "tools");
    if (tools)
        TRY(messages_check_tools(tools, err));
    return chat_prompt_render(s, body, ids, n, prompt, err);
}

static enum nyb_code tokenize(const struct server *s, json_t *body, int32_t **ids, size_t *n,
                              struct nyb_err *err)
{
    const json_t *prompt = json_object_get(body, "prompt"), *content = json_object_get(body, "content");
    bool special = prompt || !content;
    TRY(request_check_model(s, body, err));
    if (json_object_get(body, "messages"))
        return tokenize_messages(s, body, ids, n, NULL, err);
    if (!prompt && content) { /* llama.cpp's names */
        prompt = content;
        TRY(params_bool(body, "add_special", &special, err));
    }
    if (!prompt)
        return err_at(err, NYB_E_ARG, "prompt", -1, "prompt or messages must be given. (parameter=prompt)");
    if (!params_is_string(prompt))
        return params_wrong_type(err, "prompt", "a string", prompt);
    TRY(params_bool(body, "add_special_tokens", &special, err));
    return nyb_tokenize(s->engine, json_string_value(prompt), json_string_length(prompt), special, ids, n,
                        err);
}

static void add_ids(struct exchange *x, const int32_t *ids, size_t n, bool strings)
{
    struct buf *b = &x->reply;
    x->status = 200;
    buf_printf(b, "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":[", n,
               (long long)x->s->info->max_model_len);
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%s%d", i ? "," : "", ids[i]);
    buf_add_str(b, "],\"token_strs\":");
    buf_add_str(b, strings ? "[" : "null");
    for (size_t i = 0; strings && i < n; i++) {
        const char *text = nyb_token_text(x->s->engine, ids[i]);
        buf_add_str(b, i ? "," : "");
        json_add_string(b, text ? text : "", text ? strlen(text) : 0);
    }
    buf_add_str(b, strings ? "]}" : "}");
}

void api_tokenize(struct exchange *x)
{
    struct nyb_err err = {0};
    json_t *body = request_parse(x);
    int32_t *ids = NULL;
    size_t n = 0;
    bool strings = false;
    if (!body)
        return;
    enum nyb_code code = params_bool(body, "return_token_strs", &strings, &err);
    if (code == NYB_OK)
        code = tokenize(x->s, body, &ids, &n, &err);
    if (code == NYB_OK)
        add_ids(x, ids, n, strings);
    else
        error_reply_err(x, &err);
    nyb_free(ids);
    json_decref(body);
}

static enum nyb_code render(struct exchange *x, json_t *body, struct nyb_err *err)
{
    int32_t *ids = NULL;
    size_t n;
    char *prompt = NULL;
    TRY(request_check_model(x->s, body, err));
    enum nyb_code code = tokenize_messages(x->s, body, &ids, &n, &prompt, err);
    if (code == NYB_OK) {
        x->status = 200;
        buf_add_str(&x->reply, "{\"prompt\":");
        json_add_string(&x->reply, prompt, strlen(prompt));
        buf_add_byte(&x->reply, '}');
    }
    nyb_free(ids);
    nyb_free(prompt);
    return code;
}

/* llama.cpp's: what a model reads of messages. */
void api_apply_template(struct exchange *x)
{
    struct nyb_err err = {0};
    json_t *body = request_parse(x);
    if (!body)
        return;
    if (render(x, body, &err) != NYB_OK)
        error_reply_err(x, &err);
    json_decref(body);
}

/* The other APIs' questions of how long a prompt is. */
struct counted {
    enum nyb_code (*input)(const json_t *asked, json_t **chat, struct nyb_err *err);
    void (*rename_fault)(struct nyb_err *err);
    const char *begin; /* of the reply, up to the number */
};

static enum nyb_code count(struct exchange *x, const json_t *asked, const struct counted *api,
                           struct nyb_err *err)
{
    json_t *chat;
    int32_t *ids = NULL;
    size_t n;
    TRY(request_check_model(x->s, asked, err));
    TRY(api->input(asked, &chat, err));
    enum nyb_code code = tokenize_messages(x->s, chat, &ids, &n, NULL, err);
    if (code != NYB_OK)
        api->rename_fault(err);
    json_decref(chat);
    nyb_free(ids);
    if (code == NYB_OK) {
        x->status = 200;
        buf_printf(&x->reply, "%s%zu}", api->begin, n);
    }
    return code;
}

static void reply_count(struct exchange *x, const struct counted *api)
{
    struct nyb_err err = {0};
    json_t *asked = request_parse(x);
    if (!asked)
        return;
    if (count(x, asked, api, &err) != NYB_OK)
        error_reply_err(x, &err);
    json_decref(asked);
}

void api_count_tokens(struct exchange *x)
{
    static const struct counted anthropic = {anthropic_input, anthropic_rename_fault, "{\"input_tokens\":"};
    reply_count(x, &anthropic);
}

void api_count_responses(struct exchange *x)
{
    static const struct counted responses = {responses_input, responses_rename_fault,
                                             "{\"object\":\"response.input_tokens\",\"input_tokens\":"};
    reply_count(x, &responses);
}

static enum nyb_code check_ids(const struct server *s, const int32_t *ids, size_t n, struct nyb_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->info->vocab_size)
            return err_at(
                err, NYB_E_RANGE, "tokens", -1,
                "tokens must be ids in [0, %d), got %d at position %zu. (parameter=tokens, value=%d)",
                s->info->vocab_size, ids[i], i, ids[i]);
    return NYB_OK;
}

static enum nyb_code detokenize(struct exchange *x, const json_t *body, struct arena *a, struct nyb_err *err)
{
    const json_t *tokens = json_object_get(body, "tokens");
    int32_t *ids;
    size_t n, len;
    char *text;
    TRY(request_check_model(x->s, body, err));
    if (!tokens || json_is_null(tokens))
        return err_at(err, NYB_E_ARG, "tokens", -1, "tokens is missing. (parameter=tokens)");
    TRY(params_ids(tokens, "tokens", a, &ids, &n, err));
    TRY(check_ids(x->s, ids, n, err));
    TRY(nyb_detokenize(x->s->engine, ids, n, true, &text, &len, err));
    x->status = 200;
    buf_add_str(&x->reply, "{\"prompt\":");
    json_add_string(&x->reply, text, len);
    buf_add_str(&x->reply, ",\"content\":"); /* llama.cpp's name */
    json_add_string(&x->reply, text, len);
    buf_add_byte(&x->reply, '}');
    nyb_free(text);
    return NYB_OK;
}

void api_detokenize(struct exchange *x)
{
    struct nyb_err err = {0};
    struct arena arena;
    json_t *body = request_parse(x);
    if (!body)
        return;
    arena_init(&arena, 4096);
    if (detokenize(x, body, &arena, &err) != NYB_OK)
        error_reply_err(x, &err);
    arena_free(&arena);
    json_decref(body);
}
