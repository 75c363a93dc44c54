/* What a tokenizer is made of; for the files of this room only. */
#ifndef NYB_TEXT_TOK_H
#define NYB_TEXT_TOK_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/postproc.h"
#include "text/pretok.h"
#include "text/tokenizer.h"

struct tokenizer {
    struct bpe bpe;
    struct strmap extra; /* added tokens that the vocabulary lacks; never seen by the BPE */
    struct added added;
    struct normalizer *normalizer;
    struct pretok *pretok;
    struct decoder *decoder;
    struct postproc postproc;
    bool *special; /* (n_id) */
    int32_t n_id;  /* largest id + 1 */
};

/* The spelling of an id and its length, NULL: none. */
const char *tok_spelling(const struct tokenizer *t, int32_t id, size_t *len);

/* tokload.c: fill a zeroed tokenizer; after an error it is to be closed like a whole one. */
enum nyb_code tokload_read(struct tokenizer *t, const char *folder, struct nyb_err *err) NYB_MUST_CHECK;
/* The same from memory: tokenizer.json and, or NULL, tokenizer_config.json. */
enum nyb_code tokload_parse(struct tokenizer *t, const char *text, size_t len, const char *where,
                            const json_t *config, struct nyb_err *err) NYB_MUST_CHECK;

#endif
