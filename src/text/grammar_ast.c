#include "text/grammar_ast.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define CODE_MAX 0x10FFFFu

void grammar_ast_free(struct grammar_ast *g)
{
    for (uint32_t i = 0; i < g->n_rule; i++)
        free(g->rule[i].name);
    free(g->rule);
    free(g->node);
    *g = (struct grammar_ast){0};
}

static uint32_t add(struct grammar_ast *g, struct grammar_node node)
{
    if (g->n_node == GRAMMAR_NODE_MAX) {
        g->full = true;
        return 0;
    }
    if (g->n_node == g->node_cap) {
        g->node_cap = g->node_cap ? 2 * g->node_cap : 64;
        g->node = mem_grow(g->node, g->node_cap, sizeof(*g->node));
    }
    if (g->n_node == 0) /* node 0 is what stands for all nodes beyond the limit */
        g->node[g->n_node++] = (struct grammar_node){.op = GRAMMAR_NEVER};
    g->node[g->n_node] = node;
    return g->n_node++;
}

uint32_t grammar_empty(struct grammar_ast *g)
{
    return add(g, (struct grammar_node){.op = GRAMMAR_EMPTY});
}

uint32_t grammar_never(struct grammar_ast *g)
{
    return add(g, (struct grammar_node){.op = GRAMMAR_NEVER});
}

uint32_t grammar_range(struct grammar_ast *g, uint8_t lo, uint8_t hi)
{
    return add(g, (struct grammar_node){.op = GRAMMAR_RANGE, .a = lo, .b = hi});
}

uint32_t grammar_cat(struct grammar_ast *g, uint32_t a, uint32_t b)
{
    if (g->node && g->node[a].op == GRAMMAR_EMPTY)
        return b;
    if (g->node && g->node[b].op == GRAMMAR_EMPTY)
        return a;
    return add(g, (struct grammar_node){.op = GRAMMAR_CAT, .a = a, .b = b});
}

uint32_t grammar_alt(struct grammar_ast *g, uint32_t a, uint32_t b)
{
    if (g->node && g->node[a].op == GRAMMAR_NEVER)
        return b;
    if (g->node && g->node[b].op == GRAMMAR_NEVER)
        return a;
    return add(g, (struct grammar_node){.op = GRAMMAR_ALT, .a = a, .b = b});
}

uint32_t grammar_times(struct grammar_ast *g, uint32_t a, uint32_t min, uint32_t max)
{
    ASSERT(min <= max);
    if (min == 1 && max == 1)
        return a;
    return max == 0 ? grammar_empty(g)
                    : add(g, (struct grammar_node){.op = GRAMMAR_TIMES, .a = a, .min = min, .max = max});
}

uint32_t grammar_maybe(struct grammar_ast *g, uint32_t a)
{
    return grammar_times(g, a, 0, 1);
}

uint32_t grammar_literal(struct grammar_ast *g, const char *text, size_t len)
{
    uint32_t node = grammar_empty(g);
    for (size_t i = len; i-- > 0;)
        node = grammar_cat(g, grammar_range(g, (uint8_t)text[i], (uint8_t)text[i]), node);
    return node;
}

uint32_t grammar_text(struct grammar_ast *g, const char *text)
{
    return grammar_literal(g, text, strlen(text));
}

uint32_t grammar_declare(struct grammar_ast *g, const char *name)
{
    if (g->n_rule == GRAMMAR_RULE_MAX) {
        g->full = true;
        return 0;
    }
    if (g->n_rule == g->rule_cap) {
        g->rule_cap = g->rule_cap ? 2 * g->rule_cap : 16;
        g->rule = mem_grow(g->rule, g->rule_cap, sizeof(*g->rule));
    }
    g->rule[g->n_rule] = (struct grammar_rule){.name = mem_strdup(name), .node = grammar_never(g)};
    return g->n_rule++;
}

void grammar_define(struct grammar_ast *g, uint32_t rule, uint32_t node)
{
    g->rule[rule].node = node;
}

uint32_t grammar_call(struct grammar_ast *g, uint32_t rule)
{
    return add(g, (struct grammar_node){.op = GRAMMAR_CALL, .a = rule});
}

/* ---- markers --------------------------------------------------------------------------------------- */

uint32_t grammar_marker(struct grammar_ast *g, const char *marker)
{
    uint32_t text = grammar_text(g, marker);
    return grammar_alt(g, text, grammar_cat(g, grammar_range(g, GRAMMAR_SPECIAL, GRAMMAR_SPECIAL), text));
}

/* Any byte but one or two, and never the mark of special tokens. */
static uint32_t byte_except(struct grammar_ast *g, uint8_t x, uint8_t y)
{
    uint8_t lo = x < y ? x : y, hi = x < y ? y : x;
    uint32_t node = grammar_never(g);
    if (lo > 0)
        node = grammar_range(g, 0, (uint8_t)(lo - 1));
    if (hi > lo + 1)
        node = grammar_alt(g, node, grammar_range(g, (uint8_t)(lo + 1), (uint8_t)(hi - 1)));
    return grammar_alt(g, node, grammar_range(g, (uint8_t)(hi + 1), GRAMMAR_SPECIAL - 1));
}

/* The automaton that looks for the marker, as rules that end by calling one another: in rule k, k bytes of it
 * were just seen. A byte that breaks a partial match is either its first one again or leads back to 0. */
uint32_t grammar_until(struct grammar_ast *g, const char *marker, uint32_t then, bool may_stop)
{
    size_t n = strlen(marker);
    uint8_t first = (uint8_t)marker[0];
    ASSERT(n > 0 && first < GRAMMAR_SPECIAL - 1);
    uint32_t rule = g->n_rule;
    for (size_t k = 0; k < n; k++)
        (void)grammar_declare(g, "text before a marker");
    if (g->full)
        return grammar_never(g);
    for (uint32_t k = 0; k < n; k++) {
        uint8_t next = (uint8_t)marker[k];
        uint32_t hit = k + 1 < n ? grammar_call(g, rule + k + 1) : then;
        uint32_t node = grammar_cat(g, grammar_range(g, next, next), hit);
        if (k > 0)
            node = grammar_alt(g, node,
                               grammar_cat(g, grammar_range(g, first, first), grammar_call(g, rule + 1)));
        node = grammar_alt(g, node, grammar_cat(g, byte_except(g, first, next), grammar_call(g, rule)));
        node = grammar_alt(g, node,
                           grammar_cat(g, grammar_range(g, GRAMMAR_SPECIAL, GRAMMAR_SPECIAL),
                                       grammar_cat(g, grammar_text(g, marker), then)));
        if (may_stop)
            node = grammar_alt(g, grammar_empty(g), node);
        grammar_define(g, rule + k, node);
    }
    return grammar_call(g, rule);
}

/* ---- code points ----------------------------------------------------------------------------------- */

void grammar_chars_free(struct grammar_chars *c)
{
    free(c->span);
    *c = (struct grammar_chars){0};
}

void grammar_chars_add(struct grammar_chars *c, uint32_t lo, uint32_t hi)
{
    ASSERT(lo <= hi && hi <= CODE_MAX);
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 8;
        c->span = mem_grow(c->span, c->cap, sizeof(*c->span));
    }
    c->span[c->n++] = (struct grammar_span){lo, hi};
}

static int by_lo(const void *x, const void *y)
{
    const struct grammar_span *a = x, *b = y;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

static void join(struct grammar_chars *c)
{
    size_t n = 0;
    if (c->n > 1)
        qsort(c->span, c->n, sizeof(*c->span), by_lo);
    for (size_t i = 0; i < c->n; i++) {
        struct grammar_span s = c->span[i];
        if (n > 0 && s.lo <= c->span[n - 1].hi + 1)
            c->span[n - 1].hi = s.hi > c->span[n - 1].hi ? s.hi : c->span[n - 1].hi;
        else
            c->span[n++] = s;
    }
    c->n = n;
}

void grammar_chars_negate(struct grammar_chars *c)
{
    struct grammar_chars out = {0};
    uint32_t from = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (c->span[i].lo > from)
            grammar_chars_add(&out, from, c->span[i].lo - 1);
        from = c->span[i].hi + 1;
    }
    if (from <= CODE_MAX)
        grammar_chars_add(&out, from, CODE_MAX);
    grammar_chars_free(c);
    *c = out;
    grammar_chars_finish(c);
}

/* Surrogates are no characters: cut [D800, DFFF] out. */
void grammar_chars_finish(struct grammar_chars *c)
{
    struct grammar_chars out = {0};
    join(c);
    for (size_t i = 0; i < c->n; i++) {
        uint32_t lo = c->span[i].lo, hi = c->span[i].hi;
        if (lo < 0xD800)
            grammar_chars_add(&out, lo, hi < 0xD800 ? hi : 0xD7FF);
        if (hi > 0xDFFF)
            grammar_chars_add(&out, lo > 0xDFFF ? lo : 0xE000, hi);
    }
    grammar_chars_free(c);
    *c = out;
}

bool grammar_chars_has(const struct grammar_chars *c, uint32_t code)
{
    for (size_t i = 0; i < c->n; i++)
        if (code >= c->span[i].lo && code <= c->span[i].hi)
            return true;
    return false;
}

static int encode(uint32_t c, uint8_t out[4])
{
    struct buf b = {0};
    buf_add_utf8(&b, c);
    int n = (int)b.len;
    memcpy(out, b.data, b.len);
    buf_free(&b);
    return n;
}

/* A range whose ends have the same number of bytes, of which only the last `tail` may run through all their
 * values: one byte range after another. */
static uint32_t aligned(struct grammar_ast *g, uint32_t lo, uint32_t hi)
{
    uint8_t a[4], b[4];
    int n = encode(lo, a);
    (void)encode(hi, b);
    uint32_t node = grammar_empty(g);
    for (int i = n; i-- > 0;)
        node = grammar_cat(g, grammar_range(g, a[i], b[i]), node);
    return node;
}

/* Cut [lo, hi] where the number of bytes changes, and where the leading bytes differ and the trailing ones
 * do not run through all of 80..BF. */
static uint32_t span_node(struct grammar_ast *g, uint32_t lo, uint32_t hi)
{
    static const uint32_t size_end[] = {0x7F, 0x7FF, 0xFFFF};
    for (size_t i = 0; i < COUNT_OF(size_end); i++)
        if (lo <= size_end[i] && hi > size_end[i])
            return grammar_alt(g, span_node(g, lo, size_end[i]), span_node(g, size_end[i] + 1, hi));
    for (int tail = 1; tail < 4 && hi > 0x7F; tail++) {
        uint32_t mask = (1u << (6 * tail)) - 1;
        if ((lo & ~mask) == (hi & ~mask))
            continue;
        if (lo & mask)
            return grammar_alt(g, span_node(g, lo, lo | mask), span_node(g, (lo | mask) + 1, hi));
        if ((hi & mask) != mask)
            return grammar_alt(g, span_node(g, lo, (hi & ~mask) - 1), span_node(g, hi & ~mask, hi));
    }
    return aligned(g, lo, hi);
}

uint32_t grammar_chars_node(struct grammar_ast *g, const struct grammar_chars *c)
{
    uint32_t node = grammar_never(g);
    for (size_t i = 0; i < c->n; i++)
        node = grammar_alt(g, node, span_node(g, c->span[i].lo, c->span[i].hi));
    return node;
}
