/* Answers in the form of SGLang's /generate: an object for each choice, with all of its text also in each
 * event of a stream. */
#ifndef NYB_SERVER_SGLANG_H
#define NYB_SERVER_SGLANG_H

#include "base/json.h"

struct choice;
struct gen;
struct nyb_logprob;

/* What a request says about its answer. */
struct sglang {
    bool list;  /* it is one, also of one                       */
    bool texts; /* log-probabilities have the tokens' texts     */
    int start;  /* of the prompt's log-probabilities; < 0: none */
};

/* Of one token of the answer, and of the prompt's token i; how many entries that took. */
void sglang_add_logprob(struct choice *c, const struct nyb_logprob *lp, int n);
int sglang_add_prompt_logprob(struct choice *c, size_t i);

/* The choice as it is now. */
void sglang_take(struct choice *c);
/* The end of a stream. */
void sglang_add_end(struct gen *g);
/* The whole answer. */
void sglang_write(struct gen *g, struct buf *b);

#endif
