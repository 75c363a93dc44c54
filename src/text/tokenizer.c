#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tok.h"
#include "text/utf8.h"

#define TEXT_MAX (256u << 20) /* bytes of one text: offsets and symbol numbers stay within 32 bits */

enum nyb_code tok_open(struct tokenizer **out, const char *folder, struct nyb_err *err)
{
    struct tokenizer *t = mem_alloc(1, sizeof(*t));
    enum nyb_code code = tokload_read(t, folder, err);
    *out = code == NYB_OK ? t : NULL;
    if (code != NYB_OK)
        tok_close(t);
    return code;
}

void tok_close(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_free(&t->bpe);
    strmap_free(&t->extra);
    added_free(&t->added);
    normalizer_close(t->normalizer);
    pretok_close(t->pretok);
    decoder_close(t->decoder);
    postproc_close(&t->postproc);
    free(t->special);
    free(t);
}

void tok_ids_free(struct tok_ids *ids)
{
    free(ids->id);
    *ids = (struct tok_ids){0};
}

/* --- The vocabulary
 * ----------------------------------------------------------------------------------------- */

const char *tok_spelling(const struct tokenizer *t, int32_t id, size_t *len)
{
    const char *text = strmap_key(&t->extra, id, len);
    return text ? text : strmap_key(&t->bpe.vocab, id, len);
}

int32_t tok_vocab_size(const struct tokenizer *t)
{
    return t->n_id;
}

int32_t tok_id_of(const struct tokenizer *t, const char *content)
{
    int32_t id = strmap_find(&t->extra, content, strlen(content));
    return id >= 0 ? id : strmap_find(&t->bpe.vocab, content, strlen(content));
}

const char *tok_text_of(const struct tokenizer *t, int32_t id)
{
    size_t len;
    return tok_spelling(t, id, &len);
}

bool tok_token_bytes(const struct tokenizer *t, int32_t id, struct buf *out)
{
    size_t len;
    const char *spelling = tok_spelling(t, id, &len);
    return !spelling || decoder_token_bytes(t->decoder, spelling, len, out);
}

bool tok_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_id && t->special[id];
}

/* --- Encoding
 * ----------------------------------------------------------------------------------------------- */

struct encoder {
    const struct tokenizer *t;
    struct normalizer_work normalizer;
    struct pretok_work pretok;
    struct bpe_work bpe;
    struct tok_ids *out;
    struct nyb_err *err;
};

/* Text in which no more added tokens are to be found. */
static enum nyb_code encode_plain(struct encoder *e, const char *text, size_t len, bool at_start)
{
    TRY(pretok_split(&e->pretok, text, len, at_start, e->err));
    for (size_t i = 0; i < e->pretok.n_piece; i++)
        bpe_encode(&e->t->bpe, &e->bpe, e->pretok.text + e->pretok.piece[i].start, e->pretok.piece[i].len,
                   e->out);
    return NYB_OK;
}

/* Text between two tokens that match as they are: normalize it, cut the others out. */
static enum nyb_code encode_section(struct encoder *e, struct normalizer_text s, bool at_start)
{
    size_t at = 0, done = 0, start, end;
    const struct added_token *token;
    if (s.len == 0)
        return NYB_OK;
    TRY(normalizer_apply(e->t->normalizer, &e->normalizer, &s, e->err));
    while ((token = added_next(&e->t->added, true, &s, &at, done, &start, &end)) != NULL) {
        if (start > done)
            TRY(encode_plain(e, s.text + done, start - done, at_start && done == 0));
        bpe_push(e->out, token->id);
        done = end;
    }
    if (done < s.len)
        TRY(encode_plain(e, s.text + done, s.len - done, at_start && done == 0));
    return NYB_OK;
}

static enum nyb_code encode_text(struct encoder *e, const struct normalizer_text *t)
{
    size_t at = 0, done = 0, start, end;
    const struct added_token *token;
    while ((token = added_next(&e->t->added, false, t, &at, done, &start, &end)) != NULL) {
        const char *mark = t->mark ? t->mark + done : NULL;
        TRY(encode_section(e, (struct normalizer_text){t->text + done, start - done, mark}, done == 0));
        bpe_push(e->out, token->id);
        done = end;
    }
    const char *mark = t->mark ? t->mark + done : NULL;
    return encode_section(e, (struct normalizer_text){t->text + done, t->len - done, mark}, done == 0);
}

static void push_all(struct tok_ids *out, const struct tok_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        bpe_push(out, ids->id[i]);
}

static enum nyb_code encode(const struct tokenizer *t, const struct normalizer_text *text,
                            bool add_special_tokens, struct tok_ids *out, struct nyb_err *err)
{
    struct encoder e = {.t = t, .out = out, .err = err};
    size_t before = out->n, valid = utf8_valid_prefix(text->text, text->len);
    if (text->len > TEXT_MAX)
        return err_set(err, NYB_E_TOO_LONG, "a text of %zu bytes is beyond the %u that are accepted",
                       text->len, TEXT_MAX);
    if (valid < text->len)
        return err_at(err, NYB_E_ARG, "text", (int64_t)valid, "byte 0x%02X is not UTF-8",
                      (unsigned char)text->text[valid]);
    pretok_work_open(&e.pretok, t->pretok);
    if (add_special_tokens)
        push_all(out, &t->postproc.before);
    enum nyb_code code = encode_text(&e, text);
    if (add_special_tokens)
        push_all(out, &t->postproc.behind);
    if (code != NYB_OK)
        out->n = before;
    normalizer_work_free(&e.normalizer);
    pretok_work_close(&e.pretok);
    bpe_work_free(&e.bpe);
    return code;
}

enum nyb_code tok_encode(const struct tokenizer *t, const char *text, size_t len, bool add_special_tokens,
                         struct tok_ids *out, struct nyb_err *err)
{
    return encode(t, &(struct normalizer_text){text, len, NULL}, add_special_tokens, out, err);
}

/* The spans are joined, so that words and merges do not see their borders; a flag for each byte tells where
 * an added token may be special (control, in added.h). Other added tokens are ordinary vocabulary and match
 * everywhere. A token that is only partly in text that may be special is not. */
enum nyb_code tok_encode_spans(const struct tokenizer *t, const struct tok_span *span, size_t n_span,
                               bool add_special_tokens, struct tok_ids *out, struct nyb_err *err)
{
    struct buf text = {0}, mark = {0};
    size_t len = 0;
    for (size_t i = 0; i < n_span; i++)
        if (!size_add(len, span[i].len, &len) || len > TEXT_MAX)
            return err_set(err, NYB_E_TOO_LONG, "a prompt beyond the %u bytes that are accepted", TEXT_MAX);
    buf_reserve(&text, len);
    buf_reserve(&mark, len);
    for (size_t i = 0; i < n_span; i++) {
        buf_add(&text, span[i].text, span[i].len);
        if (span[i].len > 0)
            memset(mark.data + mark.len, span[i].may_be_special, span[i].len);
        mark.len += span[i].len;
    }
    bool mixed = len > 0 && memchr(mark.data, 0, len) != NULL;
    struct normalizer_text all = {text.data, len, mixed ? mark.data : NULL};
    enum nyb_code code = encode(t, &all, add_special_tokens, out, err);
    buf_free(&text);
    buf_free(&mark);
    return code;
}
