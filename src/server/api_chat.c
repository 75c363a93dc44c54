/* POST /v1/chat/completions */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/error.h"
#include "server/messages.h"
#include "server/params_json.h"
#include "server/request.h"
#include "server/route.h"
#include "server/tool_choice.h"

struct chat {
    struct server *s;
    struct gen *g;
    json_t *body;
    struct arena arena;
    struct nyb_sampling sampling;
    int32_t *rendered; /* the prompt's ids; nyb_free */
    struct request_prompt prompt;
};

/* logprobs is a switch here, top_logprobs the number. */
static enum nyb_code read_logprobs(struct chat *c, struct nyb_err *err)
{
    bool wanted = false;
    int top = NYB_UNSET, max = c->s->info->max_logprobs;
    TRY(params_bool(c->body, "logprobs", &wanted, err));
    TRY(params_int(c->body, "top_logprobs", &top, err));
    if (top != NYB_UNSET && (top < 0 || top > max))
        return err_at(err, NYB_E_RANGE, "top_logprobs", -1,
                      "top_logprobs must be in [0, %d], got %d. (parameter=top_logprobs, value=%d)", max, top,
                      top);
    if (top > 0 && !wanted)
        return err_at(
            err, NYB_E_ARG, "top_logprobs", -1,
            "when using top_logprobs, logprobs must be set to true. (parameter=top_logprobs, value=%d)", top);
    if (wanted)
        c->g->n_logprob = top == NYB_UNSET ? 0 : top;
    return NYB_OK;
}

/* More variables for the template; FastDeploy's enable_thinking is one of them. */
static enum nyb_code read_kwargs(struct chat *c, char **out, struct nyb_err *err)
{
    json_t *kwargs = json_object_get(c->body, "chat_template_kwargs");
    json_t *thinking = json_object_get(c->body, "enable_thinking");
    *out = NULL;
    if (kwargs && !json_is_null(kwargs) && !json_is_object(kwargs))
        return params_wrong_type(err, "chat_template_kwargs", "an object", kwargs);
    json_t *all = json_is_object(kwargs) ? json_copy(kwargs) : json_object();
    if (json_is_boolean(thinking) && !json_object_get(all, "enable_thinking"))
        json_object_set(all, "enable_thinking", thinking);
    if (json_object_size(all))
        *out = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return NYB_OK;
}

static enum nyb_code render(struct chat *c, struct nyb_err *err)
{
    const json_t *tools = json_object_get(c->body, "tools");
    struct nyb_chat chat = {.add_generation_prompt = true};
    char *kwargs;
    TRY(params_bool(c->body, "add_generation_prompt", &chat.add_generation_prompt, err));
    TRY(read_kwargs(c, &kwargs, err));
    char *messages = json_dumps(json_object_get(c->body, "messages"), JSON_COMPACT);
    char *tool_text = json_is_array(tools) ? json_dumps(tools, JSON_COMPACT) : NULL;
    chat.messages = messages;
    chat.tools = tool_text;
    chat.kwargs = kwargs;
    enum nyb_code code =
        nyb_render_chat(c->s->engine, &chat, &c->rendered, &c->prompt.n, &c->g->prompt_text, err);
    c->prompt.ids = c->rendered;
    free(messages);
    free(tool_text);
    free(kwargs);
    return code;
}

static enum nyb_code read_prompt(struct chat *c, struct nyb_err *err)
{
    const json_t *ids = json_object_get(c->body, "prompt_token_ids");
    if (ids && !json_is_null(ids))
        return params_ids(ids, "prompt_token_ids", &c->arena, &c->prompt.ids, &c->prompt.n, err);
    TRY(messages_normalize(json_object_get(c->body, "messages"), err));
    TRY(render(c, err));
    TRY(tool_choice_apply(c->g, c->body, &c->arena, &c->prompt, err));
    return request_truncate(c->s, c->body, &c->prompt.ids, &c->prompt.n, err);
}

static enum nyb_code start(struct chat *c, struct nyb_err *err)
{
    const json_t *tools = json_object_get(c->body, "tools");
    int n;
    TRY(request_check_model(c->s, c->body, err));
    TRY(request_check_unsupported(c->body, err));
    TRY(params_read(&c->sampling, c->body, &c->arena, err));
    TRY(request_read_common(c->g, c->body, &c->sampling, &n, err));
    TRY(read_logprobs(c, err));
    if (tools && !json_is_null(tools))
        TRY(messages_check_tools(tools, err));
    TRY(tool_choice_check(c->body, err));
    TRY(read_prompt(c, err));
    if (c->s->format_special)
        c->sampling.keep_special_tokens = true;
    return request_submit(c->g, &c->prompt, 1, n, &c->sampling, err);
}

void api_chat(struct exchange *x)
{
    struct nyb_err err = {0};
    json_t *body = request_parse(x);
    if (!body)
        return;
    params_merge_metadata(body);
    struct chat c = {.s = x->s, .g = gen_open(x, GEN_CHAT, body), .body = body};
    arena_init(&c.arena, 4096);
    if (start(&c, &err) == NYB_OK) {
        x->gen = c.g;
    } else {
        gen_close(c.g);
        error_reply_err(x, &err);
    }
    nyb_free(c.rendered);
    arena_free(&c.arena);
    json_decref(body);
}
