#include "text/grammar_closure.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define TABLE (4 * GRAMMAR_ITEM_MAX) /* places to look an item up */

struct call {
    uint32_t rule;
    struct grammar_item back; /* where it returns to */
};

struct grammar_closure {
    struct grammar_item list[GRAMMAR_ITEM_MAX]; /* (n) all items, in the order they were found */
    uint32_t n, done;
    struct call call[GRAMMAR_ITEM_MAX]; /* (n_call) of rules whose frame is not made yet */
    uint32_t n_call;
    struct grammar_item out[GRAMMAR_ITEM_MAX];
    uint32_t table[TABLE]; /* index into list + 1, valid where stamp is the current one */
    uint32_t stamp[TABLE], now;
    bool overflow, may_end;
};

struct grammar_closure *grammar_closure_open(void)
{
    return mem_alloc(1, sizeof(struct grammar_closure));
}

void grammar_closure_close(struct grammar_closure *c)
{
    free(c);
}

void grammar_closure_begin(struct grammar_closure *c)
{
    c->n = c->done = c->n_call = 0;
    c->overflow = c->may_end = false;
    if (++c->now == 0) {
        memset(c->stamp, 0, sizeof(c->stamp));
        c->now = 1;
    }
}

void grammar_closure_add(struct grammar_closure *c, uint32_t state, uint32_t frame)
{
    uint32_t at = (state * 0x9E3779B1u ^ frame * 0x85EBCA77u) >> 7 & (TABLE - 1);
    for (; c->stamp[at] == c->now; at = (at + 1) & (TABLE - 1)) {
        const struct grammar_item *known = &c->list[c->table[at] - 1];
        if (known->state == state && known->frame == frame)
            return;
    }
    if (c->n == GRAMMAR_ITEM_MAX) {
        c->overflow = true;
        return;
    }
    c->list[c->n++] = (struct grammar_item){state, frame};
    c->stamp[at] = c->now;
    c->table[at] = c->n;
}

static void add_call(struct grammar_closure *c, uint32_t rule, struct grammar_item back)
{
    if (c->n_call == GRAMMAR_ITEM_MAX)
        c->overflow = true;
    else
        c->call[c->n_call++] = (struct call){rule, back};
}

/* A call at a rule's very end returns to where the rule itself would: the frame does not grow. */
static void follow_call(struct grammar_closure *c, const struct grammar_memo *m, uint32_t rule,
                        struct grammar_item back)
{
    if (m->a->state[back.state].tail && back.frame != 0) {
        const struct grammar_set *f = &m->frame.set[back.frame];
        for (uint32_t i = 0; i < f->n; i++)
            add_call(c, rule, m->frame.item[f->first + i]);
    } else {
        add_call(c, rule, back);
    }
    if (m->a->rule[rule].nullable)
        grammar_closure_add(c, back.state, back.frame);
}

static void follow_items(struct grammar_closure *c, const struct grammar_memo *m)
{
    for (; c->done < c->n && !c->overflow; c->done++) {
        struct grammar_item at = c->list[c->done];
        const struct grammar_state *s = &m->a->state[at.state];
        if (s->final && at.frame == 0)
            c->may_end = true;
        if (s->final && at.frame != 0) {
            const struct grammar_set *f = &m->frame.set[at.frame];
            for (uint32_t i = 0; i < f->n; i++)
                grammar_closure_add(c, m->frame.item[f->first + i].state, m->frame.item[f->first + i].frame);
        }
        for (uint32_t i = 0; i < s->n_call; i++) {
            struct grammar_call_edge e = m->a->call[s->call + i];
            follow_call(c, m, e.rule, (struct grammar_item){e.to, at.frame});
        }
    }
}

static int by_item(const void *x, const void *y)
{
    const struct grammar_item *a = x, *b = y;
    if (a->state != b->state)
        return a->state < b->state ? -1 : 1;
    return (a->frame > b->frame) - (a->frame < b->frame);
}

/* One frame for all calls of a rule at this place. Its depth is that of the callers, and one. */
static void enter_rule(struct grammar_closure *c, struct grammar_memo *m, uint32_t rule)
{
    uint32_t n = 0, left = 0, depth = 0;
    for (uint32_t i = 0; i < c->n_call; i++) {
        if (c->call[i].rule == rule)
            c->out[n++] = c->call[i].back;
        else
            c->call[left++] = c->call[i];
    }
    c->n_call = left;
    qsort(c->out, n, sizeof(*c->out), by_item);
    uint32_t unique = 0;
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || by_item(&c->out[i], &c->out[unique - 1]) != 0)
            c->out[unique++] = c->out[i];
    for (uint32_t i = 0; i < unique; i++) {
        uint32_t d = m->frame.set[c->out[i].frame].tag + 1;
        depth = d > depth ? d : depth;
    }
    if (depth <= GRAMMAR_DEPTH_MAX)
        grammar_closure_add(c, m->a->rule[rule].start, grammar_sets_add(&m->frame, c->out, unique, depth));
}

bool grammar_closure_finish(struct grammar_closure *c, struct grammar_memo *m, struct grammar_item **item,
                            uint32_t *n, bool *may_end)
{
    follow_items(c, m);
    while (c->n_call > 0 && !c->overflow) {
        /* Rules in their order: when one is entered, all its callers at this place are known. */
        uint32_t first = c->call[0].rule;
        for (uint32_t i = 1; i < c->n_call; i++)
            if (m->a->rule[c->call[i].rule].order < m->a->rule[first].order)
                first = c->call[i].rule;
        enter_rule(c, m, first);
        follow_items(c, m);
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n; i++)
        if (m->a->state[c->list[i].state].n_edge > 0)
            c->out[kept++] = c->list[i];
    qsort(c->out, kept, sizeof(*c->out), by_item);
    *item = c->out;
    *n = kept;
    *may_end = c->may_end;
    return !c->overflow;
}
