/* What a request wants its answer to be, in the spellings of OpenAI (response_format, strict tools,
 * tool_choice), vLLM (guided_*, structured_outputs) and FastDeploy (guided_*), made into the engine's
 * constraint. docs/CONSTRAINTS.md lists them. */
#ifndef NYB_SERVER_CONSTRAINT_H
#define NYB_SERVER_CONSTRAINT_H

#include "server/request.h"

/* Fill the constraint of j->sampling; texts live in the job's arena. For chats after the prompt is known
 * (g->prompt_text), whose end says whether the answer begins with reasoning. */
enum nyb_code constraint_read(struct request_job *j, struct nyb_err *err) NYB_MUST_CHECK;
/* Give code back. Where it is about the constraint, err names the request's own parameter. */
enum nyb_code constraint_blame(const struct request_job *j, enum nyb_code code, struct nyb_err *err);

#endif
