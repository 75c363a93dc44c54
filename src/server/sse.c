#include "server/sse.h"

#include "server/answer.h"
#include "server/choice.h"
#include "server/error.h"
#include "server/logprob.h"

static const char *object_of(const struct gen *g)
{
    return g->api == GEN_CHAT ? "chat.completion.chunk" : "text_completion";
}

static void add_start(struct gen *g)
{
    buf_add_str(&g->out, "data: ");
    answer_add_head(g, &g->out, object_of(g));
}

/* Seconds since the engine began with this request; queueing does not count. */
static double arrival_s(const struct choice *c)
{
    uint64_t from = c->times.scheduled_ns;
    return from && c->last_ns > from ? (double)(c->last_ns - from) * 1e-9 : 0;
}

static double wall_s(const struct gen *g, uint64_t ns)
{
    return (double)g->arrival_us * 1e-6 + ((double)ns - (double)g->x->start_ns) * 1e-9;
}

/* FastDeploy's collect_metrics: wall-clock seconds. */
static void add_metrics(const struct choice *c, struct buf *b)
{
    const struct gen *g = c->g;
    buf_printf(
        b,
        ",\"metrics\":{\"arrival_time\":%.6f,\"preprocess_end_time\":%.6f,\"inference_start_time\":%.6f,"
        "\"first_token_time\":%.6f,\"engine_recv_latest_token_time\":%.6f}",
        (double)g->arrival_us * 1e-6, wall_s(g, c->times.submitted_ns), wall_s(g, c->times.scheduled_ns),
        wall_s(g, c->first_ns), wall_s(g, c->last_ns));
}

static void add_chunk_end(struct choice *c)
{
    struct gen *g = c->g;
    struct buf *b = &g->out;
    buf_add_byte(b, ']');
    if (g->usage_always) {
        const struct gen_usage u = {c->usage.prompt_tokens, c->usage.completion_tokens,
                                    c->usage.cached_tokens, c->reasoning_tokens};
        answer_add_usage(b, &u);
    }
    if (g->collect_metrics)
        add_metrics(c, b);
    if (c->done)
        answer_add_versions(b, c->version, c->first_version);
}

/* Once for each choice, together with its first result. */
static void add_role(struct choice *c)
{
    struct gen *g = c->g;
    struct buf *b = &g->out;
    c->said_role = true;
    add_start(g);
    buf_printf(
        b,
        ",\"choices\":[{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
        "\"finish_reason\":null,\"arrival_time\":%.6f}",
        c->index, arrival_s(c));
    add_chunk_end(c);
    if (g->return_ids) {
        buf_add_str(b, ",\"prompt_token_ids\":");
        answer_add_prompt_ids(c, b);
    }
    buf_add_str(b, "}\n\n");
}

void sse_add_begin(struct choice *c)
{
    if (c->g->api == GEN_CHAT && !c->said_role)
        add_role(c);
}

void sse_add_event(struct choice *c, bool token)
{
    struct gen *g = c->g;
    struct buf *b = &g->out;
    if (!c->text.len && !c->reasoning.len && !c->calls.len && !c->done && !(token && g->every_token))
        return;
    add_start(g);
    buf_printf(b, ",\"choices\":[{\"index\":%d,", c->index);
    if (g->api == GEN_CHAT) {
        buf_add_str(b, "\"delta\":");
        answer_add_parts(c, b, true);
    } else {
        buf_add_str(b, "\"text\":");
        json_add_string(b, c->text.data ? c->text.data : "", c->text.len);
        if (g->return_ids && !c->said_role) {
            buf_add_str(b, ",\"prompt_token_ids\":");
            answer_add_prompt_ids(c, b);
        }
        c->said_role = true;
    }
    buf_add_str(b, ",\"logprobs\":");
    logprob_add_object(c, b);
    buf_printf(b, ",\"arrival_time\":%.6f", arrival_s(c));
    answer_add_tail(c, b);
    add_chunk_end(c);
    buf_add_str(b, "}\n\n");
    choice_clear(c);
}

void sse_add_end(struct gen *g)
{
    if (g->error_status) {
        buf_add_str(&g->out, "data: ");
        error_add_object(&g->out, g->error_status, g->error_param, g->error_message);
        buf_add_str(&g->out, "\n\n");
    } else if (g->usage_chunk) {
        struct gen_usage u = gen_usage(g);
        add_start(g);
        buf_add_str(&g->out, ",\"choices\":[]");
        answer_add_usage(&g->out, &u);
        buf_add_str(&g->out, "}\n\n");
    }
    buf_add_str(&g->out, "data: [DONE]\n\n");
}
