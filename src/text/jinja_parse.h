/* Tokens to tree. jinja_parse.c has the statements, jinja_expr.c, jinja_atom.c and
 * jinja_suffix.c the expressions. */
#ifndef NYB_TEXT_JINJA_PARSE_H
#define NYB_TEXT_JINJA_PARSE_H

#include "text/jinja_ast.h"
#include "text/jinja_lex.h"

struct jparser {
    struct jheap *h;
    const struct jtoken *token; /* the current one */
    struct jname *names;        /* newest first */
    size_t n_name;
    struct jmacro_def *macro; /* being parsed; NULL: none */
    int loops;                /* that are open within the current macro */
};

/* The whole template: a JN_BODY. */
struct jnode *jparse_template(struct jparser *p, const char *source, size_t len);

/* For all of these files. */
struct jnode *jparse_node(struct jparser *p, enum jnode_kind kind);
const struct jname *jparse_intern(struct jparser *p, const char *text, size_t len);
bool jparse_at_op(const struct jparser *p, const char *op);
bool jparse_at_name(const struct jparser *p, const char *name);
bool jparse_skip_op(struct jparser *p, const char *op);
bool jparse_skip_name(struct jparser *p, const char *name);
void jparse_expect_op(struct jparser *p, const char *op);
const struct jname *jparse_expect_name(struct jparser *p);
_Noreturn void jparse_fail(struct jparser *p, const char *expected);
void jparse_enter(struct jparser *p); /* one level deeper; p->h->depth-- leaves it */

/* jinja_expr.c */
struct jnode *jexpr_parse(struct jparser *p, bool with_condition);
/* Turn a parsed primary or tuple into what can be assigned to, or fail. */
void jexpr_check_target(struct jparser *p, const struct jnode *node);

/* jinja_atom.c: one that nothing else is in, and an integer, which is the current token. */
struct jnode *jatom_parse(struct jparser *p);
struct jnode *jatom_parse_integer(struct jparser *p);
/* One expression, or a tuple without parentheses, which `end` (a name, or NULL) ends. */
struct jnode *jatom_parse_tuple(struct jparser *p, bool simplified, bool with_condition, bool parenthesized,
                                const char *end);

/* jinja_suffix.c: what follows `of`, if anything: attributes, subscripts, calls. */
struct jnode *jsuffix_parse(struct jparser *p, struct jnode *of);
struct jnode *jsuffix_parse_call(struct jparser *p, struct jnode *of); /* at its "(" */
/* name(args) after a "|" that has been read, applied to `of`. */
struct jnode *jsuffix_parse_filters(struct jparser *p, struct jnode *of);
struct jnode *jsuffix_parse_test(struct jparser *p, struct jnode *of); /* at its "is" */

struct jnodes { /* a list being built */
    struct jnode **at;
    size_t n, cap;
};
void jparse_push(struct jparser *p, struct jnodes *list, struct jnode *node);

#endif
