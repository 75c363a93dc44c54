/* Decoders: token strings back to text, one token at a time.
 *
 * Supported: ByteLevel, ByteFallback, Fuse, Replace (a string), Strip, Metaspace, and Sequences of them; null
 * joins tokens with spaces, as the reference does. Behind Fuse or ByteLevel, which make one long string of
 * all tokens, only Strip and a Replace of one character can run piece by piece; other orders are refused by
 * name. */
#ifndef NYB_TEXT_DECODER_H
#define NYB_TEXT_DECODER_H

#include "base/json.h"
#include "text/spec.h"

struct decoder;

enum nyb_code decoder_open(struct decoder **out, const json_t *spec, struct nyb_err *err) NYB_MUST_CHECK;
void decoder_close(struct decoder *d);

/* What is held back between two tokens; decoder_begin before the first one. */
struct decoder_stage_state {
    struct buf held; /* bytes that cannot be judged yet                         */
    size_t count;    /* ByteFallback: tokens of a run already known to be broken;
                        Strip behind Fuse: characters stripped at the start     */
    size_t checked;  /* ByteFallback: bytes held that are whole characters      */
    bool past_start; /* Strip behind Fuse: another character was met            */
};
struct decoder_state {
    const struct decoder *d;
    struct decoder_stage_state stage[SPEC_STEP_MAX];
    bool any; /* a token came before */
};
void decoder_begin(struct decoder_state *s, const struct decoder *d);
void decoder_push(struct decoder_state *s, const char *token, size_t len, struct buf *out);
void decoder_finish(struct decoder_state *s, struct buf *out); /* and begin anew */
void decoder_end(struct decoder_state *s);

/* Append what one token adds to a text in the middle of it, as bytes: parts of characters stay such. False
 * where that depends on the tokens around it. */
bool decoder_token_bytes(const struct decoder *d, const char *token, size_t len, struct buf *out);
/* Spaces that are dropped from the start of a text: 0 or 1. */
uint32_t decoder_strips(const struct decoder *d);

#endif
