/* Unicode normalization forms: NFC, NFD, NFKC, NFKD, in O(n log n) for any input.
 *
 * Tables are utf8proc's; characters younger than Unicode 12.1 stay as they are, because the tables of the
 * reference (unicode-normalization-alignments 0.1.12, of 2019) do not know them. */
#ifndef NYB_TEXT_NFORM_H
#define NYB_TEXT_NFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum nform_kind { NFORM_NFC, NFORM_NFD, NFORM_NFKC, NFORM_NFKD };

struct nform;
struct nform *nform_open(enum nform_kind kind);
void nform_close(struct nform *f);

/* True when the text (well-formed UTF-8) is sure to be in the form already: then nothing has to be done. */
bool nform_is_done(const struct nform *f, const char *text, size_t len);

/* Append the normalized text to out. mark (len), or NULL: a flag for each byte; a run of characters that were
 * normalized together gets the AND of its flags in mark_out. */
void nform_apply(const struct nform *f, const char *text, size_t len, const char *mark, struct buf *out,
                 struct buf *mark_out);

#endif
