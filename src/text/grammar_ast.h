/* Grammars as trees, before they are compiled: what the front ends (JSON schema, regex, EBNF, ...) build.
 *
 * A node is an index; nodes never change, so trees may share parts. Everything is about bytes: a character is
 * the concatenation of its UTF-8 bytes. A rule is a named tree that others call, also recursively. */
#ifndef NYB_TEXT_GRAMMAR_AST_H
#define NYB_TEXT_GRAMMAR_AST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define GRAMMAR_NODE_MAX (1u << 20) /* nodes of one grammar             */
#define GRAMMAR_RULE_MAX (1u << 16) /* rules                            */
#define GRAMMAR_REPEAT   UINT32_MAX /* max of a repetition without end  */
#define GRAMMAR_SPECIAL  0xFF       /* the byte before a special token's spelling; never in UTF-8 */

enum grammar_op {
    GRAMMAR_EMPTY, /* the empty text                     */
    GRAMMAR_NEVER, /* no text at all                     */
    GRAMMAR_RANGE, /* one byte in [a, b]                 */
    GRAMMAR_CAT,   /* a, then b                          */
    GRAMMAR_ALT,   /* a or b                             */
    GRAMMAR_TIMES, /* a, at least min and at most max times */
    GRAMMAR_CALL,  /* rule a                             */
};

struct grammar_node {
    enum grammar_op op;
    uint32_t a, b, min, max;
};

struct grammar_rule {
    char *name; /* for messages */
    uint32_t node;
};

struct grammar_ast {
    struct grammar_node *node; /* (n_node) */
    uint32_t n_node, node_cap;
    struct grammar_rule *rule; /* (n_rule) rule 0 is where a text starts */
    uint32_t n_rule, rule_cap;
    bool full; /* a limit was hit: nodes are NEVER from then on, and compiling says so */
};

void grammar_ast_free(struct grammar_ast *g);

uint32_t grammar_empty(struct grammar_ast *g);
uint32_t grammar_never(struct grammar_ast *g);
uint32_t grammar_range(struct grammar_ast *g, uint8_t lo, uint8_t hi);
uint32_t grammar_literal(struct grammar_ast *g, const char *text, size_t len);
uint32_t grammar_text(struct grammar_ast *g, const char *text); /* NUL-terminated */
uint32_t grammar_cat(struct grammar_ast *g, uint32_t a, uint32_t b);
uint32_t grammar_alt(struct grammar_ast *g, uint32_t a, uint32_t b);
uint32_t grammar_times(struct grammar_ast *g, uint32_t a, uint32_t min, uint32_t max);
uint32_t grammar_maybe(struct grammar_ast *g, uint32_t a);
/* A new rule, to be given its node later by grammar_define. The name is copied. */
uint32_t grammar_declare(struct grammar_ast *g, const char *name);
void grammar_define(struct grammar_ast *g, uint32_t rule, uint32_t node);
uint32_t grammar_call(struct grammar_ast *g, uint32_t rule);

/* Any text that does not contain the marker; behind the marker, `then` (a node). The text before may be all
 * there is when may_stop. The marker must not repeat its first byte. It may also come as a special token, and
 * no other special token may. */
uint32_t grammar_until(struct grammar_ast *g, const char *marker, uint32_t then, bool may_stop);
/* The marker as text or as a special token. */
uint32_t grammar_marker(struct grammar_ast *g, const char *marker);

/* A set of code points: sorted, disjoint ranges without gaps of zero between them, no surrogates. */
struct grammar_chars {
    struct grammar_span {
        uint32_t lo, hi;
    } * span; /* (n) */
    size_t n, cap;
};
void grammar_chars_add(struct grammar_chars *c, uint32_t lo, uint32_t hi);
void grammar_chars_finish(struct grammar_chars *c); /* sort, join, drop surrogates: after the last add */
void grammar_chars_negate(struct grammar_chars *c); /* of a finished set */
bool grammar_chars_has(const struct grammar_chars *c, uint32_t code);
void grammar_chars_free(struct grammar_chars *c);
/* One character of a finished set, as its UTF-8 bytes. */
uint32_t grammar_chars_node(struct grammar_ast *g, const struct grammar_chars *c);

#endif
