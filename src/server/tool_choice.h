/* tool_choice: none and auto are the parser's affair. "required" and a named function are enforced by
 * beginning the answer for the model: the prompt goes on with the call's opening marker and, where calls are
 * JSON, the function's name. How the call goes on is still the model's choice. */
#ifndef NYB_SERVER_TOOL_CHOICE_H
#define NYB_SERVER_TOOL_CHOICE_H

#include "server/request.h"

enum nyb_code tool_choice_check(const json_t *body, struct nyb_err *err) NYB_MUST_CHECK;
/* Sets g->forced and extends the prompt where a call is required. */
enum nyb_code tool_choice_apply(struct gen *g, const json_t *body, struct arena *a,
                                struct request_prompt *prompt, struct nyb_err *err) NYB_MUST_CHECK;

#endif
