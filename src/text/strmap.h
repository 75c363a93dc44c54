/* A table from byte strings to ids, built once and then only read: the vocabulary in both directions.
 * A slot holds the first eight bytes of its key, so that most look-ups touch one cache line. */
#ifndef NYB_TEXT_STRMAP_H
#define NYB_TEXT_STRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"

struct strmap_slot {
    uint64_t head; /* key[0..8), zero padded              */
    uint32_t len;  /* of the key                          */
    int32_t id;    /* -1: empty                           */
};
struct strmap {
    struct strmap_slot *slot; /* (mask + 1)                        */
    size_t mask, n;
    struct buf text;      /* keys end to end, each NUL-terminated */
    uint32_t *offset;     /* (n_id) of id's key in text; UINT32_MAX: none */
    uint32_t *size;       /* (n_id) its bytes                  */
    int32_t n_id, id_cap; /* largest id + 1; room in the arrays */
};

#define STRMAP_ID_MAX                                                                    \
    (1 << 22) /* ids below 4 Mi: no tokenizer comes near, no file makes us allocate more \
               */
#define STRMAP_KEY_MAX (1u << 20)

/* Not thread-safe. Results of strmap_add: */
enum strmap_added {
    STRMAP_ADDED,
    STRMAP_KEY_TAKEN, /* the key is there already, under any id */
    STRMAP_ID_TAKEN,  /* the id has another key                 */
    STRMAP_BAD_ID,    /* outside 0..STRMAP_ID_MAX               */
    STRMAP_TOO_LONG,  /* key beyond STRMAP_KEY_MAX or 4 GB of keys */
};
enum strmap_added strmap_add(struct strmap *m, const char *key, size_t len, int32_t id);
void strmap_free(struct strmap *m);

/* The key of an id and its length; NULL: none. NUL-terminated. */
const char *strmap_key(const struct strmap *m, int32_t id, size_t *len);

static inline uint64_t strmap_head(const char *key, size_t len)
{
    uint64_t head = 0;
    if (len >= 8) {
        memcpy(&head, key, 8);
    } else if (len >= 4) {
        uint32_t first, last;
        memcpy(&first, key, 4);
        memcpy(&last, key + len - 4, 4);
        head = first | (uint64_t)last << (8 * (len - 4));
    } else {
        for (size_t i = 0; i < len; i++)
            head |= (uint64_t)(unsigned char)key[i] << (8 * i);
    }
    return head;
}

static inline uint64_t strmap_mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 32;
}

static inline uint64_t strmap_hash(uint64_t head, const char *key, size_t len)
{
    uint64_t h = strmap_mix(len, head);
    for (size_t i = 8; i < len; i += 8)
        h = strmap_mix(h, strmap_head(key + i, len - i));
    return h;
}

/* The id of a key, or -1. */
static inline int32_t strmap_find(const struct strmap *m, const char *key, size_t len)
{
    if (!m->slot || len > STRMAP_KEY_MAX)
        return -1;
    uint64_t head = strmap_head(key, len);
    for (size_t i = strmap_hash(head, key, len) & m->mask;; i = (i + 1) & m->mask) {
        const struct strmap_slot *s = &m->slot[i];
        if (s->id < 0)
            return -1;
        if (s->head == head && s->len == len &&
            (len <= 8 || memcmp(m->text.data + m->offset[s->id] + 8, key + 8, len - 8) == 0))
            return s->id;
    }
}

#endif
