#include "engine/kv.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define XXH_NO_STREAM
#include <xxhash.h>

#include "base/clock.h"
#include "base/mem.h"

#define NIL (-1)
/* Identities of blocks count up from 1; those of generations have the top bit, so that the two never meet. */
#define ROOT_BIT (1ull << 63)

struct block {
    int32_t ref;
    int32_t lru_prev, lru_next; /* among the free ones                             */
    int32_t chain_next;         /* in its bucket                                   */
    uint64_t hash[2];           /* valid while id != 0                             */
    uint64_t id, parent;        /* id 0: not sealed                                */
    int32_t tok[KV_BLOCK];
};

struct kv_map {
    int n_block, n_free;
    bool cache;
    uint64_t seed, generation, next_id;
    int32_t lru_head, lru_tail; /* head: taken next */
    struct block *block;        /* (n_block) */
    int32_t *bucket;            /* (bucket_mask + 1) first block of each, or NIL */
    uint64_t bucket_mask;
};

static uint64_t random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
        seed = clock_ns() * 0x9e3779b97f4a7c15ull;
    return seed;
}

/* ---- the list of free blocks --------------------------------------------------------------------- */

static void lru_remove(struct kv_map *m, int32_t b)
{
    struct block *k = &m->block[b];
    if (k->lru_prev == NIL)
        m->lru_head = k->lru_next;
    else
        m->block[k->lru_prev].lru_next = k->lru_next;
    if (k->lru_next == NIL)
        m->lru_tail = k->lru_prev;
    else
        m->block[k->lru_next].lru_prev = k->lru_prev;
    m->n_free--;
}

static void lru_add_tail(struct kv_map *m, int32_t b)
{
    struct block *k = &m->block[b];
    k->lru_prev = m->lru_tail;
    k->lru_next = NIL;
    if (m->lru_tail == NIL)
        m->lru_head = b;
    else
        m->block[m->lru_tail].lru_next = b;
    m->lru_tail = b;
    m->n_free++;
}

static void lru_add_head(struct kv_map *m, int32_t b)
{
    struct block *k = &m->block[b];
    k->lru_prev = NIL;
    k->lru_next = m->lru_head;
    if (m->lru_head == NIL)
        m->lru_tail = b;
    else
        m->block[m->lru_head].lru_prev = b;
    m->lru_head = b;
    m->n_free++;
}

/* ---- the table of sealed blocks ------------------------------------------------------------------- */

static void table_add(struct kv_map *m, int32_t b)
{
    int32_t *head = &m->bucket[m->block[b].hash[0] & m->bucket_mask];
    m->block[b].chain_next = *head;
    *head = b;
}

static void table_remove(struct kv_map *m, int32_t b)
{
    int32_t *at = &m->bucket[m->block[b].hash[0] & m->bucket_mask];
    while (*at != b) {
        ASSERT(*at != NIL);
        at = &m->block[*at].chain_next;
    }
    *at = m->block[b].chain_next;
    m->block[b].id = 0;
}

static int32_t table_find(const struct kv_map *m, const uint64_t hash[2], uint64_t parent, const int32_t *tok)
{
    for (int32_t b = m->bucket[hash[0] & m->bucket_mask]; b != NIL; b = m->block[b].chain_next) {
        const struct block *k = &m->block[b];
        if (k->hash[0] == hash[0] && k->hash[1] == hash[1] && k->parent == parent &&
            !memcmp(k->tok, tok, sizeof(k->tok)))
            return b;
    }
    return NIL;
}

/* Hash of the chain so far and the next KV_BLOCK tokens. */
static void hash_next(const struct kv_map *m, const struct kv_chain *c, const int32_t *tok, uint64_t out[2])
{
    struct {
        uint64_t parent[2];
        int32_t tok[KV_BLOCK];
    } key;
    memcpy(key.parent, c->hash, sizeof(key.parent));
    memcpy(key.tok, tok, sizeof(key.tok));
    XXH128_hash_t h = XXH3_128bits_withSeed(&key, sizeof(key), m->seed);
    out[0] = h.low64;
    out[1] = h.high64;
}

/* ---- exported ------------------------------------------------------------------------------------- */

enum nyb_code kv_open(struct kv_map **out, int n_block, bool cache, struct nyb_err *err)
{
    if (n_block < 1)
        return err_set(err, NYB_E_MEMORY, "the KV cache needs at least one block of %d tokens, found %d",
                       KV_BLOCK, n_block);
    uint64_t n_bucket = 16;
    while (n_bucket < 2 * (uint64_t)n_block)
        n_bucket *= 2;
    struct kv_map *m = mem_try_alloc(1, sizeof(*m));
    struct block *block = mem_try_alloc((size_t)n_block, sizeof(*block));
    int32_t *bucket = mem_try_alloc(n_bucket, sizeof(*bucket));
    if (!m || !block || !bucket) {
        free(m);
        free(block);
        free(bucket);
        return err_set(err, NYB_E_MEMORY, "no memory for a map of %d KV blocks", n_block);
    }
    *m = (struct kv_map){.n_block = n_block,
                         .cache = cache,
                         .seed = random_seed(),
                         .next_id = 1,
                         .lru_head = NIL,
                         .lru_tail = NIL,
                         .block = block,
                         .bucket = bucket,
                         .bucket_mask = n_bucket - 1};
    for (uint64_t i = 0; i < n_bucket; i++)
        bucket[i] = NIL;
    for (int32_t b = 0; b < n_block; b++)
        lru_add_tail(m, b);
    *out = m;
    return NYB_OK;
}

void kv_close(struct kv_map *m)
{
    if (!m)
        return;
    free(m->block);
    free(m->bucket);
    free(m);
}

void kv_set_generation(struct kv_map *m, uint64_t generation)
{
    m->generation = generation;
}

void kv_chain_start(const struct kv_map *m, struct kv_chain *c)
{
    *c = (struct kv_chain){
        .hash = {m->generation, 0}, .id = m->generation | ROOT_BIT, .generation = m->generation};
}

void kv_chain_start_at(const struct kv_map *m, struct kv_chain *c, int rank)
{
    kv_chain_start(m, c);
    c->hash[1] = (uint64_t)rank;
    c->id ^= (uint64_t)rank << 48; /* below ROOT_BIT; generations do not get that far */
}

int kv_match_prefix(struct kv_map *m, struct kv_chain *c, const int32_t *tok, int n_tok, int32_t *block,
                    int max)
{
    if (!m->cache || c->generation != m->generation)
        return 0;
    int n = 0;
    for (; n < max && (n + 1) * KV_BLOCK <= n_tok; n++) {
        uint64_t hash[2];
        hash_next(m, c, tok + n * KV_BLOCK, hash);
        int32_t b = table_find(m, hash, c->id, tok + n * KV_BLOCK);
        if (b == NIL)
            break;
        if (m->block[b].ref++ == 0)
            lru_remove(m, b);
        memcpy(c->hash, hash, sizeof(hash));
        c->id = m->block[b].id;
        block[n] = b;
    }
    return n;
}

int32_t kv_take_block(struct kv_map *m)
{
    int32_t b = m->lru_head;
    if (b == NIL)
        return -1;
    lru_remove(m, b);
    if (m->block[b].id)
        table_remove(m, b);
    m->block[b].ref = 1;
    return b;
}

/* Sealed blocks wait at the tail for another sequence that wants them; others are taken first. */
void kv_drop_block(struct kv_map *m, int32_t b)
{
    ASSERT(b >= 0 && b < m->n_block && m->block[b].ref > 0);
    if (--m->block[b].ref > 0)
        return;
    if (m->block[b].id)
        lru_add_tail(m, b);
    else
        lru_add_head(m, b);
}

int32_t kv_seal_block(struct kv_map *m, struct kv_chain *c, int32_t b, const int32_t *tok)
{
    ASSERT(b >= 0 && b < m->n_block && m->block[b].ref > 0);
    if (!m->cache || c->generation != m->generation)
        return b;
    ASSERT(m->block[b].id == 0);
    uint64_t hash[2];
    hash_next(m, c, tok, hash);
    int32_t same = table_find(m, hash, c->id, tok);
    if (same != NIL) {
        if (m->block[same].ref++ == 0)
            lru_remove(m, same);
        kv_drop_block(m, b);
        b = same;
    } else {
        struct block *k = &m->block[b];
        memcpy(k->hash, hash, sizeof(hash));
        memcpy(k->tok, tok, sizeof(k->tok));
        k->parent = c->id;
        k->id = m->next_id++;
        table_add(m, b);
    }
    memcpy(c->hash, hash, sizeof(hash));
    c->id = m->block[b].id;
    return b;
}

int kv_block_count(const struct kv_map *m)
{
    return m->n_block;
}

int kv_free_count(const struct kv_map *m)
{
    return m->n_free;
}

void kv_check(const struct kv_map *m)
{
    int n_free = 0, n_sealed = 0, n_listed = 0;
    int32_t prev = NIL;
    for (int32_t b = m->lru_head; b != NIL; prev = b, b = m->block[b].lru_next) {
        ASSERT(m->block[b].ref == 0 && m->block[b].lru_prev == prev);
        ASSERT(++n_listed <= m->n_block);
    }
    ASSERT(m->lru_tail == prev);
    for (int32_t b = 0; b < m->n_block; b++) {
        ASSERT(m->block[b].ref >= 0);
        n_free += m->block[b].ref == 0;
        n_sealed += m->block[b].id != 0;
    }
    ASSERT(n_free == n_listed && n_free == m->n_free);
    for (uint64_t i = 0; i <= m->bucket_mask; i++)
        for (int32_t b = m->bucket[i]; b != NIL; b = m->block[b].chain_next) {
            ASSERT(m->block[b].id != 0 && (m->block[b].hash[0] & m->bucket_mask) == i);
            n_sealed--;
        }
    ASSERT(n_sealed == 0);
}
