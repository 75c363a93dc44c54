#include "server/choice.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/logprob.h"

/* ---- chats: reasoning, content, calls ------------------------------------------------------------ */

/* The log-probabilities of a message's items are its tokens' alone. A token that has shown no text waits: it
 * may be part of a character, or of what looked like a marker. */
static void keep_logprobs(struct choice *c)
{
    c->n_text_logprobs = c->logprobs.len;
}

static void drop_logprobs(struct choice *c)
{
    if (c->g->api == GEN_RESPONSES)
        c->logprobs.len = c->n_text_logprobs;
}

/* Items follow one another: text of another kind ends what is there. */
static void take_other(struct choice *c, const struct buf *other)
{
    const struct gen_form *form = gen_form(c->g);
    if (form && other->len)
        form->take(c);
}

static void begin_call(struct choice *c, const struct parse_event *e)
{
    snprintf(c->call.id, sizeof(c->call.id), "%s", e->id);
    free(c->call.name);
    c->call.name = mem_strdup(e->name);
    buf_clear(&c->call.arguments);
}

/* {"index": .., "id": .., "type": "function", "function": {"name": .., "arguments": ".."}} */
static void end_call(struct choice *c)
{
    struct buf *b = &c->calls;
    if (c->g->one_call && c->n_call > 0)
        return;
    if (gen_form(c->g)) {
        gen_form(c->g)->take_call(c);
        c->n_call++;
        return;
    }
    if (b->len)
        buf_add_byte(b, ',');
    buf_add_byte(b, '{');
    if (c->g->stream)
        buf_printf(b, "\"index\":%d,", c->n_call);
    buf_add_str(b, "\"id\":");
    json_add_string(b, c->call.id, strlen(c->call.id));
    buf_add_str(b, ",\"type\":\"function\",\"function\":{\"name\":");
    json_add_string(b, c->call.name, strlen(c->call.name));
    buf_add_str(b, ",\"arguments\":");
    json_add_string(b, c->call.arguments.data ? c->call.arguments.data : "", c->call.arguments.len);
    buf_add_str(b, "}}");
    c->n_call++;
}

static void take_part(void *arg, const struct parse_event *e)
{
    struct choice *c = arg;
    switch (e->kind) {
    case PARSE_CONTENT:
        c->thinks = false;
        take_other(c, &c->reasoning);
        keep_logprobs(c);
        buf_add(&c->text, e->text, e->len);
        break;
    case PARSE_REASONING:
        c->thinks = true;
        drop_logprobs(c);
        if (c->g->hides_reasoning)
            break;
        take_other(c, &c->text);
        buf_add(&c->reasoning, e->text, e->len);
        break;
    case PARSE_CALL_BEGIN:
        c->thinks = false;
        drop_logprobs(c);
        begin_call(c, e);
        break;
    case PARSE_CALL_ARGUMENTS:
        buf_add(&c->call.arguments, e->text, e->len);
        break;
    case PARSE_CALL_END:
        end_call(c);
        break;
    }
}

void choice_open_parser(struct choice *c)
{
    struct gen *g = c->g;
    const struct server *s = g->x->s;
    const json_t *tools = json_object_get(g->request, "tools");
    const char *how = json_string_value(json_object_get(g->request, "tool_choice"));
    const char *prompt = g->prompt_text ? g->prompt_text : "";
    c->thinks = parse_format_opens(s->format, prompt, strlen(prompt));
    const struct parse_options options = {
        .format = s->format,
        .tools = json_is_array(tools) ? tools : NULL,
        .starts_in_reasoning = c->thinks,
        .ignore_calls = !json_is_array(tools) || (how && !strcmp(how, "none")),
        .id_seed = g->x->start_ns * 0x9e3779b97f4a7c15ull + (unsigned)c->index,
    };
    c->parser = parse_open(&options, take_part, c);
}

/* ---- life ---------------------------------------------------------------------------------------- */

void choice_close(struct choice *c)
{
    nyb_stream_free(c->stream);
    if (c->parser)
        parse_close(c->parser);
    struct buf *const all[] = {&c->text,      &c->reasoning, &c->calls,      &c->call.arguments,
                               &c->logprobs,  &c->lp_text,   &c->lp_score,   &c->lp_top,
                               &c->lp_offset, &c->ids,       &c->prompt_list};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        buf_free(all[i]);
    free(c->call.name);
    free(c->stop_string);
    free(c->echo);
}

void choice_clear(struct choice *c)
{
    struct buf *const all[] = {&c->text,     &c->reasoning, &c->calls,     &c->logprobs, &c->lp_text,
                               &c->lp_score, &c->lp_top,    &c->lp_offset, &c->ids};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        buf_clear(all[i]);
}

/* ---- events -------------------------------------------------------------------------------------- */

static void begin(struct choice *c)
{
    c->began = true;
    if (c->echo)
        buf_add_str(&c->text, c->echo);
}

bool choice_take_prompt(struct choice *c, int *entries)
{
    const struct gen *g = c->g;
    bool echo = g->api == GEN_COMPLETION && c->echo && g->n_logprob != NYB_UNSET;
    bool list =
        g->n_prompt_logprob != NYB_UNSET && (!gen_is_chat(g) || (g->api == GEN_CHAT && c->index == 0));
    size_t n = 0;
    if (!c->began && (echo || list))
        (void)nyb_stream_prompt(c->stream, &n);
    for (; *entries > 0 && c->prompt_at < n; c->prompt_at++) {
        if (echo)
            *entries -= logprob_add_prompt(c, c->prompt_at);
        if (list)
            *entries -= g->api == GEN_SGLANG ? sglang_add_prompt_logprob(c, c->prompt_at)
                                             : logprob_add_prompt_list(c, c->prompt_at);
    }
    return c->prompt_at >= n;
}

static void take_token(struct choice *c, const struct nyb_event *ev)
{
    if (!c->first_ns)
        c->first_ns = ev->time_ns;
    else
        metrics_count_gap(&c->g->x->s->metrics, ev->time_ns - c->last_ns);
    c->last_ns = ev->time_ns;
    if (c->g->return_ids)
        buf_printf(&c->ids, "%s%d", c->ids.len ? "," : "", ev->token);
    if (c->g->n_logprob != NYB_UNSET && ev->logprob) {
        logprob_add(c, ev->logprob, ev->n_logprob);
        c->g->n_entry += ev->n_logprob;
    }
}

static void take_finish(struct choice *c, const struct nyb_event *ev)
{
    c->done = true;
    c->finish = ev->finish;
    c->stop_token = ev->stop_token;
    if (ev->stop_string)
        c->stop_string = mem_strdup(ev->stop_string);
    if (c->hides) {
        c->finish = NYB_FINISH_LENGTH;
        c->stop_token = -1;
        c->usage.completion_tokens = 0;
    }
    if (c->parser)
        parse_finish(c->parser);
}

static void take_version(struct choice *c, const struct nyb_event *ev)
{
    if (ev->weight_version && strcmp(c->version, ev->weight_version))
        snprintf(c->version, sizeof(c->version), "%s", ev->weight_version);
    if (ev->first_weight_version && strcmp(c->first_version, ev->first_weight_version))
        snprintf(c->first_version, sizeof(c->first_version), "%s", ev->first_weight_version);
}

static void parse_text(struct choice *c, const struct nyb_event *ev)
{
    parse_push(c->parser, ev->text, ev->text_bytes);
    if (ev->text_bytes > 0 && parse_is_after_marker(c->parser))
        drop_logprobs(c); /* the marker's */
}

void choice_take(struct choice *c, const struct nyb_event *ev)
{
    take_version(c, ev);
    if (!c->began)
        begin(c);
    nyb_stream_times(c->stream, &c->times);
    c->usage = ev->usage;
    if (ev->token >= 0 && !c->hides)
        take_token(c, ev);
    if (c->parser && !c->hides)
        parse_text(c, ev);
    else if (!c->hides)
        buf_add(&c->text, ev->text, ev->text_bytes);
    if (c->thinks && ev->token >= 0)
        c->reasoning_tokens++;
    if (ev->finish != NYB_FINISH_NONE)
        take_finish(c, ev);
}
