#include "text/strmap.h"

#include <stdlib.h>

#include "base/mem.h"

static void put(struct strmap *m, const char *key, size_t len, int32_t id)
{
    uint64_t head = strmap_head(key, len);
    size_t i = strmap_hash(head, key, len) & m->mask;
    while (m->slot[i].id >= 0)
        i = (i + 1) & m->mask;
    m->slot[i] = (struct strmap_slot){.head = head, .len = (uint32_t)len, .id = id};
}

/* At most half full, so that probing stays short. */
static void grow_slots(struct strmap *m)
{
    size_t n_slot = m->slot ? (m->mask + 1) * 4 : 1024;
    free(m->slot);
    m->slot = mem_alloc(n_slot, sizeof(*m->slot));
    m->mask = n_slot - 1;
    for (size_t i = 0; i < n_slot; i++)
        m->slot[i].id = -1;
    for (int32_t id = 0; id < m->n_id; id++)
        if (m->offset[id] != UINT32_MAX)
            put(m, m->text.data + m->offset[id], m->size[id], id);
}

static void grow_ids(struct strmap *m, int32_t id)
{
    if (id >= m->id_cap) {
        int32_t cap = m->id_cap ? m->id_cap : 1024;
        while (cap <= id)
            cap *= 2;
        m->offset = mem_grow(m->offset, (size_t)cap, sizeof(*m->offset));
        m->size = mem_grow(m->size, (size_t)cap, sizeof(*m->size));
        m->id_cap = cap;
    }
    for (; m->n_id <= id; m->n_id++) {
        m->offset[m->n_id] = UINT32_MAX;
        m->size[m->n_id] = 0;
    }
}

enum strmap_added strmap_add(struct strmap *m, const char *key, size_t len, int32_t id)
{
    if (id < 0 || id >= STRMAP_ID_MAX)
        return STRMAP_BAD_ID;
    if (len > STRMAP_KEY_MAX || m->text.len + len + 1 >= UINT32_MAX)
        return STRMAP_TOO_LONG;
    if (strmap_find(m, key, len) >= 0)
        return STRMAP_KEY_TAKEN;
    if (id < m->n_id && m->offset[id] != UINT32_MAX)
        return STRMAP_ID_TAKEN;
    if (!m->slot || (m->n + 1) * 2 > m->mask)
        grow_slots(m);
    grow_ids(m, id);
    m->offset[id] = (uint32_t)m->text.len;
    m->size[id] = (uint32_t)len;
    buf_add(&m->text, key, len);
    buf_add_byte(&m->text, '\0');
    put(m, key, len, id);
    m->n++;
    return STRMAP_ADDED;
}

const char *strmap_key(const struct strmap *m, int32_t id, size_t *len)
{
    if (id < 0 || id >= m->n_id || m->offset[id] == UINT32_MAX)
        return NULL;
    *len = m->size[id];
    return m->text.data + m->offset[id];
}

void strmap_free(struct strmap *m)
{
    free(m->slot);
    free(m->offset);
    free(m->size);
    buf_free(&m->text);
    *m = (struct strmap){0};
}
