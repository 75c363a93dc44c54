/* Token masks: walk the trie of the vocabulary with a configuration for each byte of the path. Two things
 * keep walks short. A place where every plain character leads to one and the same configuration, as within a
 * JSON string, takes all plain tokens at once. And a mask is kept with its configuration. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_memo.h"

#define WEIGHT 16 /* items for which a configuration counts once more */

struct walk {
    struct grammar_memo *m;
    uint32_t *mask;
    uint32_t spent; /* of GRAMMAR_WALK_MAX, on the configurations met so far */
    bool any;
};

/* A walk may meet GRAMMAR_WALK_MAX different configurations; large ones count more. What it meets depends on
 * the constraint and the place in the text alone, not on what is known already, so the answer does not depend
 * on other requests. */
static uint32_t follow(struct walk *w, uint32_t config, uint8_t byte)
{
    uint32_t next = grammar_memo_next(w->m, config, byte);
    struct grammar_config *c = &w->m->info[next];
    if (next == GRAMMAR_DEAD || c->stamp == w->m->walk)
        return next;
    if (w->spent >= GRAMMAR_WALK_MAX)
        return GRAMMAR_DEAD;
    w->spent += 1 + w->m->config.set[next].n / WEIGHT;
    c->stamp = w->m->walk;
    return next;
}

static void allow(struct walk *w, int32_t token)
{
    for (; token >= 0; token = w->m->v->same[token])
        w->mask[token >> 5] |= 1u << (token & 31);
    w->any = true;
}

/* Nodes [from, to) of the trie, whose depth begins at `base` in configuration `at`. */
static void walk_trie(struct walk *w, const struct grammar_trie *t, uint32_t from, uint32_t to, int base,
                      uint32_t at)
{
    uint32_t path[GRAMMAR_TOKEN_MAX + 1];
    path[0] = at;
    for (uint32_t i = from; i < to;) {
        const struct grammar_trie_node *n = &t->node[i];
        int depth = n->depth - base;
        uint32_t next = follow(w, path[depth], n->byte);
        if (next == GRAMMAR_DEAD) {
            i = n->end;
            continue;
        }
        if (n->token >= 0)
            allow(w, n->token);
        path[depth + 1] = next;
        i++;
    }
}

/* ---- plain characters ------------------------------------------------------------------------------ */

/* All bytes of a range lead from the configuration to the same one: that, else DEAD. */
static uint32_t all_lead_to(struct walk *w, uint32_t config, int lo, int hi, uint32_t so_far)
{
    int last = -1;
    for (int b = lo; b <= hi && so_far != GRAMMAR_DEAD; b++) {
        if (b == '"' || b == '\\' || w->m->a->class_of[b] == last)
            continue;
        last = w->m->a->class_of[b];
        uint32_t next = follow(w, config, (uint8_t)b);
        if (so_far == GRAMMAR_UNKNOWN)
            so_far = next;
        else if (next != so_far)
            so_far = GRAMMAR_DEAD;
    }
    return so_far;
}

/* Well-formed UTF-8 beyond ASCII: lead bytes, and what may come second (Unicode 3.9, table 3-7). */
static const struct {
    uint8_t lo, hi, second_lo, second_hi, tails;
} utf8_form[] = {{0xC2, 0xDF, 0x80, 0xBF, 1}, {0xE0, 0xE0, 0xA0, 0xBF, 2}, {0xE1, 0xEC, 0x80, 0xBF, 2},
                 {0xED, 0xED, 0x80, 0x9F, 2}, {0xEE, 0xEF, 0x80, 0xBF, 2}, {0xF0, 0xF0, 0x90, 0xBF, 3},
                 {0xF1, 0xF3, 0x80, 0xBF, 3}, {0xF4, 0xF4, 0x80, 0x8F, 3}};

/* All characters of one form lead to `so_far`. */
static uint32_t form_leads_to(struct walk *w, uint32_t config, size_t form, uint32_t so_far)
{
    int last = -1;
    for (int b = utf8_form[form].lo; b <= utf8_form[form].hi && so_far != GRAMMAR_DEAD; b++) {
        if (w->m->a->class_of[b] == last)
            continue;
        last = w->m->a->class_of[b];
        uint32_t at = follow(w, config, (uint8_t)b);
        int lo = utf8_form[form].second_lo, hi = utf8_form[form].second_hi;
        for (int tail = utf8_form[form].tails; tail > 1 && at != GRAMMAR_DEAD; tail--, lo = 0x80, hi = 0xBF)
            at = all_lead_to(w, at, lo, hi, GRAMMAR_UNKNOWN);
        so_far = at == GRAMMAR_DEAD ? GRAMMAR_DEAD : all_lead_to(w, at, lo, hi, so_far);
    }
    return so_far;
}

static uint32_t plain_next(struct walk *w, uint32_t config)
{
    uint32_t to = w->m->info[config].plain;
    if (to != GRAMMAR_UNKNOWN)
        return to;
    w->spent = 0; /* what is found here is kept, and few: it does not count */
    to = all_lead_to(w, config, 0x20, 0x7E, GRAMMAR_UNKNOWN);
    for (size_t i = 0; i < COUNT_OF(utf8_form) && to != GRAMMAR_DEAD; i++)
        to = form_leads_to(w, config, i, to);
    w->m->info[config].plain = to;
    return to;
}

/* Plain characters that may follow, whichever they are; at most GRAMMAR_PLAIN_MAX. */
static int plain_run(struct walk *w, uint32_t config)
{
    int n = 0;
    while (n < GRAMMAR_PLAIN_MAX && (config = plain_next(w, config)) != GRAMMAR_DEAD)
        n++;
    return n;
}

/* ---- masks ----------------------------------------------------------------------------------------- */

static struct walk begin_walk(struct grammar_memo *m, uint32_t *mask)
{
    if (++m->walk == 0) {
        for (uint32_t i = 0; i < m->config.n; i++)
            m->info[i].stamp = 0;
        m->walk = 1;
    }
    return (struct walk){.m = m, .mask = mask};
}

static bool compute(struct grammar_memo *m, uint32_t config, uint32_t *mask)
{
    const struct grammar_vocab *v = m->v;
    struct walk w = begin_walk(m, mask);
    int run = plain_run(&w, config);
    w = begin_walk(m, mask);
    memcpy(mask, v->plain_mask[run], v->n_word * sizeof(*mask));
    w.any = run > 0 && v->plain.n > 0;
    walk_trie(&w, &v->other, 0, v->other.n, 0, config);
    if (run < GRAMMAR_PLAIN_MAX)
        walk_trie(&w, &v->plain, 0, v->plain.n, 0, config);
    return w.any;
}

/* At the start of a text whose first space vanishes: tokens that begin with one count without it. A token of
 * spaces alone would add nothing and is not allowed. */
static void restart_after_space(struct walk *w, const struct grammar_trie *t, uint32_t config)
{
    for (uint32_t i = 0; i < t->n; i = t->node[i].end) {
        if (t->node[i].byte != ' ') {
            walk_trie(w, t, i, t->node[i].end, 0, config);
            continue;
        }
        for (uint32_t k = i + 1; k < t->node[i].end; k = t->node[k].end)
            if (t->node[k].byte != ' ')
                walk_trie(w, t, k, t->node[k].end, 1, config);
    }
}

static struct grammar_mask_slot *oldest_slot(struct grammar_memo *m)
{
    struct grammar_mask_slot *oldest = &m->slot[0];
    for (int i = 1; i < GRAMMAR_MASK_MAX; i++)
        if (m->slot[i].used < oldest->used)
            oldest = &m->slot[i];
    if (oldest->used)
        m->info[oldest->config].mask = -1;
    if (!oldest->mask)
        oldest->mask = mem_alloc(m->v->n_word, sizeof(*oldest->mask));
    return oldest;
}

bool grammar_memo_mask(struct grammar_memo *m, uint32_t config, uint32_t strip, uint32_t *mask)
{
    if (strip) {
        struct walk w = begin_walk(m, mask);
        memset(mask, 0, m->v->n_word * sizeof(*mask));
        restart_after_space(&w, &m->v->plain, config);
        restart_after_space(&w, &m->v->other, config);
        return w.any;
    }
    int known = m->info[config].mask;
    struct grammar_mask_slot *slot = known >= 0 ? &m->slot[known] : oldest_slot(m);
    *(known >= 0 ? &m->hits : &m->misses) += 1;
    if (known < 0) {
        slot->any = compute(m, config, slot->mask);
        slot->config = config;
        m->info[config].mask = (int32_t)(slot - m->slot);
    }
    slot->used = ++m->clock;
    memcpy(mask, slot->mask, m->v->n_word * sizeof(*mask));
    return slot->any;
}
