/* From logits to tokens, of one step. For step.c. */
#ifndef NYB_ENGINE_STEP_SAMPLE_H
#define NYB_ENGINE_STEP_SAMPLE_H

#include "engine/step.h"

/* Before the forward pass: whose rows of logits will be which, and what is to be done with each and by whom.
 */
void step_sample_plan(struct step *s);
/* After it, which made n_out rows. Into `sampled` for each row of the plan: a token; -1: none is due; -2: the
 * logits leave nothing to choose from. */
void step_sample_run(struct step *s, int n_out);
/* Where the logprobs of a row of the plan are. */
struct nyb_logprob *step_sample_logprob(struct step *s, int row);

#endif
