/* tokenizer.json, read in two parts: vocabulary and merges, which are nearly all of it, straight from the
 * text into our tables; the small rest as a JSON tree. (A tree of everything takes longer than all else
 * together.) */
#ifndef NYB_TEXT_TOKFILE_H
#define NYB_TEXT_TOKFILE_H

#include "base/json.h"
#include "text/bpe.h"

/* Fill vocab, merges and the model's flags of *b (zeroed before), and give the tree of the rest, in which
 * model.vocab and model.merges are null. `where` names the text in errors. */
enum nyb_code tokfile_parse(json_t **rest, struct bpe *b, const char *text, size_t len, const char *where,
                            struct nyb_err *err) NYB_MUST_CHECK;

#endif
