/* Bodies of requests: JSON to sampling parameters, messages, tools and what both APIs share. */
#include <stdint.h>
#include <string.h>

#include "base/json.h"
#include "nybble.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef NYBBLE_SERVER
#include "server/anthropic_input.h"
#include "server/messages.h"
#include "server/params_json.h"
#include "server/request.h"
#include "server/responses_input.h"
#include "server/sglang_input.h"
#include "server/tool_choice.h"
#include "text/chat_json.h"

static void try_messages(json_t *body)
{
    struct nyb_err err;
    if (tool_choice_normalize(body, &err) != NYB_OK)
        ASSERT(err.message[0]);
    json_t *messages = json_object_get(body, "messages"), *tools = json_object_get(body, "tools");
    if (messages_normalize(messages, &err) == NYB_OK) {
        size_t i;
        json_t *m;
        json_array_foreach(messages, i, m) ASSERT(json_is_string(json_object_get(m, "content")));
    }
    if (tools && messages_check_tools(tools, &err) == NYB_OK)
        ASSERT(json_array_size(tools) > 0);
    if (tool_choice_check(body, &err) != NYB_OK)
        ASSERT(err.message[0]);
}

static void try_responses(const json_t *body)
{
    struct nyb_err err;
    json_t *chat;
    if (responses_input(body, &chat, &err) != NYB_OK) {
        ASSERT(err.where[0] && err.message[0]);
        return;
    }
    if (messages_normalize(json_object_get(chat, "messages"), &err) != NYB_OK ||
        tool_choice_normalize(chat, &err) != NYB_OK || tool_choice_check(chat, &err) != NYB_OK) {
        responses_rename_fault(&err);
        ASSERT(strncmp(err.where, "messages", 8));
    }
    json_decref(chat);
}

static void try_anthropic(const json_t *body)
{
    struct nyb_err err;
    json_t *chat;
    if (anthropic_input(body, &chat, &err) != NYB_OK) {
        ASSERT(err.where[0] && err.message[0]);
        return;
    }
    if (messages_normalize(json_object_get(chat, "messages"), &err) != NYB_OK ||
        tool_choice_normalize(chat, &err) != NYB_OK || tool_choice_check(chat, &err) != NYB_OK) {
        anthropic_rename_fault(&err);
        ASSERT(err.where[0] && err.message[0]);
    }
    json_decref(chat);
}

static void try_sglang(const json_t *body)
{
    struct nyb_err err;
    struct sglang how;
    json_t *completion;
    if (sglang_input(body, &completion, &how, &err) != NYB_OK)
        ASSERT(err.where[0] && err.message[0]);
    else
        json_decref(completion);
}

static void try_common(json_t *body, const struct nyb_sampling *s)
{
    struct serve_config config = {0};
    struct server server = {.config = &config, .model = "m"};
    struct exchange x = {.s = &server};
    struct gen *g = gen_open(&x, GEN_CHAT, body);
    struct nyb_err err;
    int n;
    if (request_check_model(&server, body, &err) != NYB_OK)
        ASSERT(err.message[0]);
    if (request_check_unsupported(body, &err) != NYB_OK)
        ASSERT(err.message[0]);
    if (request_read_common(g, body, s, &n, &err) == NYB_OK)
        ASSERT(n >= 1 && n <= REQUEST_CHOICES_MAX);
    gen_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a;
    struct nyb_sampling s;
    struct nyb_err err;
    int32_t *ids;
    size_t n;
    json_t *body = NULL;
    if (chat_json_parse(&body, (const char *)data, size, "body", &err) != NYB_OK) {
        ASSERT(err.message[0]);
        return 0;
    }
    if (!json_is_object(body)) {
        json_decref(body);
        return 0;
    }
    arena_init(&a, 256);
    params_merge_metadata(body);
    if (params_read(&s, body, &a, &err) == NYB_OK) {
        for (int i = 0; i < s.n_stop; i++)
            ASSERT(s.stop[i]);
        for (int i = 0; i < s.n_bad_run; i++)
            ASSERT(s.bad_run[i].n == 0 || s.bad_run[i].token);
        ASSERT(s.n_allowed_token == 0 || s.allowed_token);
        try_common(body, &s);
    } else {
        ASSERT(err.where[0] && err.message[0] && err_http_status(err.code) == 400);
    }
    if (params_ids(json_object_get(body, "prompt"), "prompt", &a, &ids, &n, &err) != NYB_OK)
        ASSERT(err_http_status(err.code) == 400);
    try_responses(body);
    try_anthropic(body);
    try_sglang(body);
    try_messages(body);
    arena_free(&a);
    json_decref(body);
    return 0;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    return 0; /* built without the server */
}
#endif
