/* Log-probabilities in the two shapes of OpenAI's APIs, and vLLM's prompt_logprobs. */
#ifndef NYB_SERVER_LOGPROB_H
#define NYB_SERVER_LOGPROB_H

#include "server/gen.h"

/* A number as JSON; a token's text as a JSON string. */
void logprob_add_number(struct buf *b, float x);
void logprob_add_text(const struct choice *c, struct buf *b, int32_t id);
/* One generated token: the chosen one, then the most likely. */
void logprob_add(struct choice *c, const struct nyb_logprob *lp, int n);
/* Token i of the prompt, for echo; how many entries that took. */
int logprob_add_prompt(struct choice *c, size_t i);
/* The same for prompt_logprobs: null, or {"id": {"logprob", "rank", "decoded_token"}, ...} */
int logprob_add_prompt_list(struct choice *c, size_t i);
/* {"content": [...]} of a chat, or the four arrays of a completion. */
void logprob_add_object(const struct choice *c, struct buf *b);

#endif
