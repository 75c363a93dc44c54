/* The block map: who owns which block of the paged KV cache, and what the free ones still hold.
 *
 * A block is KV_BLOCK tokens in every layer. It is referenced by any number of sequences, or free. A full
 * block may be sealed: entered into the prefix cache under the hash of its tokens and of everything before
 * them. A sealed block that becomes free keeps its contents until kv_take_block needs it, least recently used
 * first.
 *
 * A chain is one sequence's walk through the cache: the identity of the sealed prefix so far. The identity is
 * a number that is never reused, so a hit needs an equal hash, equal tokens and the same parent; a collision
 * of hashes is only a miss. The root of every chain is the generation of the weights, so KV of older weights
 * never matches. The hash is XXH3-128 with a seed drawn at random for each map: clients cannot aim at it.
 *
 * Owned by one thread. Allocates nothing after kv_open. */
#ifndef NYB_ENGINE_KV_H
#define NYB_ENGINE_KV_H

#include "base/err.h"
#include "kernels/kernels.h" /* KV_BLOCK */

struct kv_map;

struct kv_chain {
    uint64_t hash[2];    /* of all sealed tokens so far   */
    uint64_t id;         /* of the last sealed block      */
    uint64_t generation; /* of the weights at its start   */
};

/* cache: whether sealing and matching do anything. */
enum nyb_code kv_open(struct kv_map **out, int n_block, bool cache, struct nyb_err *err) NYB_MUST_CHECK;
void kv_close(struct kv_map *m);

/* Blocks sealed under another generation stop matching; they are reused as any other. */
void kv_set_generation(struct kv_map *m, uint64_t generation);

void kv_chain_start(const struct kv_map *m, struct kv_chain *c);
/* Of a sequence whose blocks are on one of several ranks: it matches what was sealed there. */
void kv_chain_start_at(const struct kv_map *m, struct kv_chain *c, int rank);

/* Follow the chain through the cache along tok (n_tok). Writes the blocks found to block, at most max, and
 * returns their number. They come back referenced: the caller must kv_drop_block() each. */
int kv_match_prefix(struct kv_map *m, struct kv_chain *c, const int32_t *tok, int n_tok, int32_t *block,
                    int max);

/* A block with one reference and no contents, or -1 when all are referenced. */
int32_t kv_take_block(struct kv_map *m);
void kv_drop_block(struct kv_map *m, int32_t block);

/* `block` now holds the KV of the next KV_BLOCK tokens of the chain, all computed. Enter it and move the
 * chain on. Where the cache has the same block already, the caller's reference moves to that one: use the
 * returned block instead. A chain of another generation is left alone. */
int32_t kv_seal_block(struct kv_map *m, struct kv_chain *c, int32_t block, const int32_t *tok);

int kv_block_count(const struct kv_map *m);
int kv_free_count(const struct kv_map *m); /* referenced by nobody */

/* Walk everything and abort where an invariant is broken. For tests. */
void kv_check(const struct kv_map *m);

#endif
