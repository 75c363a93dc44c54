#include "server/logprob.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FLOOR (-9999.0f) /* JSON has no infinity */

/* Shortest decimal that reads back as the same float. */
void logprob_add_number(struct buf *b, float x)
{
    char text[32];
    int precision = 5;
    if (!isfinite(x) || x < FLOOR)
        x = FLOOR;
    do
        snprintf(text, sizeof(text), "%.*g", ++precision, (double)x);
    while (precision < 9 && strtof(text, NULL) != x);
    buf_add_str(b, text);
}

static char *token_number(int32_t id, size_t *n)
{
    struct buf number = {0};
    buf_printf(&number, "token_id:%d", id);
    *n = number.len;
    return buf_steal(&number);
}

/* The token as text of its own; caller frees. Half a character shows as U+FFFD. */
static char *token_own_text(const struct choice *c, int32_t id, size_t *n)
{
    char *text;
    struct nyb_err err;
    bool has = nyb_detokenize(c->g->x->s->engine, &id, 1, true, &text, n, &err) == NYB_OK;
    return has ? text : token_number(id, n); /* no tokenizer */
}

/* The token as it is shown; caller frees. */
static char *token_text(const struct choice *c, int32_t id, size_t *n)
{
    return c->g->ids_as_text ? token_number(id, n) : token_own_text(c, id, n);
}

void logprob_add_text(const struct choice *c, struct buf *b, int32_t id)
{
    size_t n;
    char *text = token_text(c, id, &n);
    json_add_string(b, text, n);
    free(text);
}

static void add_comma(struct buf *b)
{
    if (b->len)
        buf_add_byte(b, ',');
}

/* Clients put characters of several tokens together from the bytes. A text with U+FFFD has not got them:
 * *text and *n become the token's own, or stay. */
static void real_bytes(const struct choice *c, int32_t id, char **text, size_t *n)
{
    static const char unknown[] = "\xef\xbf\xbd";
    char *bytes;
    size_t len;
    struct nyb_err err;
    if (c->g->ids_as_text || !memmem(*text, *n, unknown, strlen(unknown)) ||
        nyb_token_bytes(c->g->x->s->engine, id, &bytes, &len, &err) != NYB_OK)
        return;
    free(*text);
    *text = bytes;
    *n = len;
}

/* {"token": .., "logprob": .., "bytes": [..] without the closing brace */
static void add_chat_entry(const struct choice *c, struct buf *b, const struct nyb_logprob *lp)
{
    size_t n;
    char *text = token_text(c, lp->token, &n);
    buf_add_str(b, "{\"token\":");
    json_add_string(b, text, n);
    buf_add_str(b, ",\"logprob\":");
    logprob_add_number(b, lp->logprob);
    real_bytes(c, lp->token, &text, &n);
    buf_add_str(b, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%s%d", i ? "," : "", (unsigned char)text[i]);
    buf_add_byte(b, ']');
    free(text);
}

static void add_chat(struct choice *c, const struct nyb_logprob *lp, int n)
{
    struct buf *b = &c->logprobs;
    add_comma(b);
    add_chat_entry(c, b, &lp[0]);
    buf_add_str(b, ",\"top_logprobs\":[");
    for (int i = 1; i < n; i++) {
        if (i > 1)
            buf_add_byte(b, ',');
        add_chat_entry(c, b, &lp[i]);
        buf_add_byte(b, '}');
    }
    buf_add_str(b, "]}");
}

static size_t count_characters(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* An object from texts to log-probabilities. Two ids can have the same text: the first, more likely one
 * stays. */
static void add_top(struct choice *c, const struct nyb_logprob *lp, int n)
{
    struct buf *b = &c->lp_top, seen = {0};
    add_comma(b);
    buf_add_byte(b, '{');
    buf_add_byte(&seen, 0);
    for (int i = 0; i < n; i++) {
        size_t len, before = seen.len - 1;
        char *text = token_text(c, lp[i].token, &len);
        buf_add(&seen, text, len);
        buf_add_byte(&seen, 0);
        size_t name = seen.len - before; /* with the zeros around it */
        if (memmem(seen.data, before + 1, seen.data + before, name)) {
            seen.len = before + 1;
        } else {
            if (i)
                buf_add_byte(b, ',');
            json_add_string(b, text, len);
            buf_add_byte(b, ':');
            logprob_add_number(b, lp[i].logprob);
        }
        free(text);
    }
    buf_add_byte(b, '}');
    buf_free(&seen);
}

/* lp NULL: the first token of a prompt, which nothing predicts. */
static void add_completion(struct choice *c, int32_t token, const struct nyb_logprob *lp, int n)
{
    size_t len;
    char *text = token_text(c, token, &len);
    add_comma(&c->lp_text);
    json_add_string(&c->lp_text, text, len);
    add_comma(&c->lp_offset);
    buf_printf(&c->lp_offset, "%zu", c->text_offset);
    free(text);
    text = token_own_text(c, token, &len);
    c->text_offset += count_characters(text, len);
    free(text);
    add_comma(&c->lp_score);
    if (lp) {
        logprob_add_number(&c->lp_score, lp[0].logprob);
        add_top(c, lp, n);
    } else {
        buf_add_str(&c->lp_score, "null");
        add_comma(&c->lp_top);
        buf_add_str(&c->lp_top, "null");
    }
}

void logprob_add(struct choice *c, const struct nyb_logprob *lp, int n)
{
    if (c->g->api == GEN_SGLANG)
        sglang_add_logprob(c, lp, n);
    else if (gen_is_chat(c->g))
        add_chat(c, lp, n);
    else
        add_completion(c, lp->token, lp, n);
}

int logprob_add_prompt(struct choice *c, size_t i)
{
    size_t n;
    int n_entry = 0;
    const int32_t *prompt = nyb_stream_prompt(c->stream, &n);
    const struct nyb_logprob *lp = nyb_stream_prompt_logprobs(c->stream, i, &n_entry);
    add_completion(c, prompt[i], lp, n_entry);
    return lp ? n_entry : 1;
}

int logprob_add_prompt_list(struct choice *c, size_t i)
{
    int n_entry = 0;
    struct buf *b = &c->prompt_list;
    const struct nyb_logprob *lp = nyb_stream_prompt_logprobs(c->stream, i, &n_entry);
    buf_add_str(b, i ? "," : "");
    buf_add_str(b, lp ? "{" : "null");
    for (int k = 0; lp && k < n_entry; k++) {
        if (k && lp[k].token == lp[0].token)
            continue;
        size_t len;
        char *text = token_text(c, lp[k].token, &len);
        buf_printf(b, "%s\"%d\":{\"logprob\":", k ? "," : "", lp[k].token);
        logprob_add_number(b, lp[k].logprob);
        buf_printf(b, ",\"rank\":%d,\"decoded_token\":", lp[k].rank);
        json_add_string(b, text, len);
        buf_add_byte(b, '}');
        free(text);
    }
    buf_add_str(b, lp ? "}" : "");
    return lp ? n_entry : 1;
}

static void add_array(struct buf *b, const char *name, const struct buf *items)
{
    buf_printf(b, "\"%s\":[", name);
    buf_add(b, items->data ? items->data : "", items->len);
    buf_add_byte(b, ']');
}

void logprob_add_object(const struct choice *c, struct buf *b)
{
    if (c->g->n_logprob == NYB_UNSET) {
        buf_add_str(b, "null");
        return;
    }
    buf_add_byte(b, '{');
    if (gen_is_chat(c->g)) {
        add_array(b, "content", &c->logprobs);
    } else {
        add_array(b, "text_offset", &c->lp_offset);
        buf_add_byte(b, ',');
        add_array(b, "token_logprobs", &c->lp_score);
        buf_add_byte(b, ',');
        add_array(b, "tokens", &c->lp_text);
        buf_add_byte(b, ',');
        add_array(b, "top_logprobs", &c->lp_top);
    }
    buf_add_byte(b, '}');
}
