/* How the inside of a tool call is written: a recognizer that sees one byte at a time, and a builder that
 * reads the complete text once the recognizer has accepted it. */
#ifndef NYB_TEXT_PARSE_SYNTAX_H
#define NYB_TEXT_PARSE_SYNTAX_H

#include "base/json.h"
#include "text/parse_format.h"
#include "text/parse_json.h"

#define PARSE_NAME_MAX 256 /* bytes of a function's name */

/* What a recognizer knows. Zeroed at the opening marker. */
struct parse_scan {
    int phase;
    size_t matched;     /* bytes of the current literals that match     */
    unsigned ruled_out; /* bit i: literal i no longer fits            */
    size_t n_name;
    struct parse_json json;
};

/* The calls of one block. */
struct parse_found_call {
    char *name;
    struct buf arguments; /* a JSON object */
};
struct parse_found {
    struct parse_found_call *call; /* (n) */
    size_t n, cap;
};

struct parse_syntax {
    /* The next byte after the opening marker. PARSE_DONE: it ends the block, closing marker included. */
    enum parse_step (*step)(struct parse_scan *s, const struct parse_format *f, char c);
    /* body (len): what was accepted, without the closing marker. False: not a call after all. */
    bool (*build)(const char *body, size_t len, const json_t *tools, struct parse_found *out);
};

extern const struct parse_syntax parse_syntax_json;     /* parse_syntax_json.c     */
extern const struct parse_syntax parse_syntax_function; /* parse_syntax_function.c */
extern const struct parse_syntax parse_syntax_argkey;   /* parse_syntax_argkey.c   */
extern const struct parse_syntax parse_syntax_mistral;  /* parse_syntax_mistral.c  */

/* Helpers for recognizers. */
bool parse_is_space(char c);
bool parse_is_name(char c); /* letters, digits, _-.:/ and everything beyond ASCII */

/* Match one of n literals (at most 32) byte by byte: its index, PARSE_LITERAL_MORE or PARSE_LITERAL_BAD. A
 * NULL one never matches. No literal may be a prefix of another. */
enum { PARSE_LITERAL_MORE = -1, PARSE_LITERAL_BAD = -2 };
int parse_literal(struct parse_scan *s, const char *const *literal, int n, char c);
/* White space, then what closes a call: done with its last byte. */
enum parse_step parse_step_close(struct parse_scan *s, const char *close, char c);

/* Skip everything up to and with the literal, which does not repeat its first byte; true at its last byte. */
bool parse_search(struct parse_scan *s, const char *literal, char c);

/* Helpers for builders. */

/* A new call with its name (copied); the arguments are for the caller to fill. NULL: the name is not usable.
 */
struct buf *parse_found_add(struct parse_found *out, const char *name, size_t len);
void parse_found_free(struct parse_found *f);

/* object (len): one well-formed JSON object {"name": string, "arguments": object}. */
bool parse_found_add_object(struct parse_found *out, const char *object, size_t len);

/* text (len) up to the literal, which is there. */
size_t parse_until(const char *text, size_t len, const char *literal);

/* Append "key": to an object under construction. */
void parse_add_key(struct buf *out, const char *key, size_t len);

#endif
