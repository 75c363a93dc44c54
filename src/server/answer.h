/* An answer as JSON: the whole of it, and the parts that streams share. */
#ifndef NYB_SERVER_ANSWER_H
#define NYB_SERVER_ANSWER_H

#include "server/gen.h"

void answer_write(struct gen *g, struct buf *b);

/* {"id": .., "object": .., "created": .., "model": .. without the closing brace */
void answer_add_head(const struct gen *g, struct buf *b, const char *object);
/* "role"?, "content", "reasoning", "tool_calls" of a message or a delta, and its braces. */
void answer_add_parts(const struct choice *c, struct buf *b, bool delta);
/* , "finish_reason": .., "stop_reason": .. and what else stands at the end of a choice, with its brace */
void answer_add_tail(const struct choice *c, struct buf *b);
/* , "usage": {..} */
void answer_add_usage(struct buf *b, const struct gen_usage *u);
/* , "weight_version": .. of the weights that made the last token; where others computed the first token of a
 * prompt, "first_weight_version": .. as well. Nothing where nothing was computed. */
void answer_add_versions(struct buf *b, const char *last, const char *first);
/* [1,2,3] */
void answer_add_prompt_ids(const struct choice *c, struct buf *b);

#endif
