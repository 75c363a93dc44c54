#include "text/grammar_memo.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/grammar_closure.h"

/* ---- numbered sets --------------------------------------------------------------------------------- */

static uint32_t hash_items(const struct grammar_item *item, uint32_t n, uint32_t tag)
{
    uint64_t h = tag;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ item[i].state ^ (uint64_t)item[i].frame << 32) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 29;
    }
    return (uint32_t)(h ^ h >> 32);
}

static void rehash(struct grammar_sets *s, uint32_t mask)
{
    free(s->table);
    s->mask = mask;
    s->table = mem_alloc((size_t)mask + 1, sizeof(*s->table));
    for (uint32_t i = 1; i < s->n; i++) {
        uint32_t at = s->set[i].hash & mask;
        while (s->table[at])
            at = (at + 1) & mask;
        s->table[at] = i;
    }
}

uint32_t grammar_sets_add(struct grammar_sets *s, const struct grammar_item *item, uint32_t n, uint32_t tag)
{
    uint32_t hash = hash_items(item, n, tag), at = hash & s->mask;
    for (; s->table[at]; at = (at + 1) & s->mask) {
        const struct grammar_set *known = &s->set[s->table[at]];
        if (known->hash == hash && known->n == n && known->tag == tag &&
            (n == 0 || !memcmp(s->item + known->first, item, n * sizeof(*item))))
            return s->table[at];
    }
    if (s->n == s->cap) {
        s->cap *= 2;
        s->set = mem_grow(s->set, s->cap, sizeof(*s->set));
    }
    while (s->item_cap - s->n_item < n) {
        s->item_cap *= 2;
        s->item = mem_grow(s->item, s->item_cap, sizeof(*s->item));
    }
    if (n)
        memcpy(s->item + s->n_item, item, n * sizeof(*item));
    s->set[s->n] = (struct grammar_set){.first = s->n_item, .n = n, .hash = hash, .tag = tag};
    s->n_item += n;
    s->table[at] = s->n++;
    if (2 * s->n > s->mask)
        rehash(s, 2 * s->mask + 1);
    return s->n - 1;
}

/* Numbers below `n` are taken: set 0 must not be found by its contents. */
static void open_sets(struct grammar_sets *s, uint32_t n)
{
    *s = (struct grammar_sets){.n = n, .cap = 64, .item_cap = 256};
    s->set = mem_alloc(s->cap, sizeof(*s->set));
    s->item = mem_alloc(s->item_cap, sizeof(*s->item));
    s->mask = 255;
    s->table = mem_alloc((size_t)s->mask + 1, sizeof(*s->table));
}

static void close_sets(struct grammar_sets *s)
{
    free(s->set);
    free(s->item);
    free(s->table);
}

/* ---- configurations -------------------------------------------------------------------------------- */

void grammar_memo_open(struct grammar_memo *m, const struct grammar_auto *a, const struct grammar_vocab *v)
{
    *m = (struct grammar_memo){.a = a, .v = v, .keep_max = GRAMMAR_KEEP_MIN};
    open_sets(&m->frame, 1);
    open_sets(&m->config, GRAMMAR_FIRST);
    m->info = mem_alloc(m->config.cap, sizeof(*m->info));
    m->next = mem_alloc(m->config.cap, (size_t)a->n_class * sizeof(*m->next));
    for (int i = 0; i < a->n_class; i++)
        m->next[GRAMMAR_DEAD * a->n_class + i] = GRAMMAR_DEAD;
    m->work = grammar_closure_open();
}

void grammar_memo_close(struct grammar_memo *m)
{
    close_sets(&m->frame);
    close_sets(&m->config);
    free(m->info);
    free(m->next);
    for (int i = 0; i < GRAMMAR_MASK_MAX; i++)
        free(m->slot[i].mask);
    grammar_closure_close(m->work);
}

static uint32_t add_config(struct grammar_memo *m, const struct grammar_item *item, uint32_t n, bool may_end)
{
    uint32_t cap = m->config.cap, before = m->config.n;
    if (n == 0 && !may_end)
        return GRAMMAR_DEAD;
    uint32_t config = grammar_sets_add(&m->config, item, n, may_end);
    if (m->config.cap != cap) {
        m->info = mem_grow(m->info, m->config.cap, sizeof(*m->info));
        m->next = mem_grow(m->next, m->config.cap, (size_t)m->a->n_class * sizeof(*m->next));
    }
    if (m->config.n != before) {
        m->info[config] = (struct grammar_config){.mask = -1};
        memset(m->next + (size_t)config * (size_t)m->a->n_class, 0, (size_t)m->a->n_class * sizeof(*m->next));
    }
    return config;
}

static uint32_t close_over(struct grammar_memo *m)
{
    struct grammar_item *item;
    uint32_t n;
    bool may_end;
    if (!grammar_closure_finish(m->work, m, &item, &n, &may_end))
        return GRAMMAR_DEAD;
    return add_config(m, item, n, may_end);
}

uint32_t grammar_memo_start(struct grammar_memo *m)
{
    grammar_closure_begin(m->work);
    grammar_closure_add(m->work, m->a->rule[0].start, 0);
    return close_over(m);
}

static uint32_t compute_next(struct grammar_memo *m, uint32_t config, uint8_t byte)
{
    struct grammar_set set = m->config.set[config];
    grammar_closure_begin(m->work);
    for (uint32_t i = 0; i < set.n; i++) {
        struct grammar_item at = m->config.item[set.first + i];
        const struct grammar_state *s = &m->a->state[at.state];
        for (uint32_t k = 0; k < s->n_edge; k++) {
            const struct grammar_edge *e = &m->a->edge[s->edge + k];
            if (byte >= e->lo && byte <= e->hi)
                grammar_closure_add(m->work, e->to, at.frame);
        }
    }
    return close_over(m);
}

uint32_t grammar_memo_next(struct grammar_memo *m, uint32_t config, uint8_t byte)
{
    size_t at = (size_t)config * (size_t)m->a->n_class + m->a->class_of[byte];
    if (m->next[at] == GRAMMAR_UNKNOWN) {
        uint32_t next = compute_next(m, config, byte);
        m->next[at] = next; /* the table may have moved */
    }
    return m->next[at];
}

bool grammar_memo_may_end(const struct grammar_memo *m, uint32_t config)
{
    return config >= GRAMMAR_FIRST && m->config.set[config].tag;
}

bool grammar_memo_must_end(const struct grammar_memo *m, uint32_t config)
{
    return grammar_memo_may_end(m, config) && m->config.set[config].n == 0;
}

/* ---- clearing out ---------------------------------------------------------------------------------- */

/* A frame refers to older ones only, so one pass from the newest marks all that are needed. */
static uint32_t *mark_frames(const struct grammar_memo *m, uint32_t *const *root, uint32_t n)
{
    uint32_t *mark = mem_alloc(m->frame.n, sizeof(*mark));
    for (uint32_t r = 0; r < n; r++) {
        const struct grammar_set *c = &m->config.set[*root[r]];
        for (uint32_t i = 0; *root[r] >= GRAMMAR_FIRST && i < c->n; i++)
            mark[m->config.item[c->first + i].frame] = 1;
    }
    for (uint32_t f = m->frame.n; f-- > 1;)
        for (uint32_t i = 0; mark[f] && i < m->frame.set[f].n; i++)
            mark[m->frame.item[m->frame.set[f].first + i].frame] = 1;
    return mark;
}

static void rename_items(struct grammar_item *item, uint32_t n, const uint32_t *name)
{
    for (uint32_t i = 0; i < n; i++)
        item[i].frame = name[item[i].frame];
}

/* New numbers in the order of the old ones: sets stay sorted. mark becomes the new names. */
static void move_frames(struct grammar_memo *m, uint32_t *mark)
{
    struct grammar_sets old = m->frame;
    open_sets(&m->frame, 1);
    mark[0] = 0;
    for (uint32_t f = 1; f < old.n; f++) {
        const struct grammar_set *s = &old.set[f];
        if (!mark[f])
            continue;
        rename_items(old.item + s->first, s->n, mark);
        mark[f] = grammar_sets_add(&m->frame, old.item + s->first, s->n, s->tag);
    }
    close_sets(&old);
}

static void move_configs(struct grammar_memo *m, const uint32_t *frame_name, uint32_t *const *root,
                         uint32_t n)
{
    struct grammar_sets old = m->config;
    size_t row = (size_t)m->a->n_class * sizeof(*m->next);
    uint32_t *name = mem_alloc(old.n, sizeof(*name));
    open_sets(&m->config, GRAMMAR_FIRST);
    free(m->info);
    free(m->next);
    m->info = mem_alloc(m->config.cap, sizeof(*m->info));
    m->next = mem_alloc(m->config.cap, row);
    for (int i = 0; i < m->a->n_class; i++)
        m->next[GRAMMAR_DEAD * m->a->n_class + i] = GRAMMAR_DEAD;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t c = *root[r];
        const struct grammar_set *s = &old.set[c];
        if (c < GRAMMAR_FIRST)
            continue;
        if (!name[c]) {
            rename_items(old.item + s->first, s->n, frame_name);
            name[c] = add_config(m, old.item + s->first, s->n, s->tag);
        }
        *root[r] = name[c];
    }
    for (int i = 0; i < GRAMMAR_MASK_MAX; i++) {
        struct grammar_mask_slot *slot = &m->slot[i];
        slot->config = slot->config < old.n ? name[slot->config] : 0;
        if (slot->config)
            m->info[slot->config].mask = i;
        else
            slot->used = 0;
    }
    free(name);
    close_sets(&old);
}

void grammar_memo_tidy(struct grammar_memo *m, uint32_t *const *root, uint32_t n)
{
    if (m->config.n <= m->keep_max && m->frame.n <= 4 * m->keep_max)
        return;
    uint32_t *mark = mark_frames(m, root, n);
    move_frames(m, mark);
    move_configs(m, mark, root, n);
    free(mark);
    uint32_t least = 2 * m->config.n > m->frame.n / 2 ? 2 * m->config.n : m->frame.n / 2;
    m->keep_max = least > GRAMMAR_KEEP_MIN ? least : GRAMMAR_KEEP_MIN;
}
