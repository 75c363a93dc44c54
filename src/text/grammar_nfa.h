/* The nondeterministic automaton of one rule, between its tree and its final form. */
#ifndef NYB_TEXT_GRAMMAR_NFA_H
#define NYB_TEXT_GRAMMAR_NFA_H

#include "text/grammar_auto.h"

#define GRAMMAR_NFA_DEPTH 1024 /* nesting of a rule's tree */

enum grammar_nfa_kind { GRAMMAR_NFA_EMPTY, GRAMMAR_NFA_BYTES, GRAMMAR_NFA_CALL };

struct grammar_nfa_edge {
    uint32_t from, to;
    uint32_t what; /* BYTES: lo << 8 | hi; CALL: the rule */
    enum grammar_nfa_kind kind;
};

struct grammar_nfa {
    struct grammar_nfa_edge *edge; /* (n_edge) */
    uint32_t n_state, n_edge, edge_cap;
    uint32_t start, end;
    int depth;
    bool full;
};

/* Append the states to *a; *start is the first one's number. Deterministic unless that takes many more states
 * than the automaton has; then only the empty steps are removed. Sorts the edges. False: too large. */
bool grammar_subset(struct grammar_auto *a, struct grammar_nfa *n, uint32_t *start);

#endif
