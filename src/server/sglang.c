#include "server/sglang.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "server/error.h"
#include "server/gen.h"
#include "server/logprob.h"

#define EACH_BYTES 16384 /* of a text, up to which each token makes an event */
#define GROWTH     256   /* and the share by which it grows then             */

static void add_comma(struct buf *b)
{
    if (b->len)
        buf_add_byte(b, ',');
}

static void add_all(struct buf *b, const char *name, const struct buf *items)
{
    buf_printf(b, ",\"%s\":[", name);
    buf_add(b, items->data ? items->data : "", items->len);
    buf_add_byte(b, ']');
}

/* ---- log-probabilities ------------------------------------------------------------------------------- */

/* [log-probability, id, text or null]; lp NULL: nothing predicts it. */
static void add_entry(const struct choice *c, struct buf *b, int32_t id, const struct nyb_logprob *lp)
{
    buf_add_byte(b, '[');
    if (lp)
        logprob_add_number(b, lp->logprob);
    else
        buf_add_str(b, "null");
    buf_printf(b, ",%d,", id);
    if (c->g->sglang.texts)
        logprob_add_text(c, b, id);
    else
        buf_add_str(b, "null");
    buf_add_byte(b, ']');
}

static void add_top(const struct choice *c, struct buf *b, const struct nyb_logprob *lp, int n)
{
    buf_add_byte(b, '[');
    for (int i = 1; i < n; i++) {
        buf_add_str(b, i > 1 ? "," : "");
        add_entry(c, b, lp[i].token, &lp[i]);
    }
    buf_add_byte(b, ']');
}

void sglang_add_logprob(struct choice *c, const struct nyb_logprob *lp, int n)
{
    add_comma(&c->lp_score);
    add_entry(c, &c->lp_score, lp->token, lp);
    add_comma(&c->lp_top);
    add_top(c, &c->lp_top, lp, n);
}

int sglang_add_prompt_logprob(struct choice *c, size_t i)
{
    size_t n;
    int n_entry = 0;
    const int32_t *prompt = nyb_stream_prompt(c->stream, &n);
    const struct nyb_logprob *lp = nyb_stream_prompt_logprobs(c->stream, i, &n_entry);
    if (i < (size_t)c->g->sglang.start)
        return 1;
    add_comma(&c->lp_text);
    add_entry(c, &c->lp_text, prompt[i], lp);
    add_comma(&c->prompt_list);
    if (lp)
        add_top(c, &c->prompt_list, lp, n_entry);
    else
        buf_add_str(&c->prompt_list, "null");
    return lp ? n_entry : 1;
}

/* ---- the answer -------------------------------------------------------------------------------------- */

/* What ended it: a stop string, a stop token, or the answer's last token, which says that the text is over.
 */
static void add_matched(const struct choice *c, struct buf *b)
{
    const char *comma = c->ids.len ? memrchr(c->ids.data, ',', c->ids.len) : NULL;
    size_t last = comma ? (size_t)(comma + 1 - c->ids.data) : 0;
    if (c->stop_string)
        json_add_string(b, c->stop_string, strlen(c->stop_string));
    else if (c->stop_token >= 0)
        buf_printf(b, "%d", c->stop_token);
    else if (c->ids.len)
        buf_add(b, c->ids.data + last, c->ids.len - last);
    else
        buf_add_str(b, "null");
}

static void add_finish(const struct choice *c, struct buf *b)
{
    if (!c->done) {
        buf_add_str(b, "null");
        return;
    }
    if (c->finish == NYB_FINISH_LENGTH) {
        buf_printf(b, "{\"type\":\"length\",\"length\":%d}", c->usage.completion_tokens);
        return;
    }
    if (c->finish != NYB_FINISH_STOP) {
        buf_add_str(b, "{\"type\":\"abort\",\"message\":\"The answer was aborted.\"}");
        return;
    }
    buf_add_str(b, "{\"type\":\"stop\",\"matched\":");
    add_matched(c, b);
    buf_add_byte(b, '}');
}

static void add_logprobs(const struct choice *c, struct buf *b)
{
    const struct gen *g = c->g;
    if (g->n_logprob == NYB_UNSET)
        return;
    add_all(b, "input_token_logprobs", &c->lp_text);
    add_all(b, "output_token_logprobs", &c->lp_score);
    if (g->n_logprob > 0) {
        add_all(b, "input_top_logprobs", &c->prompt_list);
        add_all(b, "output_top_logprobs", &c->lp_top);
    }
}

static void add_choice(const struct choice *c, struct buf *b)
{
    const struct gen *g = c->g;
    buf_add_str(b, "{\"text\":");
    json_add_string(b, c->text.data ? c->text.data : "", c->text.len);
    if (!g->stream || c->done) /* not again and again */
        add_all(b, "output_ids", &c->ids);
    buf_add_str(b, ",\"meta_info\":{\"id\":");
    json_add_string(b, g->id, strlen(g->id));
    buf_add_str(b, ",\"finish_reason\":");
    add_finish(c, b);
    buf_printf(b, ",\"prompt_tokens\":%d,\"completion_tokens\":%d,\"cached_tokens\":%d,\"e2e_latency\":%.6f",
               c->usage.prompt_tokens, c->usage.completion_tokens, c->usage.cached_tokens,
               (double)(clock_ns() - g->x->start_ns) * 1e-9);
    if (c->version[0]) {
        buf_add_str(b, ",\"weight_version\":");
        json_add_string(b, c->version, strlen(c->version));
    }
    add_logprobs(c, b);
    buf_add_str(b, "}}");
}

/* Every event has the whole text, so those of a long one come only when it has grown by a share of itself:
 * else they would cost the square of its length. */
static bool is_worth_it(const struct choice *c)
{
    return c->done || c->text.len < EACH_BYTES || c->text.len - c->shown > c->text.len / GROWTH;
}

/* Of several choices each event says whose it is. */
void sglang_take(struct choice *c)
{
    struct buf *b = &c->g->out;
    if (!is_worth_it(c))
        return;
    c->shown = c->text.len;
    buf_add_str(b, "data: ");
    add_choice(c, b);
    if (c->g->sglang.list) {
        b->len--;
        buf_printf(b, ",\"index\":%d}", c->index);
    }
    buf_add_str(b, "\n\n");
}

void sglang_add_end(struct gen *g)
{
    if (g->error_status) {
        buf_add_str(&g->out, "data: ");
        error_add_object(&g->out, g->error_status, g->error_param, g->error_message);
        buf_add_str(&g->out, "\n\n");
    }
    buf_add_str(&g->out, "data: [DONE]\n\n");
}

void sglang_write(struct gen *g, struct buf *b)
{
    if (g->sglang.list)
        buf_add_byte(b, '[');
    for (int i = 0; i < g->n_choice; i++) {
        buf_add_str(b, i ? "," : "");
        add_choice(&g->choice[i], b);
    }
    if (g->sglang.list)
        buf_add_byte(b, ']');
}
