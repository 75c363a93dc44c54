/* Conversations as clients send them, made into what a template can take. docs/TEXT.md lists the rules. */
#ifndef NYB_TEXT_CHAT_INPUT_H
#define NYB_TEXT_CHAT_INPUT_H

#include "base/json.h"

/* What a template can take, found by rendering small conversations with it. */
struct chat_traits {
    bool takes_parts_user;   /* content of users and assistants as a list of text parts */
    bool takes_parts_system; /* of the system */
    bool needs_parts;        /* and only so: strings are lost or fail */
    bool takes_developer;    /* the role, by its name */
    bool takes_null;         /* null content beside tool calls */
    bool needs_null;         /* and only so: with "" the calls are lost or fail */
    bool arguments_as_text;  /* tool arguments as a JSON string, not an object */
    bool takes_thinking;     /* reasoning of the history as "thinking" rather than "reasoning_content" */
};

/* A new array with the messages made fit; errors name messages[i].field. */
enum nyb_code chat_input_normalize(const struct chat_traits *traits, const json_t *messages, json_t **out,
                                   struct nyb_err *err) NYB_MUST_CHECK;
/* Tools must be an array of objects. */
enum nyb_code chat_input_check_tools(const json_t *tools, struct nyb_err *err) NYB_MUST_CHECK;

#endif
