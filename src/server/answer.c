#include "server/answer.h"

#include <string.h>

#include "server/logprob.h"

static void add_buf(struct buf *b, const struct buf *text)
{
    json_add_string(b, text->data ? text->data : "", text->len);
}

void answer_add_head(const struct gen *g, struct buf *b, const char *object)
{
    const char *model = g->x->s->model;
    buf_add_str(b, "{\"id\":");
    json_add_string(b, g->id, strlen(g->id));
    buf_printf(b, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)g->created_s);
    json_add_string(b, model, strlen(model));
}

void answer_add_prompt_ids(const struct choice *c, struct buf *b)
{
    size_t n;
    const int32_t *id = nyb_stream_prompt(c->stream, &n);
    buf_add_byte(b, '[');
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%s%d", i ? "," : "", id[i]);
    buf_add_byte(b, ']');
}

/* The reasoning goes by its old and its new name. */
static void add_reasoning(const struct choice *c, struct buf *b)
{
    buf_add_str(b, "\"reasoning\":");
    add_buf(b, &c->reasoning);
    buf_add_str(b, ",\"reasoning_content\":");
    add_buf(b, &c->reasoning);
}

void answer_add_parts(const struct choice *c, struct buf *b, bool delta)
{
    const char *comma = "";
    buf_add_byte(b, '{');
    if (!delta) {
        buf_add_str(b, "\"role\":\"assistant\",\"content\":");
        if (c->text.len || !c->n_call)
            add_buf(b, &c->text);
        else
            buf_add_str(b, "null");
        comma = ",";
    } else if (c->text.len) {
        buf_add_str(b, "\"content\":");
        add_buf(b, &c->text);
        comma = ",";
    }
    if (c->reasoning.len) {
        buf_add_str(b, comma);
        add_reasoning(c, b);
        comma = ",";
    }
    if (c->calls.len) {
        buf_printf(b, "%s\"tool_calls\":[", comma);
        buf_add(b, c->calls.data, c->calls.len);
        buf_add_byte(b, ']');
        comma = ",";
    }
    if (c->g->return_ids) { /* FastDeploy's place for them */
        buf_printf(b, "%s\"completion_token_ids\":[", comma);
        buf_add(b, c->ids.data ? c->ids.data : "", c->ids.len);
        buf_add_byte(b, ']');
    }
    buf_add_byte(b, '}');
}

void answer_add_tail(const struct choice *c, struct buf *b)
{
    const char *reason = c->done ? gen_finish_reason(c) : NULL;
    buf_add_str(b, ",\"finish_reason\":");
    if (reason)
        buf_printf(b, "\"%s\"", reason);
    else
        buf_add_str(b, "null");
    if (c->done) {
        buf_add_str(b, ",\"stop_reason\":");
        if (c->stop_string)
            json_add_string(b, c->stop_string, strlen(c->stop_string));
        else if (c->stop_token >= 0)
            buf_printf(b, "%d", c->stop_token);
        else
            buf_add_str(b, "null");
    }
    if (c->g->return_ids) {
        buf_add_str(b, ",\"token_ids\":[");
        buf_add(b, c->ids.data ? c->ids.data : "", c->ids.len);
        buf_add_byte(b, ']');
    }
    buf_add_byte(b, '}');
}

void answer_add_usage(struct buf *b, const struct gen_usage *u)
{
    buf_printf(b,
               ",\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}",
               (long long)u->prompt, (long long)u->completion, (long long)(u->prompt + u->completion),
               (long long)u->cached, (long long)u->reasoning);
}

void answer_add_versions(struct buf *b, const char *last, const char *first)
{
    if (!*last)
        return;
    buf_add_str(b, ",\"weight_version\":");
    json_add_string(b, last, strlen(last));
    if (!*first || !strcmp(first, last))
        return;
    buf_add_str(b, ",\"first_weight_version\":");
    json_add_string(b, first, strlen(first));
}

/* From the choice that began first to the one that ended last. */
static void add_range(const struct gen *g, struct buf *b)
{
    const struct choice *first = &g->choice[0], *last = first;
    for (int i = 1; i < g->n_choice; i++) {
        const struct choice *c = &g->choice[i];
        first = c->first_ns && (!first->first_ns || c->first_ns < first->first_ns) ? c : first;
        last = c->last_ns > last->last_ns ? c : last;
    }
    answer_add_versions(b, last->version, first->first_version);
}

static void add_prompt_logprobs(const struct choice *c, struct buf *b)
{
    buf_add_str(b, ",\"prompt_logprobs\":[");
    if (c->prompt_list.len)
        buf_add(b, c->prompt_list.data, c->prompt_list.len);
    buf_add_byte(b, ']');
}

static void add_choice(const struct choice *c, struct buf *b)
{
    const struct gen *g = c->g;
    buf_printf(b, "{\"index\":%d,", c->index);
    if (g->api == GEN_CHAT) {
        buf_add_str(b, "\"message\":");
        answer_add_parts(c, b, false);
    } else {
        buf_add_str(b, "\"text\":");
        add_buf(b, &c->text);
    }
    buf_add_str(b, ",\"logprobs\":");
    logprob_add_object(c, b);
    if (g->api == GEN_COMPLETION && g->n_prompt_logprob != NYB_UNSET)
        add_prompt_logprobs(c, b);
    if (g->api == GEN_COMPLETION && g->return_ids) {
        buf_add_str(b, ",\"prompt_token_ids\":");
        answer_add_prompt_ids(c, b);
    }
    answer_add_tail(c, b);
}

void answer_write(struct gen *g, struct buf *b)
{
    struct gen_usage u = gen_usage(g);
    answer_add_head(g, b, g->api == GEN_CHAT ? "chat.completion" : "text_completion");
    buf_add_str(b, ",\"choices\":[");
    for (int i = 0; i < g->n_choice; i++) {
        if (i)
            buf_add_byte(b, ',');
        add_choice(&g->choice[i], b);
    }
    buf_add_byte(b, ']');
    answer_add_usage(b, &u);
    add_range(g, b);
    if (g->api == GEN_CHAT && g->n_prompt_logprob != NYB_UNSET)
        add_prompt_logprobs(&g->choice[0], b);
    if (g->api == GEN_CHAT && g->return_ids) {
        buf_add_str(b, ",\"prompt_token_ids\":");
        answer_add_prompt_ids(&g->choice[0], b);
    }
    buf_add_byte(b, '}');
}
