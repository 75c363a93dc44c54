/* From one configuration to the next: what a byte does to a set of items. */
#ifndef NYB_TEXT_GRAMMAR_CLOSURE_H
#define NYB_TEXT_GRAMMAR_CLOSURE_H

#include "text/grammar_memo.h"

struct grammar_closure;
struct grammar_closure *grammar_closure_open(void);
void grammar_closure_close(struct grammar_closure *c);

void grammar_closure_begin(struct grammar_closure *c);
void grammar_closure_add(struct grammar_closure *c, uint32_t state, uint32_t frame);
/* Follow returns and calls of all that was added. The items that can take a byte, sorted (*n), and whether
 * the text may end. False: a limit was hit. */
bool grammar_closure_finish(struct grammar_closure *c, struct grammar_memo *m, struct grammar_item **item,
                            uint32_t *n, bool *may_end);

/* grammar_memo.c: the number of a sorted set, which is added where it is new. */
uint32_t grammar_sets_add(struct grammar_sets *s, const struct grammar_item *item, uint32_t n, uint32_t tag);

#endif
