/* Normalizers: rewrite a stretch of text before it is cut and encoded.
 * Supported: NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, and Sequences of them. */
#ifndef NYB_TEXT_NORMALIZER_H
#define NYB_TEXT_NORMALIZER_H

#include "base/json.h"

struct normalizer;

/* spec: the "normalizer" of tokenizer.json; null: none. */
enum nyb_code normalizer_open(struct normalizer **out, const json_t *spec,
                              struct nyb_err *err) NYB_MUST_CHECK;
void normalizer_close(struct normalizer *n);

/* A text and, where it matters which parts of it may be special, a flag for each byte. */
struct normalizer_text {
    const char *text;
    size_t len;
    const char *mark; /* (len) or NULL: all alike */
};
/* Work space of one call; zeroed before the first use. */
struct normalizer_work {
    struct buf text[2], mark[2];
};
/* Rewrite *t; the result lives in the caller's text or in w until the next call. */
enum nyb_code normalizer_apply(const struct normalizer *n, struct normalizer_work *w,
                               struct normalizer_text *t, struct nyb_err *err) NYB_MUST_CHECK;
void normalizer_work_free(struct normalizer_work *w);

#endif
