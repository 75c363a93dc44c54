/* Generated text back into its parts: reasoning, content and tool calls.
 *
 * The parser takes the text in pieces of any size and reports the same parts for every way of cutting it.
 * Text is held back only while it may be (part of) a marker, and newlines only until it is known whether they
 * belong to one: the newlines around an accepted marker are the template's, not the answer's, and are
 * dropped.
 *
 * A tool call is reported when its closing marker is there and the whole call is well-formed; what has been
 * sent to a client cannot be taken back. A call that turns out malformed, at the first byte that shows it,
 * becomes plain text of the surrounding part, byte for byte, and is not searched again: time is linear in the
 * text, memory is bounded by PARSE_CALL_MAX and the size of one push. */
#ifndef NYB_TEXT_PARSE_H
#define NYB_TEXT_PARSE_H

#include "base/json.h"
#include "text/parse_format.h"

#define PARSE_CALL_MAX (1u << 20) /* bytes of a call between its markers; a longer one is plain text */
#define PARSE_ID_MAX   32

enum parse_kind {
    PARSE_CONTENT,        /* text: the next piece of the answer                      */
    PARSE_REASONING,      /* text: the next piece of the reasoning                   */
    PARSE_CALL_BEGIN,     /* call, id, name                                          */
    PARSE_CALL_ARGUMENTS, /* call; text: the next piece of a JSON object, as a string */
    PARSE_CALL_END,       /* call                                                    */
};

/* Strings live until the callback returns. */
struct parse_event {
    enum parse_kind kind;
    const char *text; /* (len), whole UTF-8 characters if the input is well-formed */
    size_t len;
    int call; /* 0, 1, ... */
    const char *id, *name;
};
typedef void parse_event_fn(void *arg, const struct parse_event *event);

struct parse_options {
    const struct parse_format *format; /* NULL: plain */
    const json_t *tools;      /* the request's tools array or NULL; types arguments; outlives the parser */
    bool starts_in_reasoning; /* the prompt ends with the opening marker: parse_format_opens()  */
    bool ignore_calls;        /* tool_choice "none": calls are text                             */
    uint64_t id_seed;         /* ids are a function of this and the call's index                */
};

struct parser;
struct parser *parse_open(const struct parse_options *options, parse_event_fn *emit, void *arg);
void parse_push(struct parser *p, const char *text, size_t len);
/* Nothing has come since a marker, or since the prompt's, but newlines that go with it. */
bool parse_is_after_marker(const struct parser *p);
void parse_finish(struct parser *p); /* the answer has ended; no push after it */
void parse_close(struct parser *p);
int parse_call_count(
    const struct parser *p); /* reported so far: more than 0 makes finish_reason "tool_calls" */

/* The whole answer at once. */
struct parse_call {
    char *id, *name;
    struct buf arguments; /* a JSON object */
};
struct parse_result {
    struct buf content, reasoning;
    struct parse_call *call; /* (n_call) */
    size_t n_call, cap;
};
void parse_all(const struct parse_options *options, const char *text, size_t len, struct parse_result *out);
void parse_result_free(struct parse_result *r);

#endif
