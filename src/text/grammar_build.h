/* The front ends: from the text of a constraint to a tree. */
#ifndef NYB_TEXT_GRAMMAR_BUILD_H
#define NYB_TEXT_GRAMMAR_BUILD_H

#include "base/json.h"
#include "text/grammar_ast.h"

/* ---- grammar_regex.c: docs/CONSTRAINTS.md names what is read */

enum grammar_regex_form {
    GRAMMAR_REGEX_WHOLE, /* the whole text must match                                        */
    GRAMMAR_REGEX_JSON,  /* some part of the value of a JSON string must, as in JSON schemas;
                            the node is what stands between its quotes                       */
};
enum nyb_code grammar_regex(struct grammar_ast *g, const char *text, size_t len, enum grammar_regex_form form,
                            uint32_t *node, struct nyb_err *err) NYB_MUST_CHECK;

/* The same of a part of a JSON string of min to max characters: repetitions without end are made so few times
 * that no text is longer. Where texts are longer or shorter all the same, fit says so. */
enum grammar_regex_fit { GRAMMAR_REGEX_FITS, GRAMMAR_REGEX_SHORTER, GRAMMAR_REGEX_LONGER };
enum nyb_code grammar_regex_bounded(struct grammar_ast *g, const char *text, size_t len, uint32_t min,
                                    uint32_t max, enum grammar_regex_fit *fit, uint32_t *node,
                                    struct nyb_err *err) NYB_MUST_CHECK;

/* What is wrong at a byte of a text, which is repeated from there, if it is long the part around it.
 * source: what it is, with a space behind, or "". */
enum nyb_code grammar_fail_at(struct nyb_err *err, const char *source, const char *text, size_t len,
                              size_t at, const char *what);

/* ---- grammar_chars.c: text[*at] is behind the opening bracket; *at ends behind the closing one. The set is
 * finished. Errors name the byte. */
enum nyb_code grammar_bracket(const char *text, size_t len, size_t *at, struct grammar_chars *out,
                              struct nyb_err *err) NYB_MUST_CHECK;
/* text[*at] is behind a backslash: one character, or a class such as \d (*out is added to; not finished). */
enum nyb_code grammar_escape(const char *text, size_t len, size_t *at, struct grammar_chars *out,
                             struct nyb_err *err) NYB_MUST_CHECK;
/* {m}, {m,} or {m,n} at text[*at], the opening brace. */
enum nyb_code grammar_count(const char *text, size_t len, size_t *at, uint32_t *min, uint32_t *max,
                            struct nyb_err *err) NYB_MUST_CHECK;

/* ---- grammar_ebnf.c */

enum nyb_code grammar_ebnf(struct grammar_ast *g, const char *text, size_t len, uint32_t *node,
                           struct nyb_err *err) NYB_MUST_CHECK;

/* ---- grammar_json.c: the parts of JSON */

/* Digits are bounded so that every number fits 64 bits, or a double. */
#define GRAMMAR_DIGITS_MAX 18

struct grammar_json {
    struct grammar_ast *g;
    uint32_t space;                 /* rule: what may stand between tokens */
    uint32_t character;             /* rule: one character of a string, as it is written */
    uint32_t value;                 /* rule: any value; UINT32_MAX until it is asked for */
    uint32_t object, array, string; /* rules, made with value */
};
enum nyb_code grammar_json_open(struct grammar_json *j, struct grammar_ast *g, const char *whitespace,
                                struct nyb_err *err) NYB_MUST_CHECK;
/* Nodes. */
uint32_t grammar_json_space(struct grammar_json *j);
uint32_t grammar_json_value(struct grammar_json *j); /* any */
uint32_t grammar_json_any_object(struct grammar_json *j);
uint32_t grammar_json_any_array(struct grammar_json *j);
uint32_t grammar_json_string(struct grammar_json *j, uint32_t min, uint32_t max); /* characters */
uint32_t grammar_json_integer(struct grammar_json *j);
uint32_t grammar_json_number(struct grammar_json *j);
/* A JSON text, written without spaces. */
uint32_t grammar_json_literal(struct grammar_json *j, const json_t *value);
/* A string that is none of the names. */
uint32_t grammar_json_other_key(struct grammar_json *j, const char *const *name, size_t n);
/* One character of the set as it is written within a JSON string. */
uint32_t grammar_json_chars(struct grammar_ast *g, const struct grammar_chars *c);

enum nyb_code grammar_json_object(struct grammar_ast *g, const char *whitespace, uint32_t *node,
                                  struct nyb_err *err) NYB_MUST_CHECK;
/* A JSON array of strings, one of which is the text. */
enum nyb_code grammar_choice(struct grammar_ast *g, const char *text, size_t len, uint32_t *node,
                             struct nyb_err *err) NYB_MUST_CHECK;

/* ---- grammar_range.c: decimal integers in [lo, hi] as they are written, no leading zeros. */
uint32_t grammar_int_range(struct grammar_ast *g, int64_t lo, int64_t hi);
/* The same of lo to hi in units of the last of so many digits behind the point, all of which are written. */
uint32_t grammar_decimal_range(struct grammar_ast *g, int64_t lo, int64_t hi, int decimals);

/* ---- grammar_schema.c: `where` is the JSON pointer of the schema in messages, "" for the whole text. */
enum nyb_code grammar_schema(struct grammar_json *j, const json_t *schema, const char *where, uint32_t *node,
                             struct nyb_err *err) NYB_MUST_CHECK;
enum nyb_code grammar_schema_text(struct grammar_ast *g, const char *text, size_t len, const char *whitespace,
                                  uint32_t *node, struct nyb_err *err) NYB_MUST_CHECK;

/* ---- grammar_tags.c */

enum nyb_code grammar_tags(struct grammar_ast *g, const char *text, size_t len, const char *whitespace,
                           uint32_t *node, struct nyb_err *err) NYB_MUST_CHECK;

#endif
