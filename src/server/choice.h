/* From the engine's events to the parts of one choice. */
#ifndef NYB_SERVER_CHOICE_H
#define NYB_SERVER_CHOICE_H

#include "server/gen.h"

/* For chats, after submit: the prompt decides whether the answer begins within reasoning. */
void choice_open_parser(struct choice *c);
void choice_close(struct choice *c);
/* Before the first event, once that is there: the prompt's log-probabilities, *entries of them at most, which
 * become fewer. False: there are more. */
bool choice_take_prompt(struct choice *c, int *entries);
void choice_take(struct choice *c, const struct nyb_event *ev);
/* What was written is forgotten. */
void choice_clear(struct choice *c);

#endif
