/* Post-processors: the ids that "add special tokens" puts before and behind a text.
 * Supported: TemplateProcessing (its "single" form), BertProcessing, RobertaProcessing, ByteLevel (no ids),
 * and Sequences; and add_bos_token / add_eos_token of tokenizer_config.json. */
#ifndef NYB_TEXT_POSTPROC_H
#define NYB_TEXT_POSTPROC_H

#include "base/json.h"
#include "text/tokenizer.h"

struct postproc {
    struct tok_ids before, behind;
};

enum nyb_code postproc_open(struct postproc *p, const json_t *spec, struct nyb_err *err) NYB_MUST_CHECK;

/* What transformers makes of tokenizer_config.json: a Llama class builds its own frame from add_bos_token
 * (default true) and add_eos_token (default false); for other classes a flag that is true adds the token
 * where the file's own post-processor does not put it. bos, eos: ids, -1: none. */
enum nyb_code postproc_configure(struct postproc *p, const json_t *config, int32_t bos, int32_t eos,
                                 struct nyb_err *err) NYB_MUST_CHECK;
void postproc_close(struct postproc *p);

#endif
