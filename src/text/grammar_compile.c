/* From trees to automata: each rule's tree becomes a nondeterministic automaton with empty steps (Thompson's
 * construction), which grammar_subset.c makes deterministic. Then what can never be completed is cut off. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_nfa.h"

/* ---- trees to nondeterministic automata ------------------------------------------------------------ */

static uint32_t nfa_state(struct grammar_nfa *n)
{
    if (n->n_state == GRAMMAR_STATE_MAX) {
        n->full = true;
        return 0;
    }
    return n->n_state++;
}

static void nfa_edge(struct grammar_nfa *n, uint32_t from, uint32_t to, enum grammar_nfa_kind kind,
                     uint32_t what)
{
    if (n->n_edge == GRAMMAR_EDGE_MAX) {
        n->full = true;
        return;
    }
    if (n->n_edge == n->edge_cap) {
        n->edge_cap = n->edge_cap ? 2 * n->edge_cap : 256;
        n->edge = mem_grow(n->edge, n->edge_cap, sizeof(*n->edge));
    }
    n->edge[n->n_edge++] = (struct grammar_nfa_edge){.from = from, .to = to, .what = what, .kind = kind};
}

static void lower(struct grammar_nfa *n, const struct grammar_ast *ast, uint32_t node, uint32_t from,
                  uint32_t to);

/* Copies of a: min of them, then as many more as may be left out, or a loop. */
static void lower_times(struct grammar_nfa *n, const struct grammar_ast *ast, const struct grammar_node *t,
                        uint32_t from, uint32_t to)
{
    uint32_t at = from;
    for (uint32_t i = 0; i < t->min && !n->full; i++) {
        uint32_t next = nfa_state(n);
        lower(n, ast, t->a, at, next);
        at = next;
    }
    if (t->max == GRAMMAR_REPEAT) {
        uint32_t loop = nfa_state(n);
        nfa_edge(n, at, loop, GRAMMAR_NFA_EMPTY, 0);
        uint32_t back = nfa_state(n);
        lower(n, ast, t->a, loop, back);
        nfa_edge(n, back, loop, GRAMMAR_NFA_EMPTY, 0);
        nfa_edge(n, loop, to, GRAMMAR_NFA_EMPTY, 0);
        return;
    }
    for (uint32_t i = t->min; i < t->max && !n->full; i++) {
        uint32_t next = nfa_state(n);
        nfa_edge(n, at, to, GRAMMAR_NFA_EMPTY, 0);
        lower(n, ast, t->a, at, next);
        at = next;
    }
    nfa_edge(n, at, to, GRAMMAR_NFA_EMPTY, 0);
}

/* CAT and ALT lean to one side or the other by the length of a list: the loop takes the long side. */
static void lower(struct grammar_nfa *n, const struct grammar_ast *ast, uint32_t node, uint32_t from,
                  uint32_t to)
{
    if (++n->depth > GRAMMAR_NFA_DEPTH)
        n->full = true;
    while (!n->full) {
        const struct grammar_node *t = &ast->node[node];
        if (t->op == GRAMMAR_EMPTY) {
            nfa_edge(n, from, to, GRAMMAR_NFA_EMPTY, 0);
        } else if (t->op == GRAMMAR_RANGE) {
            nfa_edge(n, from, to, GRAMMAR_NFA_BYTES, t->a << 8 | t->b);
        } else if (t->op == GRAMMAR_CALL) {
            nfa_edge(n, from, to, GRAMMAR_NFA_CALL, t->a);
        } else if (t->op == GRAMMAR_TIMES) {
            lower_times(n, ast, t, from, to);
        } else if (t->op == GRAMMAR_CAT) {
            uint32_t middle = nfa_state(n);
            bool left = ast->node[t->a].op == GRAMMAR_CAT;
            lower(n, ast, left ? t->b : t->a, left ? middle : from, left ? to : middle);
            node = left ? t->a : t->b;
            *(left ? &to : &from) = middle;
            continue;
        } else if (t->op == GRAMMAR_ALT) {
            bool left = ast->node[t->a].op == GRAMMAR_ALT;
            lower(n, ast, left ? t->b : t->a, from, to);
            node = left ? t->a : t->b;
            continue;
        }
        break;
    }
    n->depth--;
}

/* States that a tree takes, at most `limit`: what is repeated often and is large becomes a rule of its own.
 */
static uint32_t weight(const struct grammar_ast *ast, uint32_t node, uint32_t limit, int depth)
{
    const struct grammar_node *t = &ast->node[node];
    uint32_t w = 1;
    if (limit == 0 || depth > 64)
        return limit;
    if (t->op == GRAMMAR_CAT || t->op == GRAMMAR_ALT) {
        w += weight(ast, t->a, limit - 1, depth + 1);
        if (w < limit)
            w += weight(ast, t->b, limit - w, depth + 1);
    } else if (t->op == GRAMMAR_TIMES) {
        uint32_t copies = t->max == GRAMMAR_REPEAT ? t->min + 1 : t->max;
        uint64_t all = (uint64_t)weight(ast, t->a, limit - 1, depth + 1) * copies + 1;
        w = all < limit ? (uint32_t)all : limit;
    }
    return w < limit ? w : limit;
}

#define INLINE_MAX 64 /* states of all copies of one repetition, before its inside becomes a rule */

static void outline_repetitions(struct grammar_ast *ast)
{
    for (uint32_t i = 0; i < ast->n_node && !ast->full; i++) {
        struct grammar_node t = ast->node[i];
        if (t.op != GRAMMAR_TIMES)
            continue;
        uint32_t copies = t.max == GRAMMAR_REPEAT ? t.min + 1 : t.max;
        uint32_t w = weight(ast, t.a, INLINE_MAX, 0);
        if (copies < 3 || w < 2 || (uint64_t)w * copies <= INLINE_MAX)
            continue;
        uint32_t rule = grammar_declare(ast, "a repetition");
        uint32_t call = grammar_call(ast, rule);
        if (ast->full)
            return;
        grammar_define(ast, rule, t.a);
        ast->node[i].a = call;
    }
}

/* ---- what rules can do ----------------------------------------------------------------------------- */

/* Both properties grow to a fixed point: at most one round a rule, usually two or three. */
static bool reaches_final(const struct grammar_auto *a, uint32_t start, bool by_bytes, uint8_t *seen,
                          uint32_t *stack)
{
    uint32_t n = 0, n_seen = 0;
    bool found = false;
    stack[n++] = start;
    seen[start] = 1;
    while (n_seen < n && !found) {
        const struct grammar_state *s = &a->state[stack[n_seen++]];
        found = s->final;
        for (uint32_t i = 0; by_bytes && i < s->n_edge; i++) {
            uint32_t to = a->edge[s->edge + i].to;
            if (!seen[to]) {
                seen[to] = 1;
                stack[n++] = to;
            }
        }
        for (uint32_t i = 0; i < s->n_call; i++) {
            struct grammar_call_edge c = a->call[s->call + i];
            bool passes = by_bytes ? a->rule[c.rule].useful : a->rule[c.rule].nullable;
            if (passes && !seen[c.to]) {
                seen[c.to] = 1;
                stack[n++] = c.to;
            }
        }
    }
    for (uint32_t i = 0; i < n; i++)
        seen[stack[i]] = 0;
    return found;
}

static void find_useful(struct grammar_auto *a, uint8_t *seen, uint32_t *stack)
{
    bool down = true; /* rules call later ones as a rule, or earlier ones: each way in turn */
    for (bool again = true; again; down = !down) {
        again = false;
        for (uint32_t i = 0; i < a->n_rule; i++) {
            struct grammar_auto_rule *rule = &a->rule[down ? a->n_rule - 1 - i : i];
            if (!rule->useful && reaches_final(a, rule->start, true, seen, stack))
                again = rule->useful = true;
            if (!rule->nullable && reaches_final(a, rule->start, false, seen, stack))
                again = rule->nullable = true;
        }
    }
}

/* Drop edges to states from which no text can be completed. Within a rule the states are reached from the
 * end backwards; a round over all of them for each step of the longest way would do, so order matters: later
 * states mostly lie nearer to the end. */
static void drop_dead_ends(struct grammar_auto *a)
{
    uint8_t *alive = mem_alloc((size_t)a->n_state + 1, 1);
    for (bool again = true; again;) {
        again = false;
        for (uint32_t i = a->n_state; i-- > 0;) {
            const struct grammar_state *s = &a->state[i];
            bool live = s->final;
            for (uint32_t k = 0; k < s->n_edge && !live; k++)
                live = alive[a->edge[s->edge + k].to];
            for (uint32_t k = 0; k < s->n_call && !live; k++)
                live = a->rule[a->call[s->call + k].rule].useful && alive[a->call[s->call + k].to];
            if (live && !alive[i])
                alive[i] = again = true;
        }
    }
    for (uint32_t i = 0; i < a->n_state; i++) {
        struct grammar_state *s = &a->state[i];
        uint16_t n = 0;
        for (uint32_t k = 0; k < s->n_edge; k++)
            if (alive[a->edge[s->edge + k].to])
                a->edge[s->edge + n++] = a->edge[s->edge + k];
        s->n_edge = n;
        n = 0;
        for (uint32_t k = 0; k < s->n_call; k++)
            if (a->rule[a->call[s->call + k].rule].useful && alive[a->call[s->call + k].to])
                a->call[s->call + n++] = a->call[s->call + k];
        s->n_call = n;
        s->tail = s->final && s->n_edge == 0 && s->n_call == 0;
    }
    free(alive);
}

/* ---- the order of calls at the start ---------------------------------------------------------------- */

enum { NEW, OPEN, CLOSED };

struct sorter {
    struct grammar_auto *a;
    uint8_t *mark;   /* (n_rule) */
    uint8_t *seen;   /* (n_state) of the rule being looked at */
    uint32_t next;   /* places from the back */
    uint32_t circle; /* a rule that calls itself, or UINT32_MAX */
    int depth;
    bool too_deep;
};

#define CALL_DEPTH 16384 /* calls within calls before any byte */

static void visit_rule(struct sorter *s, uint32_t rule);

static void visit_state(struct sorter *s, uint32_t state)
{
    const struct grammar_state *st = &s->a->state[state];
    if (s->seen[state])
        return;
    s->seen[state] = 1;
    s->too_deep = s->too_deep || ++s->depth > CALL_DEPTH;
    for (uint32_t i = 0; i < st->n_call && s->circle == UINT32_MAX && !s->too_deep; i++) {
        struct grammar_call_edge c = s->a->call[st->call + i];
        visit_rule(s, c.rule);
        if (s->a->rule[c.rule].nullable && s->circle == UINT32_MAX)
            visit_state(s, c.to);
    }
    s->depth--;
}

static void visit_rule(struct sorter *s, uint32_t rule)
{
    if (s->mark[rule] == CLOSED || s->circle != UINT32_MAX)
        return;
    if (s->mark[rule] == OPEN) {
        s->circle = rule;
        return;
    }
    s->mark[rule] = OPEN;
    visit_state(s, s->a->rule[rule].start);
    s->mark[rule] = CLOSED;
    s->a->rule[rule].order = --s->next;
}

static enum nyb_code too_large(struct nyb_err *err)
{
    return err_set(err, NYB_E_RANGE,
                   "the constraint is too large: at most %u states and %u edges, and %d levels of nesting",
                   GRAMMAR_STATE_MAX, GRAMMAR_EDGE_MAX, GRAMMAR_NFA_DEPTH);
}

static enum nyb_code sort_rules(struct grammar_auto *a, const struct grammar_ast *ast, struct nyb_err *err)
{
    struct sorter s = {.a = a,
                       .mark = mem_alloc((size_t)a->n_rule + 1, 1),
                       .seen = mem_alloc((size_t)a->n_state + 1, 1),
                       .next = a->n_rule,
                       .circle = UINT32_MAX};
    for (uint32_t r = 0; r < a->n_rule; r++)
        visit_rule(&s, r);
    uint32_t circle = s.circle;
    bool too_deep = s.too_deep;
    free(s.mark);
    free(s.seen);
    if (circle == UINT32_MAX)
        return too_deep ? too_large(err) : NYB_OK;
    return err_set(
        err, NYB_E_ARG,
        "the rule \"%.100s\" calls itself before any character: write it with a repetition, or with "
        "the call at its end",
        ast->rule[circle].name);
}

/* ---- byte classes ----------------------------------------------------------------------------------- */

static void find_classes(struct grammar_auto *a)
{
    bool border[257] = {[0] = true};
    for (uint32_t i = 0; i < a->n_state; i++)
        for (uint32_t k = 0; k < a->state[i].n_edge; k++) {
            const struct grammar_edge *e = &a->edge[a->state[i].edge + k];
            border[e->lo] = border[e->hi + 1] = true;
        }
    int n = -1;
    for (int b = 0; b < 256; b++) {
        n += border[b];
        a->class_of[b] = (uint8_t)n;
    }
    a->n_class = n + 1;
}

/* ---- exported --------------------------------------------------------------------------------------- */

void grammar_auto_free(struct grammar_auto *a)
{
    free(a->state);
    free(a->edge);
    free(a->call);
    free(a->rule);
    *a = (struct grammar_auto){0};
}

static bool compile_rules(struct grammar_auto *a, const struct grammar_ast *ast)
{
    struct grammar_nfa n = {0};
    bool fine = true;
    for (uint32_t r = 0; r < a->n_rule && fine; r++) {
        n.n_state = n.n_edge = 0;
        n.depth = 0;
        n.start = nfa_state(&n);
        n.end = nfa_state(&n);
        lower(&n, ast, ast->rule[r].node, n.start, n.end);
        fine = !n.full && grammar_subset(a, &n, &a->rule[r].start);
    }
    free(n.edge);
    return fine;
}

static enum nyb_code analyse(struct grammar_auto *a, const struct grammar_ast *ast, struct nyb_err *err)
{
    uint8_t *seen = mem_alloc((size_t)a->n_state + 1, 1);
    uint32_t *stack = mem_alloc((size_t)a->n_state + 1, sizeof(*stack));
    find_useful(a, seen, stack);
    free(seen);
    free(stack);
    if (!a->rule[0].useful)
        return err_set(err, NYB_E_ARG, "no text satisfies the constraint");
    drop_dead_ends(a);
    find_classes(a);
    return sort_rules(a, ast, err);
}

enum nyb_code grammar_compile(struct grammar_auto *out, struct grammar_ast *ast, struct nyb_err *err)
{
    ASSERT(ast->n_rule > 0);
    *out = (struct grammar_auto){0};
    outline_repetitions(ast);
    if (ast->full)
        return too_large(err);
    out->n_rule = ast->n_rule;
    out->rule = mem_alloc(out->n_rule, sizeof(*out->rule));
    enum nyb_code code = compile_rules(out, ast) ? analyse(out, ast, err) : too_large(err);
    if (code != NYB_OK)
        grammar_auto_free(out);
    return code;
}
