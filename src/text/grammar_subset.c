/* The subset construction. An alphabet of bytes and of rules: calls are symbols like bytes, so a state's
 * successors under one byte, and under one rule, are each one set. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_nfa.h"

#define GROWTH   4          /* a deterministic automaton may have so many times the states of the other */
#define GROWTH_0 512        /* and so many more */
#define SET_MAX  (1u << 22) /* members of all sets of one rule */

struct set {
    uint32_t first, n; /* in `member` */
    uint32_t hash;
};

struct subset {
    const struct grammar_nfa *n;
    uint32_t *first; /* (n_state + 1) a state's edges */
    uint32_t *seen;  /* (n_state) stamp of the last set that took it */
    uint32_t stamp;
    uint32_t *stack;  /* (n_state) */
    uint32_t *member; /* sets, sorted */
    uint32_t n_member, member_cap;
    struct set *set; /* (n_set) */
    uint32_t n_set, set_cap;
    uint32_t *table; /* (mask + 1) open addressing, set + 1 */
    uint32_t mask;
    uint32_t *build; /* (n_state) the set being made */
    uint32_t n_build;
};

static int by_from(const void *x, const void *y)
{
    const struct grammar_nfa_edge *a = x, *b = y;
    if (a->from != b->from)
        return a->from < b->from ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return a->what != b->what ? (a->what < b->what ? -1 : 1) : (a->to > b->to) - (a->to < b->to);
}

static int by_number(const void *x, const void *y)
{
    uint32_t a, b;
    memcpy(&a, x, sizeof(a));
    memcpy(&b, y, sizeof(b));
    return (a > b) - (a < b);
}

static void open_subset(struct subset *s, struct grammar_nfa *n)
{
    *s = (struct subset){.n = n, .mask = 255};
    if (n->n_edge > 1)
        qsort(n->edge, n->n_edge, sizeof(*n->edge), by_from);
    s->first = mem_alloc((size_t)n->n_state + 1, sizeof(*s->first));
    s->seen = mem_alloc(n->n_state, sizeof(*s->seen));
    s->stack = mem_alloc(n->n_state, sizeof(*s->stack));
    s->build = mem_alloc(n->n_state, sizeof(*s->build));
    s->table = mem_alloc((size_t)s->mask + 1, sizeof(*s->table));
    for (uint32_t i = 0; i < n->n_edge; i++)
        s->first[n->edge[i].from + 1]++;
    for (uint32_t i = 0; i < n->n_state; i++)
        s->first[i + 1] += s->first[i];
}

static void close_subset(struct subset *s)
{
    free(s->first);
    free(s->seen);
    free(s->stack);
    free(s->build);
    free(s->table);
    free(s->member);
    free(s->set);
}

static void begin_set(struct subset *s)
{
    s->stamp++;
    s->n_build = 0;
}

/* The state and what empty steps reach from it. Kept are those that matter: with other edges, or the end. */
static void take(struct subset *s, uint32_t state)
{
    uint32_t n = 0;
    if (s->seen[state] == s->stamp)
        return;
    s->seen[state] = s->stamp;
    s->stack[n++] = state;
    while (n > 0) {
        uint32_t at = s->stack[--n];
        bool matters = at == s->n->end;
        for (uint32_t i = s->first[at]; i < s->first[at + 1]; i++) {
            const struct grammar_nfa_edge *e = &s->n->edge[i];
            if (e->kind != GRAMMAR_NFA_EMPTY) {
                matters = true;
            } else if (s->seen[e->to] != s->stamp) {
                s->seen[e->to] = s->stamp;
                s->stack[n++] = e->to;
            }
        }
        if (matters)
            s->build[s->n_build++] = at;
    }
}

static void grow_table(struct subset *s)
{
    s->mask = 2 * s->mask + 1;
    free(s->table);
    s->table = mem_alloc((size_t)s->mask + 1, sizeof(*s->table));
    for (uint32_t i = 0; i < s->n_set; i++) {
        uint32_t at = s->set[i].hash & s->mask;
        while (s->table[at])
            at = (at + 1) & s->mask;
        s->table[at] = i + 1;
    }
}

/* The number of the set that was built, a new one where it is not known. UINT32_MAX: too many members. */
static uint32_t intern(struct subset *s)
{
    uint32_t hash = 2166136261u;
    if (s->n_build > 1)
        qsort(s->build, s->n_build, sizeof(*s->build), by_number);
    for (uint32_t i = 0; i < s->n_build; i++)
        hash = (hash ^ s->build[i]) * 0x01000193u ^ hash >> 15;
    uint32_t at = hash & s->mask;
    for (; s->table[at]; at = (at + 1) & s->mask) {
        const struct set *known = &s->set[s->table[at] - 1];
        if (known->hash == hash && known->n == s->n_build && known->n > 0 &&
            !memcmp(s->member + known->first, s->build, s->n_build * sizeof(*s->build)))
            return s->table[at] - 1;
        if (known->n == 0 && s->n_build == 0)
            return s->table[at] - 1;
    }
    if (s->n_build > SET_MAX - s->n_member)
        return UINT32_MAX;
    if (s->n_set == s->set_cap) {
        s->set_cap = s->set_cap ? 2 * s->set_cap : 64;
        s->set = mem_grow(s->set, s->set_cap, sizeof(*s->set));
    }
    while (s->n_member + s->n_build > s->member_cap) {
        s->member_cap = s->member_cap ? 2 * s->member_cap : 256;
        s->member = mem_grow(s->member, s->member_cap, sizeof(*s->member));
    }
    if (s->n_build)
        memcpy(s->member + s->n_member, s->build, s->n_build * sizeof(*s->build));
    s->set[s->n_set] = (struct set){.first = s->n_member, .n = s->n_build, .hash = hash};
    s->n_member += s->n_build;
    s->table[at] = ++s->n_set;
    if (2 * s->n_set > s->mask)
        grow_table(s);
    return s->n_set - 1;
}

/* ---- output ---------------------------------------------------------------------------------------- */

static struct grammar_state *out_state(struct grammar_auto *a)
{
    if (a->n_state == GRAMMAR_STATE_MAX)
        return NULL;
    if (a->n_state == a->state_cap) {
        a->state_cap = a->state_cap ? 2 * a->state_cap : 256;
        a->state = mem_grow(a->state, a->state_cap, sizeof(*a->state));
    }
    a->state[a->n_state] = (struct grammar_state){.edge = a->n_edge, .call = a->n_call};
    return &a->state[a->n_state++];
}

static bool out_edge(struct grammar_auto *a, uint32_t from, int lo, int hi, uint32_t to)
{
    struct grammar_state *s = &a->state[from];
    struct grammar_edge *last = s->n_edge ? &a->edge[a->n_edge - 1] : NULL;
    if (last && last->to == to && last->hi + 1 == lo) {
        last->hi = (uint8_t)hi;
        return true;
    }
    if (a->n_edge == GRAMMAR_EDGE_MAX || s->n_edge == UINT16_MAX)
        return false;
    if (a->n_edge == a->edge_cap) {
        a->edge_cap = a->edge_cap ? 2 * a->edge_cap : 256;
        a->edge = mem_grow(a->edge, a->edge_cap, sizeof(*a->edge));
    }
    a->edge[a->n_edge++] = (struct grammar_edge){.to = to, .lo = (uint8_t)lo, .hi = (uint8_t)hi};
    s->n_edge++;
    return true;
}

static bool out_call(struct grammar_auto *a, uint32_t from, uint32_t rule, uint32_t to)
{
    struct grammar_state *s = &a->state[from];
    if (a->n_call == GRAMMAR_EDGE_MAX || s->n_call == UINT16_MAX)
        return false;
    if (a->n_call == a->call_cap) {
        a->call_cap = a->call_cap ? 2 * a->call_cap : 64;
        a->call = mem_grow(a->call, a->call_cap, sizeof(*a->call));
    }
    a->call[a->n_call++] = (struct grammar_call_edge){.rule = rule, .to = to};
    s->n_call++;
    return true;
}

/* ---- deterministic --------------------------------------------------------------------------------- */

/* Edges of a set's members, found anew for each: members are few. */
static bool add_byte_edges(struct grammar_auto *a, struct subset *s, uint32_t set, uint32_t base)
{
    bool border[257] = {[256] = true};
    struct set at = s->set[set];
    bool any = false;
    for (uint32_t m = 0; m < at.n; m++) {
        uint32_t state = s->member[at.first + m];
        for (uint32_t i = s->first[state]; i < s->first[state + 1]; i++)
            if (s->n->edge[i].kind == GRAMMAR_NFA_BYTES) {
                border[s->n->edge[i].what >> 8] = border[(s->n->edge[i].what & 255) + 1] = any = true;
            }
    }
    for (int lo = 0, hi; any && lo < 256; lo = hi + 1) {
        for (hi = lo; !border[hi + 1]; hi++)
            ;
        begin_set(s);
        for (uint32_t m = 0; m < at.n; m++) {
            uint32_t state = s->member[at.first + m];
            for (uint32_t i = s->first[state]; i < s->first[state + 1]; i++) {
                const struct grammar_nfa_edge *e = &s->n->edge[i];
                if (e->kind == GRAMMAR_NFA_BYTES && (int)(e->what >> 8) <= lo && (int)(e->what & 255) >= hi)
                    take(s, e->to);
            }
        }
        if (s->n_build == 0)
            continue;
        uint32_t to = intern(s);
        if (to == UINT32_MAX || !out_edge(a, base + set, lo, hi, base + to))
            return false;
    }
    return true;
}

static bool add_call_edges(struct grammar_auto *a, struct subset *s, uint32_t set, uint32_t base)
{
    struct set at = s->set[set];
    struct grammar_state *out = &a->state[base + set];
    for (uint32_t m = 0; m < at.n; m++) {
        uint32_t state = s->member[at.first + m];
        for (uint32_t i = s->first[state]; i < s->first[state + 1]; i++) {
            uint32_t rule = s->n->edge[i].what;
            bool known = s->n->edge[i].kind != GRAMMAR_NFA_CALL;
            for (uint32_t k = 0; k < out->n_call && !known; k++)
                known = a->call[out->call + k].rule == rule;
            if (known)
                continue;
            begin_set(s);
            for (uint32_t o = 0; o < at.n; o++) {
                uint32_t other = s->member[at.first + o];
                for (uint32_t k = s->first[other]; k < s->first[other + 1]; k++)
                    if (s->n->edge[k].kind == GRAMMAR_NFA_CALL && s->n->edge[k].what == rule)
                        take(s, s->n->edge[k].to);
            }
            uint32_t to = intern(s);
            if (to == UINT32_MAX || !out_call(a, base + set, rule, base + to))
                return false;
        }
    }
    return true;
}

static bool is_final(const struct subset *s, uint32_t set)
{
    for (uint32_t m = 0; m < s->set[set].n; m++)
        if (s->member[s->set[set].first + m] == s->n->end)
            return true;
    return false;
}

static bool determinize(struct grammar_auto *a, struct subset *s)
{
    uint32_t base = a->n_state, limit = GROWTH * s->n->n_state + GROWTH_0;
    begin_set(s);
    take(s, s->n->start);
    bool fine = intern(s) == 0;
    for (uint32_t set = 0; set < s->n_set && fine; set++) {
        struct grammar_state *out = out_state(a);
        if (!out)
            return false;
        out->final = is_final(s, set);
        fine = add_byte_edges(a, s, set, base) && add_call_edges(a, s, set, base) && s->n_set <= limit;
    }
    return fine;
}

/* ---- without empty steps only ------------------------------------------------------------------------ */

static bool drop_empty_steps(struct grammar_auto *a, struct subset *s)
{
    uint32_t base = a->n_state;
    for (uint32_t state = 0; state < s->n->n_state; state++) {
        struct grammar_state *out = out_state(a);
        if (!out)
            return false;
        begin_set(s);
        take(s, state);
        for (uint32_t m = 0; m < s->n_build; m++) {
            uint32_t from = s->build[m];
            a->state[base + state].final |= from == s->n->end;
            for (uint32_t i = s->first[from]; i < s->first[from + 1]; i++) {
                const struct grammar_nfa_edge *e = &s->n->edge[i];
                if (e->kind == GRAMMAR_NFA_BYTES &&
                    !out_edge(a, base + state, (int)(e->what >> 8), (int)(e->what & 255), base + e->to))
                    return false;
                if (e->kind == GRAMMAR_NFA_CALL && !out_call(a, base + state, e->what, base + e->to))
                    return false;
            }
        }
    }
    return true;
}

bool grammar_subset(struct grammar_auto *a, struct grammar_nfa *n, uint32_t *start)
{
    struct subset s;
    uint32_t n_state = a->n_state, n_edge = a->n_edge, n_call = a->n_call;
    open_subset(&s, n);
    bool fine = determinize(a, &s);
    *start = n_state;
    if (!fine) {
        a->n_state = n_state;
        a->n_edge = n_edge;
        a->n_call = n_call;
        *start = n_state + n->start;
        fine = drop_empty_steps(a, &s);
    }
    close_subset(&s);
    return fine;
}
