/* Pre-tokenizers: cut a stretch of normalized text into the pieces that are encoded one by one.
 * Supported: Split, ByteLevel (last), Metaspace, Digits, WhitespaceSplit, and Sequences of them. */
#ifndef NYB_TEXT_PRETOK_H
#define NYB_TEXT_PRETOK_H

#include "base/json.h"

struct pretok;

/* spec: the "pre_tokenizer" of tokenizer.json; null: one piece. */
enum nyb_code pretok_open(struct pretok **out, const json_t *spec, struct nyb_err *err) NYB_MUST_CHECK;
void pretok_close(struct pretok *p);
bool pretok_is_byte_level(const struct pretok *p); /* pieces are to be encoded byte by byte */

struct pretok_piece {
    uint32_t start, len; /* in pretok_work.text; len may be 0 */
};

/* Work space of one call. */
struct pretok_work {
    const struct pretok *p;
    const char *text; /* what the pieces point into: the caller's text or buf[...] */
    size_t len;
    struct pretok_piece *piece, *spare;
    size_t n_piece, cap, spare_cap;
    struct buf buf[2];
    struct pattern_scan **scan; /* (2 * n_step) opened when first needed: classes of PCRE2, of Unicode 16 */
};
void pretok_work_open(struct pretok_work *w, const struct pretok *p);
void pretok_work_close(struct pretok_work *w);

/* text: well-formed UTF-8 below 4 GB, alive while the pieces are used. at_start: the text is the very
 * beginning of the input, where Metaspace's "first" applies. */
enum nyb_code pretok_split(struct pretok_work *w, const char *text, size_t len, bool at_start,
                           struct nyb_err *err) NYB_MUST_CHECK;

#endif
