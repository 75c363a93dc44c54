/* tool_choice: none and auto are the parser's affair. "required", a named function, and tools with
 * strict: true are constraints: the calls are written in the form that the model's parser reads, with
 * arguments under the function's schema. */
#ifndef NYB_SERVER_TOOL_CHOICE_H
#define NYB_SERVER_TOOL_CHOICE_H

#include "server/request.h"

/* In place: no tools and an empty list of them are the same, and "auto" says nothing then (clients send both
 * unasked); allowed_tools become the tools. */
enum nyb_code tool_choice_normalize(json_t *body, struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code tool_choice_check(const json_t *body, struct nyb_err *err) NYB_MUST_CHECK;
/* The text of NYB_CONSTRAINT_TAGS for the calls (in the arena) and the parameter that wants it; NULL where
 * calls are free. content: the schema of an answer without calls; NULL: there is none. */
enum nyb_code tool_choice_constraint(const struct gen *g, const json_t *body, const json_t *content,
                                     struct arena *a, const char **parameter, const char **text,
                                     struct nyb_err *err) NYB_MUST_CHECK;

#endif
