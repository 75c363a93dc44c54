/* A compiled grammar: one automaton a rule, whose edges are bytes or calls of rules. For the files grammar_*
 * only.
 *
 * What compiling guarantees: from every state that can be reached the text can be completed; no rule calls
 * itself before a byte was read, so calls made at one place in the text form no circle, and `order` sorts
 * them. */
#ifndef NYB_TEXT_GRAMMAR_AUTO_H
#define NYB_TEXT_GRAMMAR_AUTO_H

#include "text/grammar_ast.h"

#define GRAMMAR_STATE_MAX (1u << 18) /* states of one grammar  */
#define GRAMMAR_EDGE_MAX  (1u << 20) /* edges of one grammar   */

struct grammar_state {
    uint32_t edge, call; /* first of them */
    uint16_t n_edge, n_call;
    bool final; /* the rule may end here             */
    bool tail;  /* it can do nothing else than that  */
};
struct grammar_edge {
    uint32_t to;
    uint8_t lo, hi;
};
struct grammar_call_edge {
    uint32_t rule, to;
};
struct grammar_auto_rule {
    uint32_t start;
    uint32_t order; /* a rule comes before those that it may call at its very start */
    bool nullable;  /* it has the empty text  */
    bool useful;    /* it has any text at all */
};

struct grammar_auto {
    struct grammar_state *state; /* (n_state) */
    struct grammar_edge *edge;   /* (n_edge) */
    struct grammar_call_edge *call;
    struct grammar_auto_rule *rule; /* (n_rule) rule 0 is the text */
    uint32_t n_state, n_edge, n_call, n_rule;
    uint32_t state_cap, edge_cap, call_cap;
    uint8_t class_of[256]; /* bytes that no edge tells apart have the same class */
    int n_class;
};

/* NYB_E_ARG where a rule calls itself before any byte or there is no text at all, NYB_E_RANGE where the
 * grammar is too large. */
enum nyb_code grammar_compile(struct grammar_auto *out, struct grammar_ast *ast,
                              struct nyb_err *err) NYB_MUST_CHECK;
void grammar_auto_free(struct grammar_auto *a);

#endif
