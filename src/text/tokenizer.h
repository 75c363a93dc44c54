/* Text to token ids and back, exactly as the checkpoint's tokenizer.json defines it.
 * A tokenizer is immutable after tok_open and may be used from any thread. */
#ifndef NYB_TEXT_TOKENIZER_H
#define NYB_TEXT_TOKENIZER_H

#include "base/buf.h"
#include "base/err.h"

struct tokenizer;

/* folder holds tokenizer.json and, optionally, tokenizer_config.json (add_bos_token, add_eos_token, further
 * added tokens); or `folder` is a path to a tokenizer.json, which is then all that is read. What the file
 * asks for and we do not know is an error that names it. */
enum nyb_code tok_open(struct tokenizer **out, const char *folder, struct nyb_err *err) NYB_MUST_CHECK;
void tok_close(struct tokenizer *t);

struct tok_ids {
    int32_t *id;
    size_t n, cap;
};
void tok_ids_free(struct tok_ids *ids);

/* A piece of input. Only where may_be_special holds can control tokens match: added tokens that the file
 * calls special (<|im_start|>), and those framed as <|...|> whatever it calls them; a token must lie in such
 * pieces as a whole. Elsewhere the same characters are plain text. Other added tokens (<think>) are
 * vocabulary and match everywhere. Word and merge boundaries ignore the piece borders. */
struct tok_span {
    const char *text;
    size_t len;
    bool may_be_special;
};

/* Append ids. Invalid UTF-8 is an error at its byte offset. */
enum nyb_code tok_encode(const struct tokenizer *t, const char *text, size_t len, bool add_special_tokens,
                         struct tok_ids *out, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code tok_encode_spans(const struct tokenizer *t, const struct tok_span *span, size_t n_span,
                               bool add_special_tokens, struct tok_ids *out,
                               struct nyb_err *err) NYB_MUST_CHECK;

/* Append text. Ids out of range are skipped as the reference does. */
void tok_decode(const struct tokenizer *t, const int32_t *id, size_t n, bool skip_special_tokens,
                struct buf *out);

int32_t tok_vocab_size(const struct tokenizer *t);                 /* largest id + 1 */
int32_t tok_id_of(const struct tokenizer *t, const char *content); /* -1: none        */
const char *tok_text_of(const struct tokenizer *t, int32_t id);    /* as in the vocabulary; NULL: none */
/* Append what one token adds to a text in the middle of it; nothing where there is no such id. False: that
 * depends on the tokens around it. */
bool tok_token_bytes(const struct tokenizer *t, int32_t id, struct buf *out);
bool tok_is_special(const struct tokenizer *t, int32_t id);

/* Incremental decoding: pieces come out as soon as they can no longer change, never half a character. The
 * concatenation of all pieces equals tok_decode of all ids. */
struct detok;
struct detok *detok_open(const struct tokenizer *t, bool skip_special_tokens);
void detok_push(struct detok *d, int32_t id, struct buf *out);
void detok_finish(struct detok *d, struct buf *out); /* flush what is held back; the detok starts anew */
void detok_close(struct detok *d);

#endif
