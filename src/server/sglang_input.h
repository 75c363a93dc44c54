/* Requests of SGLang's /generate as completions. What would need more is refused by its name. */
#ifndef NYB_SERVER_SGLANG_INPUT_H
#define NYB_SERVER_SGLANG_INPUT_H

#include "base/json.h"
#include "server/sglang.h"

/* *completion: the body of a completion that asks for the same, the caller's; how: what it cannot say. */
enum nyb_code sglang_input(const json_t *asked, json_t **completion, struct sglang *how,
                           struct nyb_err *err) NYB_MUST_CHECK;
/* An error about the completion, in the names of what was asked. */
void sglang_rename_fault(struct nyb_err *err);

#endif
