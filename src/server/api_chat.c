/* POST /v1/chat/completions, and /v1/responses and /v1/messages, whose requests become chats
 * (responses_input.h, anthropic_input.h) */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/chat_prompt.h"
#include "server/constraint.h"
#include "server/error.h"
#include "server/messages.h"
#include "server/params_json.h"
#include "server/request.h"
#include "server/route.h"
#include "server/tool_choice.h"

struct chat {
    struct request_job *j;
    struct request_prompt prompt;
    const char *echo; /* the last message's content, which the answer repeats; NULL: no such wish */
};

/* logprobs is a switch here, top_logprobs the number. */
static enum nyb_code read_logprobs(struct chat *c, struct nyb_err *err)
{
    bool wanted = false;
    int top = NYB_UNSET, max = c->j->s->info->max_logprobs;
    TRY(params_bool(c->j->body, "logprobs", &wanted, err));
    TRY(params_int(c->j->body, "top_logprobs", &top, err));
    if (top != NYB_UNSET && (top < 0 || top > max))
        return err_at(err, NYB_E_RANGE, "top_logprobs", -1,
                      "top_logprobs must be in [0, %d], got %d. (parameter=top_logprobs, value=%d)", max, top,
                      top);
    if (top > 0 && !wanted)
        return err_at(
            err, NYB_E_ARG, "top_logprobs", -1,
            "when using top_logprobs, logprobs must be set to true. (parameter=top_logprobs, value=%d)", top);
    if (wanted)
        c->j->g->n_logprob = top == NYB_UNSET ? 0 : top;
    return NYB_OK;
}

/* The ids go into the arena, the text to the answer, whose parser looks at its end. */
static enum nyb_code render(struct chat *c, struct nyb_err *err)
{
    int32_t *ids;
    TRY(chat_prompt_render(c->j->s, c->j->body, &ids, &c->prompt.n, &c->j->g->prompt_text, err));
    c->prompt.ids = request_keep_ids(c->j, ids, c->prompt.n);
    return NYB_OK;
}

/* The prompt as ids. Its text tells the parser how the answer begins. */
static enum nyb_code take_ids(struct chat *c, const json_t *v, struct nyb_err *err)
{
    TRY(params_ids(v, "prompt_token_ids", &c->j->arena, &c->prompt.ids, &c->prompt.n, err));
    if (c->j->s->has_tokenizer)
        return nyb_detokenize(c->j->s->engine, c->prompt.ids, c->prompt.n, true, &c->j->g->prompt_text, NULL,
                              err);
    return NYB_OK;
}

/* FastDeploy's completion_token_ids: a part of the answer that is there already. */
static enum nyb_code append_ids(struct chat *c, struct nyb_err *err)
{
    int32_t *more;
    size_t n;
    TRY(params_ids(json_object_get(c->j->body, "completion_token_ids"), "completion_token_ids", &c->j->arena,
                   &more, &n, err));
    if (n == 0)
        return NYB_OK;
    request_append_ids(&c->j->arena, &c->prompt, more, n);
    if (!c->j->s->has_tokenizer)
        return NYB_OK;
    struct gen *g = c->j->g;
    char *text, *before = g->prompt_text;
    TRY(nyb_detokenize(c->j->s->engine, more, n, true, &text, NULL, err));
    g->prompt_text = mem_printf("%s%s", before ? before : "", text);
    nyb_free(text);
    nyb_free(before);
    return NYB_OK;
}

/* What else bears on the prompt's ends. */
static enum nyb_code read_ends(struct chat *c, struct nyb_err *err)
{
    const json_t *messages = json_object_get(c->j->body, "messages");
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    bool special = false, echo = false;
    TRY(params_bool(c->j->body, "add_special_tokens", &special, err));
    TRY(params_bool(c->j->body, "echo", &echo, err));
    if (special)
        return err_at(err, NYB_E_UNSUPPORTED, "add_special_tokens", -1,
                      "add_special_tokens is not supported in chats: the chat template writes them. "
                      "(parameter=add_special_tokens)");
    if (echo && role && !strcmp(role, "assistant"))
        c->echo = json_string_value(json_object_get(last, "content"));
    return NYB_OK;
}

static enum nyb_code read_prompt(struct chat *c, struct nyb_err *err)
{
    const json_t *ids = json_object_get(c->j->body, "prompt_token_ids");
    if (ids && !json_is_null(ids)) {
        TRY(take_ids(c, ids, err));
    } else {
        TRY(messages_normalize(json_object_get(c->j->body, "messages"), err));
        TRY(read_ends(c, err));
        TRY(render(c, err));
    }
    TRY(append_ids(c, err));
    return request_truncate(c->j->s, c->j->body, &c->prompt.ids, &c->prompt.n, err);
}

/* FastDeploy's reasoning_max_tokens: the engine ends the reasoning by its closing marker. */
static enum nyb_code read_think_max(struct chat *c, struct nyb_err *err)
{
    static const char name[] = "reasoning_max_tokens";
    const struct parse_format *f = c->j->s->format;
    struct nyb_sampling *s = &c->j->sampling;
    const char *text = c->j->g->prompt_text ? c->j->g->prompt_text : "";
    int32_t *open = NULL, *close = NULL;
    size_t n_open = 0, n_close = 0;
    TRY(params_int(c->j->body, name, &s->think_max, err));
    if (s->think_max == NYB_UNSET || !f->think_close) {
        s->think_max = NYB_UNSET; /* there is no reasoning that could be too long */
        return NYB_OK;
    }
    TRY(nyb_tokenize(c->j->s->engine, f->think_close, strlen(f->think_close), false, &close, &n_close, err));
    s->think_close = request_keep_ids(c->j, close, n_close);
    if (f->think_open && !parse_format_opens(f, text, strlen(text))) {
        TRY(nyb_tokenize(c->j->s->engine, f->think_open, strlen(f->think_open), false, &open, &n_open, err));
        s->think_open = request_keep_ids(c->j, open, n_open);
    }
    s->n_think_open = (int)n_open;
    s->n_think_close = (int)n_close;
    return n_close == 1 && n_open <= 1
               ? NYB_OK
               : err_at(err, NYB_E_UNSUPPORTED, name, -1,
                        "%s is not supported for this model: the mark %s of its reasoning is not one token. "
                        "(parameter=%s)",
                        name, f->think_close, name);
}

/* What to leave out of the answer. */
static enum nyb_code read_parts(struct gen *g, const json_t *body, struct nyb_err *err)
{
    bool reasoning = true, parallel = true;
    TRY(params_bool(body, "include_reasoning", &reasoning, err));
    TRY(params_bool(body, "parallel_tool_calls", &parallel, err));
    g->hides_reasoning = !reasoning;
    g->one_call = !parallel;
    return NYB_OK;
}

static enum nyb_code start(struct request_job *j, struct nyb_err *err)
{
    struct chat c = {.j = j};
    int n;
    TRY(request_check_model(j->s, j->body, err));
    TRY(request_check_unsupported(j->body, err));
    TRY(params_read(&j->sampling, j->body, &j->arena, err));
    TRY(request_read_common(j->g, j->body, &j->sampling, &n, err));
    TRY(read_logprobs(&c, err));
    TRY(read_parts(j->g, j->body, err));
    TRY(tool_choice_normalize(j->body, err));
    if (json_object_get(j->body, "tools"))
        TRY(messages_check_tools(json_object_get(j->body, "tools"), err));
    TRY(tool_choice_check(j->body, err));
    TRY(read_prompt(&c, err));
    TRY(read_think_max(&c, err));
    TRY(constraint_read(j, err));
    if (j->s->format_special)
        j->sampling.keep_special_tokens = true;
    TRY(constraint_blame(j, request_submit(j->g, &c.prompt, 1, n, &j->sampling, err), err));
    for (int i = 0; c.echo && i < j->g->n_choice; i++)
        j->g->choice[i].echo = mem_strdup(c.echo);
    return NYB_OK;
}

void api_chat(struct exchange *x)
{
    request_answer(x, GEN_CHAT, start);
}

void api_responses(struct exchange *x)
{
    request_answer(x, GEN_RESPONSES, start);
}

void api_messages(struct exchange *x)
{
    request_answer(x, GEN_ANTHROPIC, start);
}
