/* JSON, one byte at a time: RFC 8259 without exceptions, nesting at most PARSE_JSON_DEPTH. Strings may hold
 * any bytes that the RFC does not forbid; that they are UTF-8 is checked elsewhere. */
#ifndef NYB_TEXT_PARSE_JSON_H
#define NYB_TEXT_PARSE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARSE_JSON_DEPTH 256

enum parse_step {
    PARSE_MORE, /* fine so far                          */
    PARSE_DONE, /* this byte completes it               */
    PARSE_BAD,  /* this byte does not belong; not taken */
};

/* Zeroed: at the start of a value. */
struct parse_json {
    int state, depth;
    const char *word;                        /* what is left of true, false or null */
    bool in_key;                             /* the open string is an object's key  */
    uint8_t is_object[PARSE_JSON_DEPTH / 8]; /* bit i: the container at depth i + 1 */
};

/* DONE at the last byte of an object, array, string or word; a number alone never is, see
 * parse_json_complete. */
enum parse_step parse_json_step(struct parse_json *j, char c);

/* Would the text so far be a value if it ended here? */
bool parse_json_complete(const struct parse_json *j);

/* Is the text one value, with white space around it at most? */
bool parse_json_valid(const char *text, size_t len);

/* Within well-formed JSON: the first byte at or after `at` that is not white space, and the end of the value
 * that starts at `at`. */
size_t parse_json_skip_space(const char *text, size_t len, size_t at);
size_t parse_json_skip_value(const char *text, size_t len, size_t at);

#endif
