/* A request's constraint: which tokens the sampler may choose (text/grammar.h).
 *
 * Compiled by the thread that submits; the engine's thread and its workers only look up masks and move on.
 * Where it stands is a function of the tokens of the answer, so a preempted request keeps it. */
#ifndef NYB_ENGINE_CONSTRAINT_H
#define NYB_ENGINE_CONSTRAINT_H

#include "engine/params.h"

struct tokenizer;

/* One for each engine: the vocabulary, prepared when first needed, and the constraints compiled last, which
 * requests with the same one share. Any thread. */
struct constraint_cache;
struct constraint_cache *constraint_cache_open(const struct tokenizer *t, int32_t vocab);
void constraint_cache_close(struct constraint_cache *c); /* no constraint may be left; NULL is fine */

struct constraint;
/* What s asks for; *out is NULL where that is nothing. Errors name the constraint as their parameter. */
enum nyb_code constraint_open(struct constraint **out, struct constraint_cache *cache,
                              const struct nyb_sampling *s, const struct params *p,
                              struct nyb_err *err) NYB_MUST_CHECK;
void constraint_close(struct constraint *c); /* NULL is fine */

/* Logits (vocab) of tokens that may not come next become -INFINITY. The tokens that end the answer by
 * themselves stay where the text is complete. */
void constraint_mask(struct constraint *c, const struct params *p, float *logits, int vocab);
/* After constraint_mask: nothing but the end may come, whatever min_tokens says. */
bool constraint_is_over(const struct constraint *c);
/* A token was chosen. */
void constraint_take(struct constraint *c, const struct params *p, int32_t token);

#endif
