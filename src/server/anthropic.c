#include "server/anthropic.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/answer.h"
#include "server/error.h"

enum kind { NONE, THINKING, TEXT };

struct anthropic {
    struct buf blocks; /* that are complete, comma-separated */
    int n_block;       /* the open one is the next           */
    enum kind open;
    struct buf text; /* of the open block, without a stream */
    bool began;
};

static struct anthropic *state(struct gen *g)
{
    if (!g->anthropic)
        g->anthropic = mem_alloc(1, sizeof(*g->anthropic));
    return g->anthropic;
}

void anthropic_close(struct anthropic *a)
{
    if (!a)
        return;
    buf_free(&a->blocks);
    buf_free(&a->text);
    free(a);
}

static void add_buf(struct buf *b, const struct buf *text)
{
    json_add_string(b, text->data ? text->data : "", text->len);
}

/* ---- the message ------------------------------------------------------------------------------------- */

/* What the cache had counts apart. */
static void add_usage(struct gen *g, struct buf *b)
{
    const struct gen_usage u = gen_usage(g);
    buf_printf(b,
               ",\"usage\":{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_"
               "tokens\":%lld,"
               "\"output_tokens\":%lld}",
               (long long)(u.prompt - u.cached), (long long)u.cached, (long long)u.completion);
}

static void add_stop(const struct gen *g, struct buf *b)
{
    const struct choice *c = &g->choice[0];
    const char *reason = c->finish == NYB_FINISH_LENGTH ? "max_tokens"
                         : c->stop_string               ? "stop_sequence"
                         : c->n_call > 0                ? "tool_use"
                                                        : "end_turn";
    buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (c->stop_string)
        json_add_string(b, c->stop_string, strlen(c->stop_string));
    else
        buf_add_str(b, "null");
}

static void add_message(struct gen *g, struct buf *b, bool over)
{
    const struct anthropic *a = state(g);
    buf_add_str(b, "{\"id\":");
    json_add_string(b, g->id, strlen(g->id));
    buf_add_str(b, ",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    json_add_string(b, g->x->s->model, strlen(g->x->s->model));
    buf_add_str(b, ",\"content\":[");
    buf_add(b, a->blocks.data ? a->blocks.data : "", a->blocks.len);
    buf_add_str(b, "],");
    if (over)
        add_stop(g, b);
    else
        buf_add_str(b, "\"stop_reason\":null,\"stop_sequence\":null");
    add_usage(g, b);
    if (over)
        answer_add_versions(b, g->choice[0].version, g->choice[0].first_version);
    buf_add_byte(b, '}');
}

/* ---- events ------------------------------------------------------------------------------------------ */

/* NULL: nobody reads events. */
static struct buf *begin_event(struct gen *g, const char *type)
{
    if (!g->stream)
        return NULL;
    buf_printf(&g->out, "event: %s\ndata: {\"type\":\"%s\"", type, type);
    return &g->out;
}

static void end_event(struct buf *b)
{
    buf_add_str(b, "}\n\n");
}

/* An event of the open block. */
static struct buf *begin_block_event(struct gen *g, const char *type)
{
    struct buf *b = begin_event(g, type);
    if (b)
        buf_printf(b, ",\"index\":%d", state(g)->n_block);
    return b;
}

static void begin(struct gen *g)
{
    struct buf *b;
    if (state(g)->began)
        return;
    state(g)->began = true;
    if ((b = begin_event(g, "message_start"))) {
        buf_add_str(b, ",\"message\":");
        add_message(g, b, false);
        end_event(b);
    }
}

/* ---- thinking and text ------------------------------------------------------------------------------- */

static void add_block(struct buf *b, enum kind kind, const struct buf *text)
{
    buf_printf(b, kind == TEXT ? "{\"type\":\"text\",\"text\":" : "{\"type\":\"thinking\",\"thinking\":");
    add_buf(b, text);
    buf_add_str(b, kind == TEXT ? "}" : ",\"signature\":\"\"}");
}

static void end_block(struct gen *g, const struct buf *block)
{
    struct anthropic *a = state(g);
    struct buf *b = begin_block_event(g, "content_block_stop");
    if (b) {
        end_event(b);
    } else {
        if (a->blocks.len)
            buf_add_byte(&a->blocks, ',');
        buf_add(&a->blocks, block->data, block->len);
    }
    a->n_block++;
}

static void close_block(struct gen *g)
{
    struct anthropic *a = state(g);
    struct buf block = {0};
    if (a->open == NONE)
        return;
    if (!g->stream)
        add_block(&block, a->open, &a->text);
    end_block(g, &block);
    buf_free(&block);
    buf_clear(&a->text);
    a->open = NONE;
}

static void open_block(struct gen *g, enum kind kind)
{
    static const struct buf nothing;
    struct buf *b;
    state(g)->open = kind;
    if ((b = begin_block_event(g, "content_block_start"))) {
        buf_add_str(b, ",\"content_block\":");
        add_block(b, kind, &nothing);
        end_event(b);
    }
}

static void take_text(struct gen *g, enum kind kind, struct buf *text)
{
    struct anthropic *a = state(g);
    struct buf *b;
    if (!text->len)
        return;
    if (a->open != kind) {
        close_block(g);
        open_block(g, kind);
    }
    if ((b = begin_block_event(g, "content_block_delta"))) {
        buf_printf(b, ",\"delta\":{\"type\":\"%s\":",
                   kind == TEXT ? "text_delta\",\"text" : "thinking_delta\",\"thinking");
        add_buf(b, text);
        buf_add_byte(b, '}');
        end_event(b);
    } else {
        buf_add(&a->text, text->data, text->len);
    }
    buf_clear(text);
}

/* One of the two at most has something: text of the other kind is taken before it. */
void anthropic_take(struct choice *c)
{
    begin(c->g);
    take_text(c->g, THINKING, &c->reasoning);
    take_text(c->g, TEXT, &c->text);
}

/* ---- calls ------------------------------------------------------------------------------------------- */

static void add_call(const struct choice *c, struct buf *b, const char *input, size_t n)
{
    buf_add_str(b, "{\"type\":\"tool_use\",\"id\":");
    json_add_string(b, c->call.id, strlen(c->call.id));
    buf_add_str(b, ",\"name\":");
    json_add_string(b, c->call.name, strlen(c->call.name));
    buf_add_str(b, ",\"input\":");
    buf_add(b, input, n);
    buf_add_byte(b, '}');
}

void anthropic_take_call(struct choice *c)
{
    struct gen *g = c->g;
    const struct buf *arguments = &c->call.arguments; /* the text of an object */
    struct buf block = {0}, *b;
    anthropic_take(c);
    close_block(g);
    if ((b = begin_block_event(g, "content_block_start"))) {
        buf_add_str(b, ",\"content_block\":");
        add_call(c, b, "{}", 2);
        end_event(b);
    }
    if ((b = begin_block_event(g, "content_block_delta"))) {
        buf_add_str(b, ",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":");
        add_buf(b, arguments);
        buf_add_byte(b, '}');
        end_event(b);
    }
    if (!g->stream)
        add_call(c, &block, arguments->data, arguments->len);
    end_block(g, &block);
    buf_free(&block);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void add_fault(struct gen *g)
{
    struct buf *b = &g->out;
    buf_add_str(b, "event: error\ndata: ");
    error_add_anthropic(b, g->error_status, g->error_message);
    buf_add_str(b, "\n\n");
}

void anthropic_add_end(struct gen *g)
{
    struct buf *b;
    if (g->error_status) {
        add_fault(g);
        return;
    }
    anthropic_take(&g->choice[0]);
    close_block(g);
    if ((b = begin_event(g, "message_delta"))) {
        buf_add_str(b, ",\"delta\":{");
        add_stop(g, b);
        buf_add_byte(b, '}');
        add_usage(g, b);
        answer_add_versions(b, g->choice[0].version, g->choice[0].first_version);
        end_event(b);
    }
    if ((b = begin_event(g, "message_stop")))
        end_event(b);
}

void anthropic_write(struct gen *g, struct buf *b)
{
    anthropic_take(&g->choice[0]);
    close_block(g);
    add_message(g, b, true);
}
